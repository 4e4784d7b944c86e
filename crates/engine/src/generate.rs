//! Prefill and decoding over the key/value cache.

use crate::blueprint::{Blueprint, Compiled};
use crate::error::EngineError;
use crate::run::Engine;
use program::BufferId;
use program::buffer::Live;

/// Tokens to append to one sequence of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Advance<'a> {
    /// Which sequence: its slot in the cache.
    pub slot: usize,
    /// Tokens that the cache holds of it.
    pub past: usize,
    /// The tokens to append.
    pub ids: &'a [u32],
}

/// Logits after the last token of one sequence.
pub type Row = Vec<f32>;

impl Engine<'_> {
    /// Appends tokens to sequences and gives the logits after each one's last token, in order, padding excluded.
    ///
    /// Long prompts run in chunks of the planned prefill size; chunking changes no bit.
    ///
    /// # Errors
    /// A sequence longer than its cache, ids outside the vocabulary.
    pub fn advance(&mut self, work: &[Advance<'_>]) -> Result<Vec<Row>, EngineError> {
        let shape = self.blueprint.job.generate.ok_or(EngineError::NotPlanned("generation"))?;
        if self.blueprint.store.topology.ranks() > 1 {
            return Err(EngineError::OneRank("generation"));
        }
        for a in work {
            if a.ids.is_empty() {
                return Err(EngineError::Empty);
            }
            let length = a.past + a.ids.len();
            self.check_length(length)?;
            if length > shape.length {
                let what = "the length that the cache was planned for";
                return Err(EngineError::TooLong { length, limit: shape.length, what });
            }
            if a.slot >= shape.sequences {
                return Err(EngineError::NotPlanned("so many sequences"));
            }
        }
        if work.iter().all(|a| a.ids.len() == 1) && work.len() <= shape.sequences {
            return self.append(|b| &b.decode, work);
        }
        let mut rows = Vec::with_capacity(work.len());
        for a in work {
            let mut row = Vec::new();
            for (i, ids) in a.ids.chunks(shape.prefill).enumerate() {
                let past = a.past + i * shape.prefill;
                let piece = Advance { slot: a.slot, past, ids };
                row = self.append(|b| &b.prefill, &[piece])?.swap_remove(0);
            }
            rows.push(row);
        }
        Ok(rows)
    }

    fn append(
        &mut self,
        which: fn(&Blueprint) -> &Option<Compiled>,
        work: &[Advance<'_>],
    ) -> Result<Vec<Row>, EngineError> {
        let shape = self.blueprint.job.generate.ok_or(EngineError::NotPlanned("generation"))?;
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("generation"))?;
        let (mut ids, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let (mut segments, mut picked) = (Vec::new(), Vec::new());
        for a in work {
            let base = a.slot * shape.length;
            segments.extend([ids.len(), a.ids.len(), a.past, base].map(|v| v as u32));
            ids.extend(a.ids);
            positions.extend((0..a.ids.len()).map(|i| (a.past + i) as u32));
            slots.extend((0..a.ids.len()).map(|i| (base + a.past + i) as u32));
            picked.push(ids.len() as u32 - 1);
        }
        let live = Live {
            tokens: ids.len(),
            all_tokens: ids.len(),
            picked: picked.len(),
            segments: work.len(),
            all_segments: work.len(),
            ..Live::default()
        };
        let io = &compiled.program.io;
        let frame = self.frame(compiled, live);
        let store = |id: Option<BufferId>, values: &[u32]| match id {
            Some(id) => frame.store_u32(id, values),
            None => unreachable!("a generation program has all its inputs"),
        };
        store(io.ids, &ids);
        store(io.positions, &positions);
        store(io.slots, &slots);
        store(io.segments, &segments);
        store(io.picked, &picked);
        self.run_planned(which, live, None)?;
        let compiled =
            which(&self.blueprint).as_ref().ok_or(EngineError::NotPlanned("generation"))?;
        let logits = compiled.program.io.logits.ok_or(EngineError::NotPlanned("logits"))?;
        let frame = self.frame(compiled, live);
        let cols = frame.cols(logits);
        let vocab = self.graph.vocab.min(cols);
        Ok(frame.load_f32(logits).chunks(cols).map(|row| row[..vocab].to_vec()).collect())
    }
}
