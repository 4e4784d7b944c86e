//! Weights from a checkpoint to a rank's share of the parameters, row by row.

use crate::error::EngineError;
use crate::run::Engine;
use arena::Elems;
use formats::Checkpoint;
use program::buffer::Live;
use program::graph::{Param, Split};
use program::{BufferId, DType, ParamId};
use std::ops::Range;

/// Rows read at once.
const TILE_ROWS: usize = 64;

/// The part of a parameter that a rank holds.
struct Share {
    rows: Range<usize>,
    cols: Range<usize>,
}

impl Engine<'_> {
    fn share(&self, param: &Param) -> Share {
        let (topology, rank) = (self.blueprint.store.topology, self.blueprint.store.rank);
        let mut share = Share { rows: 0..param.padded_rows, cols: 0..param.cols };
        match &param.split {
            Split::Replicated => {}
            Split::Rows(cut) => share.rows = cut.owned(topology.tp, rank.tp),
            Split::Cols(cut) => share.cols = cut.owned(topology.tp, rank.tp),
        }
        share
    }

    /// Loads every parameter that is not an adapter's. `progress` is told the bytes loaded so far.
    ///
    /// # Errors
    /// A tensor that the checkpoint lacks or has in another shape, and whatever reading it gives.
    pub fn load(
        &mut self,
        checkpoint: &Checkpoint,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), EngineError> {
        check_names(&self.graph, checkpoint)?;
        self.note_new_weights();
        let mut loaded = 0;
        for id in self.graph.param_ids() {
            let param = self.graph.param_info(id);
            if !param.adapter {
                self.load_param(id, checkpoint)?;
                self.lost.remove(&id);
                loaded +=
                    self.blueprint.store.buffer(self.blueprint.store.slot(id).value).bytes() as u64;
                progress(loaded);
            }
        }
        Ok(())
    }

    fn load_param(&self, id: ParamId, checkpoint: &Checkpoint) -> Result<(), EngineError> {
        let param = self.graph.param_info(id);
        let share = self.share(param);
        let buffer = self.blueprint.store.slot(id).value;
        let frame = self.frame(&self.blueprint.resident, Live::default());
        // Padding rows stay zero, as the memory was allocated.
        let rows = share.rows.start.min(param.rows)..share.rows.end.min(param.rows);
        let (width, kept) = (param.cols, share.cols.len());
        if frame.buffer(buffer).dtype == DType::Bf16 {
            // SAFETY: no operation runs while weights load, and this is the buffer's only view.
            let out = unsafe { frame.bf16_mut(buffer) };
            read_share(rows, width, share.cols, &mut out[..], kept, |rows, tile| {
                Ok(checkpoint.read_rows_bf16(&param.name, rows, tile)?)
            })
        } else {
            // SAFETY: as above.
            let out = unsafe { frame.f32_mut(buffer) };
            read_share(rows, width, share.cols, &mut out[..], kept, |rows, tile| {
                Ok(checkpoint.read_rows_f32(&param.name, rows, tile)?)
            })
        }
    }

    /// This rank's share of a parameter as f32, row by row.
    pub fn read_param(&self, id: ParamId) -> Vec<f32> {
        let frame = self.frame(&self.blueprint.resident, Live::default());
        frame.load_f32(self.blueprint.store.slot(id).value)
    }

    /// Gives this rank's share of a parameter as f32, in order, a tile at a time: no second copy of it exists.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn visit_param<E>(
        &self,
        id: ParamId,
        take: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.visit(self.blueprint.store.slot(id).value, take)
    }

    /// Gives any buffer of the store as [`Engine::visit_param`] gives a parameter.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn visit<E>(
        &self,
        buffer: BufferId,
        mut take: impl FnMut(&[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let frame = self.frame(&self.blueprint.resident, Live::default());
        let tile = TILE_ROWS * frame.cols(buffer).max(1);
        // SAFETY: no operation runs while the engine is borrowed, and nothing writes the buffer meanwhile.
        match unsafe { frame.elems(buffer) } {
            Elems::F32(values) => values.chunks(tile).try_for_each(take),
            Elems::Bf16(values) => {
                let mut wide = Vec::with_capacity(tile);
                values.chunks(tile).try_for_each(|chunk| {
                    wide.clear();
                    wide.extend(chunk.iter().map(|v| v.to_f32()));
                    take(&wide)
                })
            }
        }
    }

    /// Overwrites this rank's share of a parameter.
    pub fn write_param(&mut self, id: ParamId, values: &[f32]) {
        let frame = self.frame(&self.blueprint.resident, Live::default());
        frame.store_f32(self.blueprint.store.slot(id).value, values);
        self.lost.remove(&id);
        self.note_new_weights();
    }

    /// This rank's share of a parameter's gradient; `None` for one that is not trained.
    pub fn read_grad(&self, id: ParamId) -> Option<Vec<f32>> {
        let frame = self.frame(&self.blueprint.resident, Live::default());
        let state = self.blueprint.store.slot(id).state.as_ref()?;
        Some(frame.load_f32(state.grad))
    }

    /// First and second moments of a trained parameter, of the slice that this rank updates.
    pub fn read_moments(&self, id: ParamId) -> Option<(Vec<f32>, Vec<f32>)> {
        let frame = self.frame(&self.blueprint.resident, Live::default());
        let state = self.blueprint.store.slot(id).state.as_ref()?;
        Some((frame.load_f32(state.m), frame.load_f32(state.v)))
    }

    /// Gives every trained parameter moments of zeros, as a new engine has them.
    pub fn reset_moments(&mut self) {
        let frame = self.frame(&self.blueprint.resident, Live::default());
        for state in self.blueprint.store.params.iter().filter_map(|slot| slot.state.as_ref()) {
            for buffer in [state.m, state.v] {
                // SAFETY: no operation runs while the engine is borrowed, and this is the buffer's only view.
                unsafe { frame.f32_mut(buffer) }.fill(0.0);
            }
        }
    }
}

/// Reads rows to `out`, whole or a column range of each.
fn read_share<T: Copy + Default>(
    rows: Range<usize>,
    width: usize,
    cols: Range<usize>,
    out: &mut [T],
    kept: usize,
    mut read: impl FnMut(Range<usize>, &mut [T]) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let count = rows.len();
    if kept == width {
        return read(rows, &mut out[..count * width]);
    }
    let mut tile = vec![T::default(); TILE_ROWS * width];
    for start in (rows.start..rows.end).step_by(TILE_ROWS) {
        let end = (start + TILE_ROWS).min(rows.end);
        let tile = &mut tile[..(end - start) * width];
        read(start..end, tile)?;
        let target = &mut out[(start - rows.start) * kept..(end - rows.start) * kept];
        for (to, from) in target.chunks_mut(kept).zip(tile.chunks(width)) {
            to.copy_from_slice(&from[cols.clone()]);
        }
    }
    Ok(())
}

/// Checks every tensor's presence and shape before any is read.
fn check_names(graph: &program::Graph, checkpoint: &Checkpoint) -> Result<(), EngineError> {
    for param in graph.params.iter().filter(|p| !p.adapter) {
        if param.is_vector() {
            checkpoint.require(&param.name, &[param.cols])?;
        } else {
            checkpoint.require(&param.name, &[param.rows, param.cols])?;
        }
    }
    Ok(())
}
