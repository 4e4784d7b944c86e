//! Attention forward and backward: caches in generation, keys and queries moved between context ranks in training.

use super::{Lowering, Mode, Placed};
use crate::buffer::{Axis, BufferId, DType, Kind};
use crate::graph::Node;
use crate::ops::*;

impl Lowering<'_> {
    /// Query and key/value heads of this rank.
    fn local_heads(&self, node: &Node) -> (usize, usize) {
        let Node::Attention { q, k, head_dim, .. } = node else {
            unreachable!("called for attention nodes only")
        };
        (self.local_cols(*q) / head_dim, self.local_cols(*k) / head_dim)
    }

    pub(super) fn forward_attention(&mut self, node: &Node) {
        let Node::Attention { q, k, v, out, lse, head_dim, scale, window, cache, .. } = node else {
            unreachable!("called for attention nodes only")
        };
        let (heads, kv_heads) = self.local_heads(node);
        let (q, mut k, mut v) = (self.need(*q), self.need(*k), self.need(*v));
        (k, v) = (self.gather_tokens(k), self.gather_tokens(v));
        let mut keys = Keys::Rows;
        if let Mode::Generate { .. } = self.options.mode {
            let (cache_k, cache_v) = self.store.caches[*cache];
            (k, v) = (self.cached(k, cache_k), self.cached(v, cache_v));
            if let Some(table) = self.io.blocks {
                keys = Keys::Paged { table };
            }
        }
        let train = matches!(self.options.mode, Mode::Train { .. });
        let out = self.define(*out);
        let lse = train.then(|| self.define(*lse));
        self.emit(Attention {
            q,
            k,
            v,
            out,
            lse,
            segments: self.io.segments.expect("every mode has segments"),
            heads,
            kv_heads,
            head_dim: *head_dim,
            scale: *scale,
            window: *window,
            keys,
        });
    }

    /// Stores the rows of every rank's tokens in the pages that this rank holds, and gives the buffer in which attention
    /// finds all keys (or values) that queries see: the cache itself, or, with context ranks, the rows of the block
    /// table's pages, moved here from the ranks that hold them.
    fn cached(&mut self, x: BufferId, cache: BufferId) -> BufferId {
        let slots = self.io.slots.expect("generation has slots");
        self.emit(CacheWrite { x, slots, cache });
        let Some(Placed { rows: index, owners }) = self.io.block_rows else { return cache };
        let (rows, cols) =
            (self.buffers[index.0 as usize].rows, self.buffers[cache.0 as usize].cols);
        let name = format!("{}.pages", self.buffers[cache.0 as usize].name);
        let out = self.buffer(name, DType::F32, rows, cols, Axis::BlockRows, Kind::Graph);
        self.emit(PickRows { x: cache, index, out });
        self.rows_of_owners(out, owners);
        out
    }

    pub(super) fn backward_attention(&mut self, node: &Node) {
        let Node::Attention { q, k, v, out, lse, head_dim, scale, window, .. } = node else {
            unreachable!("called for attention nodes only")
        };
        let (heads, kv_heads) = self.local_heads(node);
        let dout = self.grads[*out];
        let mut all = |value| {
            let buffer = self.need(value);
            self.gather_tokens(buffer)
        };
        let (q_all, k_all, v_all) = (all(*q), all(*k), all(*v));
        let (out_all, lse_all) = (all(*out), all(*lse));
        let dout = self.gather_tokens(dout);
        let (dq, dk, dv) = (self.new_grad(*q), self.new_grad(*k), self.new_grad(*v));
        self.emit(AttentionBackward {
            q: q_all,
            k: k_all,
            v: v_all,
            out: out_all,
            lse: lse_all,
            dout,
            dq,
            dk,
            dv,
            segments: self.io.all_segments.expect("training has a table of all segments"),
            heads,
            kv_heads,
            head_dim: *head_dim,
            scale: *scale,
            window: *window,
            first_row: self.first_token(),
        });
    }
}
