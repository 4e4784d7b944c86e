use crate::numeric::{assert_close, dot, values, wide};
use crate::rig::{Ran, Rig, bits};
use arena::ExecError;
use program::BufferId;
use program::ops::{Attention, Keys};

/// Shape of a case: query heads, key/value heads, size of a head.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) dim: usize,
}

pub(crate) const SCALE: f32 = 0.5;

/// Keys, values and segment rows of one case.
pub(crate) struct Case<'a> {
    pub(crate) heads: Heads,
    pub(crate) q: &'a [f32],
    pub(crate) k: &'a [f32],
    pub(crate) v: &'a [f32],
    pub(crate) segments: &'a [u32],
    pub(crate) window: Option<usize>,
}

impl Case<'_> {
    fn op(&self, rig: &mut Rig) -> Attention {
        let Heads { heads, kv_heads, dim } = self.heads;
        let (q, k) = (rig.floats(heads * dim, self.q), rig.floats(kv_heads * dim, self.k));
        let v = rig.floats(kv_heads * dim, self.v);
        let rows = self.q.len() / (heads * dim);
        let (out, lse) = (rig.out(rows, heads * dim), Some(rig.out(rows, heads)));
        let segments = rig.words(4, self.segments);
        let (head_dim, window, keys) = (dim, self.window, Keys::Rows);
        Attention {
            q,
            k,
            v,
            out,
            lse,
            segments,
            heads,
            kv_heads,
            head_dim,
            scale: SCALE,
            window,
            keys,
        }
    }

    fn run(&self) -> (Ran, BufferId, BufferId) {
        let mut rig = Rig::new();
        let op = self.op(&mut rig);
        let (out, lse) = (op.out, op.lse.unwrap());
        (rig.run(op), out, lse)
    }

    /// Output and log Σexp.
    pub(crate) fn forward(&self) -> (Vec<f32>, Vec<f32>) {
        let (ran, out, lse) = self.run();
        (ran.floats(out), ran.floats(lse))
    }

    fn bits(&self) -> (Vec<u32>, Vec<u32>) {
        let (out, lse) = self.forward();
        (bits(&out), bits(&lse))
    }
}

/// The textbook in f64: output and log Σexp of every query.
pub(crate) fn textbook(
    Heads { heads, kv_heads, dim }: Heads,
    (q, k, v): (&[f64], &[f64], &[f64]),
    segments: &[u32],
    window: Option<usize>,
) -> (Vec<f64>, Vec<f64>) {
    let mut out = vec![0.0; q.len()];
    let mut lse = vec![0.0; q.len() / dim];
    for segment in segments.chunks(4) {
        let [first, rows, position, key_row] = [0, 1, 2, 3].map(|i| segment[i] as usize);
        for i in 0..rows {
            let end = position + i + 1;
            let visible = window.map_or(0, |w| end.saturating_sub(w))..end;
            for head in 0..heads {
                let at = ((first + i) * heads + head) * dim;
                let key = |j: usize| ((key_row + j) * kv_heads + head / (heads / kv_heads)) * dim;
                let weights: Vec<f64> = visible
                    .clone()
                    .map(|j| {
                        (dot(&q[at..at + dim], &k[key(j)..key(j) + dim]) * f64::from(SCALE)).exp()
                    })
                    .collect();
                let sum: f64 = weights.iter().sum();
                for (j, weight) in visible.clone().zip(weights) {
                    for d in 0..dim {
                        out[at + d] += weight / sum * v[key(j) + d];
                    }
                }
                lse[(first + i) * heads + head] = sum.ln();
            }
        }
    }
    (out, lse)
}

const GROUPED: Heads = Heads { heads: 4, kv_heads: 2, dim: 3 };
const SMALL: Heads = Heads { heads: 1, kv_heads: 1, dim: 2 };

#[test]
fn one_key_gives_its_value() {
    let case = Case {
        heads: SMALL,
        q: &[1.0, 2.0],
        k: &[3.0, 0.5],
        v: &[7.0, -0.0],
        segments: &[0, 1, 0, 0],
        window: None,
    };
    let (out, lse) = case.forward();
    assert_eq!(lse, [2.0], "the score itself");
    assert_eq!(bits(&out), bits(&[7.0, 0.0]), "a zero is +0");
}

#[test]
fn softmax_over_the_visible_keys_of_each_sequence() {
    let rows = 90;
    let (q, k, v) = (values(1, rows * 12), values(2, rows * 6), values(3, rows * 6));
    // Two packed sequences, of 70 and 20 tokens.
    let segments = [0, 70, 0, 0, 70, 20, 0, 70];
    for window in [None, Some(1), Some(5), Some(64)] {
        let case = Case { heads: GROUPED, q: &q, k: &k, v: &v, segments: &segments, window };
        let (out, lse) = case.forward();
        let (qw, kw, vw) = (wide(&q), wide(&k), wide(&v));
        let wanted = textbook(GROUPED, (&qw, &kw, &vw), &segments, window);
        assert_close(&out, &wanted.0, 1e-6);
        assert_close(&lse, &wanted.1, 1e-6);
    }
}

#[test]
fn a_sequence_is_the_same_packed_and_alone() {
    let (q, k, v) = (values(1, 90 * 12), values(2, 90 * 6), values(3, 90 * 6));
    let packed = Case {
        heads: GROUPED,
        q: &q,
        k: &k,
        v: &v,
        segments: &[0, 70, 0, 0, 70, 20, 0, 70],
        window: None,
    };
    let alone = Case {
        q: &q[70 * 12..],
        k: &k[70 * 6..],
        v: &v[70 * 6..],
        segments: &[0, 20, 0, 0],
        ..packed
    };
    let (all, one) = (packed.bits(), alone.bits());
    assert_eq!(all.0[70 * 12..], one.0);
    assert_eq!(all.1[70 * 4..], one.1);
}

#[test]
fn a_long_sequence_is_the_same_whole_in_pieces_and_one_by_one() {
    // Past 1024 keys there are two spans.
    let rows = 1100;
    let (q, k, v) = (values(1, rows * 2), values(2, rows * 2), values(3, rows * 2));
    let whole =
        Case { heads: SMALL, q: &q, k: &k, v: &v, segments: &[0, 1100, 0, 0], window: None };
    let (out, lse) = whole.bits();
    // Pieces whose ends are no block's; then one query against keys that end with its own.
    let pieces = Case { segments: &[0, 77, 0, 0, 77, 1000, 77, 0, 1077, 23, 1077, 0], ..whole };
    assert_eq!(pieces.bits(), (out.clone(), lse.clone()));
    for position in [0, 63, 64, 1023, 1024, 1099] {
        let (at, keys) = (2 * position, 2 * (position + 1));
        let one = Case {
            q: &q[at..at + 2],
            k: &k[..keys],
            v: &v[..keys],
            segments: &[0, 1, position as u32, 0],
            ..whole
        };
        assert_eq!(
            one.bits(),
            (out[at..at + 2].to_vec(), vec![lse[position]]),
            "position {position}"
        );
    }
    let (qw, kw, vw) = (wide(&q), wide(&k), wide(&v));
    let wanted = textbook(SMALL, (&qw, &kw, &vw), &[0, 1100, 0, 0], None);
    assert_close(&whole.forward().0, &wanted.0, 1e-5);
}

#[test]
fn a_window_skips_spans_and_blocks_without_a_visible_key() {
    let rows = 1100;
    let (q, k, v) = (values(1, rows * 2), values(2, rows * 2), values(3, rows * 2));
    let segments = [0, 1100, 0, 0];
    let case = Case { heads: SMALL, q: &q, k: &k, v: &v, segments: &segments, window: Some(40) };
    let (out, lse) = case.bits();
    // Keys before the window, not finite, are never read.
    let mut poisoned = k.clone();
    poisoned[..2 * 1000].fill(f32::NAN);
    let last = Case { q: &q[2 * 1099..], k: &poisoned, segments: &[0, 1, 1099, 0], ..case };
    assert_eq!(last.bits(), (out[2 * 1099..].to_vec(), vec![lse[1099]]));
}

#[test]
fn segments_outside_their_buffers_are_refused() {
    let (q, k) = (values(1, 3 * 2), values(2, 3 * 2));
    let case = |segments| Case { heads: SMALL, q: &q, k: &k, v: &k, segments, window: None };
    let refusal = |segments| {
        let mut rig = Rig::new();
        let op = case(segments).op(&mut rig);
        rig.error(op)
    };
    let what = "query row of a segment";
    assert_eq!(refusal(&[1, 3, 0, 0]), ExecError::RowOutside { what, index: 3, limit: 3 });
    let what = "key row of a segment";
    assert_eq!(refusal(&[0, 2, 1, 1]), ExecError::RowOutside { what, index: 3, limit: 3 });
}
