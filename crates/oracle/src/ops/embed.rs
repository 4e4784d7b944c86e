//! Token embedding.

use crate::matrix::Matrix;
use arena::{ExecError, Frame};
use program::Op;
use program::ops::{CollectiveKind, Embed, EmbedBackward};

/// A rank's share of the vocabulary.
struct Share {
    first: usize,
    words: usize,
    /// No rank holds a word past this share's.
    last: bool,
}

impl Share {
    /// The table's row of a token, or `None` where another rank's share holds it.
    fn row(&self, t: usize, id: u32) -> Result<Option<usize>, ExecError> {
        let vocab = self.first + self.words;
        let word = id as usize;
        if word >= vocab && self.last {
            return Err(ExecError::TokenOutsideVocabulary { row: t, id, vocab });
        }
        Ok((self.first..vocab).contains(&word).then(|| word - self.first))
    }
}

/// Whether the rows that this rank lacks come from other ranks.
fn is_shared(op: &Embed, frame: &Frame<'_>) -> bool {
    frame.program.ops.iter().any(|other| match other {
        Op::Collective(c) => c.out == op.out && matches!(c.kind, CollectiveKind::OwnerRows { .. }),
        _ => false,
    })
}

/// `out[t] = table[id − first]·scale`; +0 where another rank owns the id. A share that ends in padding, or that is not
/// shared, ends the vocabulary: an id past its words is an error.
pub(crate) fn embed(op: &Embed, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (ids, table) = (frame.load_u32(op.ids), Matrix::load(frame, op.table));
    let last = op.words < table.rows || !is_shared(op, frame);
    let share = Share { first: op.first, words: op.words, last };
    let mut out = Matrix::zeros_like(frame, op.out);
    for (t, &id) in ids.iter().enumerate() {
        if let Some(row) = share.row(t, id)? {
            for (out, x) in out.row_mut(t).iter_mut().zip(table.row(row)) {
                *out = x * op.scale;
            }
        }
    }
    out.store(frame, op.out);
    Ok(())
}

/// `dtable[id − first] += dout[t]·scale`: one product and one addition, tokens ascending.
pub(crate) fn embed_backward(op: &EmbedBackward, frame: &Frame<'_>) -> Result<(), ExecError> {
    let (ids, dout) = (frame.load_u32(op.ids), Matrix::load(frame, op.dout));
    let mut dtable =
        if op.zero { Matrix::zeros_like(frame, op.dtable) } else { Matrix::load(frame, op.dtable) };
    let share = Share { first: op.first, words: op.words, last: op.words < dtable.rows };
    for (t, &id) in ids.iter().enumerate() {
        if let Some(row) = share.row(t, id)? {
            for (dtable, dout) in dtable.row_mut(row).iter_mut().zip(dout.row(t)) {
                *dtable += dout * op.scale;
            }
        }
    }
    dtable.store(frame, op.dtable);
    Ok(())
}
