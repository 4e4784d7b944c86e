//! From a graph to one rank's program: forward emission, each node's backward rule, recomputation on demand.
//!
//! Forward emits every node once. After it, values that are not in the keep set are forgotten. Backward walks the
//! nodes in reverse; a rule that needs a forgotten value asks for it, and the producing node is emitted again (its own
//! inputs by the same rule). Recomputation emits the very same operations, so it changes no bit.

mod attention;
mod backward;
mod by_value;
mod head;
mod io;
mod linear;
mod optimizer;
mod parallel;

pub use io::{Io, Placed};
pub use optimizer::{accumulate, accumulation_ranges, optimizer, resident};

use crate::buffer::{Axis, Buffer, BufferId, DType, Kind};
use crate::graph::{Graph, Node, ParamId, ValueId};
use crate::op::Op;
use crate::ops::*;
use crate::store::Store;
use by_value::ByValue;
use std::sync::Arc;

/// What a program does.
#[derive(Clone, Debug, PartialEq)]
pub enum Mode {
    /// Token log-probs, forward only.
    Score,
    /// Log-probs and gradients of every trained parameter.
    Train {
        /// Whether coefficients (d loss / d log-prob) are known before the forward pass, as in supervised fine-tuning:
        /// then logits of a chunk are computed once for both directions.
        coef_known: bool,
    },
    /// Writes keys and values to the caches, attends to them, and gives logits of picked rows.
    Generate {
        /// Most rows that may be picked.
        picked: usize,
        /// Most entries of the block table.
        blocks: usize,
    },
}

/// What the head finds of each token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// Logits are multiplied by this: 1 / temperature ([`canon::policy::scale`]).
    pub scale: f32,
    /// Whether each row says which candidates are kept (top-k, top-p); then the log-prob over the whole vocabulary is
    /// found beside the policy's.
    pub truncated: bool,
    /// Whether entropies are found.
    pub entropy: bool,
}

impl Default for Head {
    fn default() -> Self {
        Head { scale: 1.0, truncated: false, entropy: false }
    }
}

/// What to lower.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// What the program does.
    pub mode: Mode,
    /// Token capacity of the logical micro-batch.
    pub tokens: usize,
    /// Segment capacity.
    pub segments: usize,
    /// Rows of logits that exist at once.
    pub chunk: usize,
    /// What the head finds.
    pub head: Head,
    /// Whether LoRA branches take part; without them the program is the base model's, over the same store.
    pub adapters: bool,
    /// For each value, whether it is kept from forward to backward. Empty keeps everything.
    pub keep: Vec<bool>,
}

/// One rank's flat list of operations with its buffers.
#[derive(Clone, Debug)]
pub struct Program {
    /// What it does, in a word: `train`, `score`, `generate`, `optimizer`.
    pub name: &'static str,
    /// Buffers: first the store's, then the program's own.
    pub buffers: Vec<Buffer>,
    /// Buffers of the store.
    pub persistent: usize,
    /// Operations in order.
    pub ops: Vec<Op>,
    /// Layer of each operation, for reports and for naming a difference.
    pub op_layers: Vec<Option<usize>>,
    /// Operations of the forward pass.
    pub forward_ops: usize,
    /// Where inputs and results are.
    pub io: Io,
    /// Token capacity of the micro-batch.
    pub tokens: usize,
}

impl Program {
    /// A buffer.
    pub fn buffer(&self, id: BufferId) -> &Buffer {
        &self.buffers[id.0 as usize]
    }
}

/// Lowers a graph to a program of one rank.
pub fn lower(graph: &Graph, store: &Store, options: &Options) -> Program {
    let mut lowering = Lowering::new(graph, store, options);
    lowering.forward();
    let forward_ops = lowering.ops.len();
    if matches!(options.mode, Mode::Train { .. }) {
        assert!(options.adapters, "training runs the adapters that it trains");
        lowering.forget();
        lowering.backward();
    }
    let name = match options.mode {
        Mode::Score => "score",
        Mode::Train { .. } => "train",
        Mode::Generate { .. } => "generate",
    };
    Program {
        name,
        buffers: lowering.buffers,
        persistent: store.buffers.len(),
        ops: lowering.ops,
        op_layers: lowering.op_layers,
        forward_ops,
        io: lowering.io,
        tokens: options.tokens,
    }
}

pub(crate) struct Lowering<'a> {
    graph: &'a Graph,
    store: &'a Store,
    options: &'a Options,
    buffers: Vec<Buffer>,
    ops: Vec<Op>,
    op_layers: Vec<Option<usize>>,
    layer: Option<usize>,
    io: Io,
    /// The buffer that holds each value now.
    current: ByValue<BufferId>,
    /// The gradient of each value, while it is being built.
    grads: ByValue<BufferId>,
    /// The node that makes each value.
    producers: ByValue<usize>,
    /// The nodes that read each value.
    consumers: Vec<Vec<usize>>,
    /// Whether a gradient must reach each value.
    needs_grad: Vec<bool>,
    rope_table: Option<BufferId>,
    /// log Σexp of the head, when the backward pass is a separate operation.
    head_lse: Option<BufferId>,
    /// Log Σexp over the whole vocabulary, beside it.
    head_full_lse: Option<BufferId>,
    /// Parameters whose gradient has been written.
    param_grads: Vec<bool>,
}

impl<'a> Lowering<'a> {
    fn new(graph: &'a Graph, store: &'a Store, options: &'a Options) -> Self {
        assert!(
            options.keep.is_empty() || options.keep.len() == graph.values.len(),
            "a keep set has one entry a value"
        );
        let mut producers = ByValue::new(graph);
        let mut consumers = vec![Vec::new(); graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for input in node.inputs() {
                consumers[input.0 as usize].push(i);
            }
            for out in node.outputs() {
                producers.insert(out, i);
            }
        }
        let mut lowering = Lowering {
            graph,
            store,
            options,
            buffers: store.buffers.clone(),
            ops: Vec::new(),
            op_layers: Vec::new(),
            layer: None,
            io: Io::default(),
            current: ByValue::new(graph),
            grads: ByValue::new(graph),
            producers,
            consumers,
            needs_grad: needs_grad(graph),
            rope_table: None,
            head_lse: None,
            head_full_lse: None,
            param_grads: vec![false; graph.params.len()],
        };
        lowering.make_inputs();
        lowering
    }

    fn emit(&mut self, op: impl Into<Op>) {
        self.ops.push(op.into());
        self.op_layers.push(self.layer);
    }

    /// Adds a buffer of the program.
    fn buffer(
        &mut self,
        name: impl Into<Arc<str>>,
        dtype: DType,
        rows: usize,
        cols: usize,
        axis: Axis,
        kind: Kind,
    ) -> BufferId {
        self.buffers.push(Buffer { name: name.into(), dtype, rows, cols, axis, kind });
        BufferId(self.buffers.len() as u32 - 1)
    }

    /// Token capacity of this rank.
    fn local_tokens(&self) -> usize {
        self.options.tokens.div_ceil(self.store.topology.cp)
    }

    /// Token capacity over context ranks.
    fn all_tokens(&self) -> usize {
        self.local_tokens() * self.store.topology.cp
    }

    /// Global row of this rank's first token.
    fn first_token(&self) -> usize {
        self.local_tokens() * self.store.rank.cp
    }

    /// A graph buffer of this rank's tokens.
    fn tokens_buffer(&mut self, name: impl Into<Arc<str>>, cols: usize) -> BufferId {
        self.buffer(name, DType::F32, self.local_tokens(), cols, Axis::Tokens, Kind::Graph)
    }

    /// Columns of a value on this rank.
    fn local_cols(&self, value: ValueId) -> usize {
        let info = self.graph.value_info(value);
        match &info.cut {
            None => info.cols,
            Some(cut) => cut.owned(self.store.topology.tp, self.store.rank.tp).len(),
        }
    }

    /// A new buffer for a value, which becomes its current one.
    fn define(&mut self, value: ValueId) -> BufferId {
        let cols = self.local_cols(value);
        let name = self.graph.value_info(value).name.clone();
        let buffer = self.tokens_buffer(name, cols);
        self.current.insert(value, buffer);
        buffer
    }

    fn param(&self, id: ParamId) -> BufferId {
        self.store.slot(id).value
    }

    fn param_grad(&self, id: ParamId) -> Option<BufferId> {
        self.store.slot(id).state.as_ref().map(|s| s.grad)
    }

    fn forward(&mut self) {
        for index in 0..self.graph.nodes.len() {
            self.forward_node(index, None);
        }
        self.layer = None;
        self.forward_head();
    }

    /// Drops every value that is not kept; backward computes those again where it needs them.
    fn forget(&mut self) {
        let keep = &self.options.keep;
        if !keep.is_empty() {
            self.current.retain(|value| keep[value]);
        }
    }

    /// The buffer of a value, computed again if it was dropped.
    fn need(&mut self, value: ValueId) -> BufferId {
        if let Some(&buffer) = self.current.get(value) {
            return buffer;
        }
        let node = self.producers[value];
        self.forward_node(node, Some(value));
        self.current[value]
    }

    /// Emits a node's outputs, or only what `wanted` takes.
    fn forward_node(&mut self, index: usize, wanted: Option<ValueId>) {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let outer = self.layer;
        self.layer = node.outputs().first().and_then(|&v| graph.value_info(v).layer);
        match node {
            Node::Embed { table, out, scale } => self.forward_embed(*table, *out, *scale),
            Node::Norm { x, weight, out, group, eps, plus_one } => {
                let x = self.need(*x);
                let out = self.define(*out);
                let weight = self.param(*weight);
                self.emit(Norm { x, weight, out, group: *group, eps: *eps, plus_one: *plus_one });
            }
            Node::Linear { x, projections } => self.forward_linear(*x, projections, wanted),
            Node::Rope { x, out, head_dim } => {
                let buffer = self.need(*x);
                let table = self.rope_table();
                self.emit(Rope { x: buffer, table, head_dim: *head_dim, inverse: false });
                self.current.remove(*x);
                self.current.insert(*out, buffer);
            }
            Node::Attention { .. } => self.forward_attention(node),
            Node::Gate { gate, up, out, activation } => {
                let (gate, up) = (self.need(*gate), self.need(*up));
                let out = self.define(*out);
                self.emit(Gate { gate, up, out, activation: *activation });
            }
            Node::Add { a, b, out } => {
                let (a, b) = (self.need(*a), self.need(*b));
                let out = self.define(*out);
                self.emit(Add { a, b, out });
            }
        }
        self.layer = outer;
    }

    fn forward_embed(&mut self, table: ParamId, out: ValueId, scale: f32) {
        let bounds = self.vocab_bounds(table);
        let rank = self.store.rank.tp;
        let (first, end) = (bounds[rank], bounds[rank + 1]);
        let words = self.graph.vocab.clamp(first, end) - first;
        let ids = self.io.ids.expect("every mode reads ids");
        let (table, out) = (self.param(table), self.define(out));
        self.emit(Embed { ids, table, first, words, out, scale });
        if self.store.topology.tp > 1 {
            self.emit(Collective {
                group: Group::Tensor,
                kind: CollectiveKind::OwnerRows { ids, bounds },
                x: out,
                out,
            });
        }
    }

    fn rope_table(&mut self) -> BufferId {
        if let Some(table) = self.rope_table {
            return table;
        }
        let positions = self.io.positions.expect("every mode reads positions");
        let out = self.tokens_buffer("rope", 2 * self.graph.inv_freq.len());
        self.emit(RopeTable {
            positions,
            out,
            inv_freq: self.graph.inv_freq.clone(),
            scale: self.graph.rope_scale,
        });
        self.rope_table = Some(out);
        out
    }
}

/// Whether a gradient must reach each value: some parameter at or before it is trained.
fn needs_grad(graph: &Graph) -> Vec<bool> {
    let mut needs = vec![false; graph.values.len()];
    let trained = |id: ParamId| graph.param_info(id).trainable;
    for node in &graph.nodes {
        let from_inputs = node.inputs().iter().any(|v| needs[v.0 as usize]);
        if let Node::Linear { projections, .. } = node {
            for p in projections {
                let own = trained(p.weight)
                    || p.bias.is_some_and(trained)
                    || p.lora.as_ref().is_some_and(|l| trained(l.a) || trained(l.b));
                needs[p.out.0 as usize] = from_inputs || own;
            }
        } else {
            let own = node.params().into_iter().any(trained);
            for out in node.outputs() {
                needs[out.0 as usize] = from_inputs || own;
            }
        }
    }
    needs
}
