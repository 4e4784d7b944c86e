//! The model as nodes over symbolic values: what a family writes, free of parallelism, memory and device.

use crate::buffer::DType;
use crate::ops::Activation;
use crate::topology::Cut;
use std::sync::Arc;

/// Index of a value in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a parameter in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub u32);

/// What a value is in its layer: the planner keeps or drops values by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A layer's input, or the last layer's output: always kept for training.
    Residual,
    /// The residual stream after attention.
    Middle,
    /// A norm's output.
    Normed,
    /// Queries, keys, values before rotation or head norm.
    Projected,
    /// Queries, keys, values as attention reads them.
    Rotated,
    /// Attention output and its log-sum-exp.
    Attended,
    /// A block's contribution to the residual stream.
    Delta,
    /// Gate and up projections.
    Gated,
    /// The gated activation.
    Activated,
    /// A LoRA branch's inner activation.
    Lora,
}

/// A per-token activation `[tokens, cols]`, f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    /// Name, unique in the graph.
    pub name: Arc<str>,
    /// Columns over all tensor ranks.
    pub cols: usize,
    /// How tensor ranks share the columns; `None` when each holds all.
    pub cut: Option<Cut>,
    /// Layer, if in one.
    pub layer: Option<usize>,
    /// What it is.
    pub class: Class,
}

/// How tensor ranks share a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Split {
    /// Each rank holds all of it.
    Replicated,
    /// Rows (output features, words) are shared.
    Rows(Cut),
    /// Columns (input features) are shared.
    Cols(Cut),
}

/// A parameter `[rows, cols]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Checkpoint name (adapters: the PEFT name).
    pub name: Arc<str>,
    /// Rows in the checkpoint.
    pub rows: usize,
    /// Rows in memory: the vocabulary is padded; equal to `rows` otherwise. Padding rows are zero.
    pub padded_rows: usize,
    /// Columns.
    pub cols: usize,
    /// How tensor ranks share it.
    pub split: Split,
    /// Storage type.
    pub dtype: DType,
    /// Whether it is a LoRA matrix.
    pub adapter: bool,
    /// Whether it is trained.
    pub trainable: bool,
    /// Whether weight decay applies.
    pub decay: bool,
}

impl Param {
    /// Whether it is a vector in checkpoints (norms and biases), rather than a matrix of one row.
    pub fn is_vector(&self) -> bool {
        !self.decay
    }

    /// Elements in the checkpoint.
    pub fn elements(&self) -> usize {
        self.rows * self.cols
    }
}

/// A LoRA branch of a projection: `y += scale · (x·Aᵀ)·Bᵀ`.
#[derive(Clone, Debug, PartialEq)]
pub struct Lora {
    /// A `[r, in]`.
    pub a: ParamId,
    /// B `[out, r]`.
    pub b: ParamId,
    /// `alpha / r` (or `alpha / √r`).
    pub scale: f32,
    /// The inner activation `scale · x·Aᵀ`.
    pub h: ValueId,
}

/// One projection of a linear node.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// Weight `[out, in]`.
    pub weight: ParamId,
    /// Bias `[1, out]`.
    pub bias: Option<ParamId>,
    /// LoRA branch.
    pub lora: Option<Lora>,
    /// Output.
    pub out: ValueId,
}

/// A node of the graph.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// Token embedding.
    Embed {
        /// Table, rows by vocabulary.
        table: ParamId,
        /// Output.
        out: ValueId,
        /// Multiplier.
        scale: f32,
    },
    /// RMS norm over `group` columns.
    Norm {
        /// Input.
        x: ValueId,
        /// Weight `[1, group]`.
        weight: ParamId,
        /// Output.
        out: ValueId,
        /// Columns normalised together.
        group: usize,
        /// Epsilon.
        eps: f32,
        /// Weight stored as its difference from 1.
        plus_one: bool,
    },
    /// One or more projections of one input.
    Linear {
        /// Input.
        x: ValueId,
        /// The projections: all split by rows (column parallel) or all by columns (row parallel).
        projections: Vec<Projection>,
    },
    /// Rotary embedding, in place: `out` takes over the buffer of `x`.
    Rope {
        /// Input.
        x: ValueId,
        /// Output.
        out: ValueId,
        /// Size of a head.
        head_dim: usize,
    },
    /// Attention.
    Attention {
        /// Queries.
        q: ValueId,
        /// Keys.
        k: ValueId,
        /// Values.
        v: ValueId,
        /// Output.
        out: ValueId,
        /// log Σexp, one column a head.
        lse: ValueId,
        /// Query heads over all ranks.
        heads: usize,
        /// Key/value heads over all ranks.
        kv_heads: usize,
        /// Size of a head.
        head_dim: usize,
        /// Multiplier of the scores.
        scale: f32,
        /// Visible keys, if limited.
        window: Option<usize>,
        /// Index among attention layers (its cache).
        cache: usize,
    },
    /// Gated activation.
    Gate {
        /// Gate.
        gate: ValueId,
        /// Up.
        up: ValueId,
        /// Output.
        out: ValueId,
        /// Which.
        activation: Activation,
    },
    /// Residual addition.
    Add {
        /// The stream.
        a: ValueId,
        /// The block's contribution: its only consumer is this node.
        b: ValueId,
        /// Output.
        out: ValueId,
    },
}

/// A model's nodes, values and parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// Values.
    pub values: Vec<Value>,
    /// Parameters.
    pub params: Vec<Param>,
    /// Nodes in execution order.
    pub nodes: Vec<Node>,
    /// Number of layers.
    pub layers: usize,
    /// The head's input: the final norm's output.
    pub hidden: Option<ValueId>,
    /// The head's weight (the embedding table when tied).
    pub head: Option<ParamId>,
    /// Words (without padding).
    pub vocab: usize,
    /// Positions that the model was made for: no sequence may be longer.
    pub max_positions: usize,
    /// Inverse rotary frequencies.
    pub inv_freq: Vec<f32>,
    /// Multiplier of rotary cosines and sines.
    pub rope_scale: f32,
    /// Shape of each attention layer's cache rows: key/value heads over all ranks, and head size.
    pub caches: Vec<(usize, usize)>,
}

impl Graph {
    /// Adds a value.
    pub fn value(&mut self, value: Value) -> ValueId {
        self.values.push(value);
        ValueId(self.values.len() as u32 - 1)
    }

    /// Adds a parameter.
    pub fn param(&mut self, param: Param) -> ParamId {
        self.params.push(param);
        ParamId(self.params.len() as u32 - 1)
    }

    /// A value.
    pub fn value_info(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A parameter.
    pub fn param_info(&self, id: ParamId) -> &Param {
        &self.params[id.0 as usize]
    }

    /// Every parameter id.
    pub fn param_ids(&self) -> impl Iterator<Item = ParamId> + use<> {
        (0..self.params.len() as u32).map(ParamId)
    }

    /// Leaves of the padded vocabulary, in which the head's sums are taken; none without a head.
    pub fn vocab_leaves(&self) -> Vec<std::ops::Range<usize>> {
        match self.head.map(|head| &self.param_info(head).split) {
            Some(Split::Rows(cut)) => cut.local_leaves(1, 0),
            _ => vec![],
        }
    }

    /// Elements of trained parameters.
    pub fn trainable_elements(&self) -> usize {
        self.params.iter().filter(|p| p.trainable).map(Param::elements).sum()
    }
}

impl Node {
    /// Values that the node makes, inner activations included.
    pub fn outputs(&self) -> Vec<ValueId> {
        match self {
            Node::Embed { out, .. }
            | Node::Norm { out, .. }
            | Node::Rope { out, .. }
            | Node::Gate { out, .. }
            | Node::Add { out, .. } => vec![*out],
            Node::Attention { out, lse, .. } => vec![*out, *lse],
            Node::Linear { projections, .. } => projections
                .iter()
                .flat_map(|p| [Some(p.out), p.lora.as_ref().map(|l| l.h)])
                .flatten()
                .collect(),
        }
    }

    /// Values that the node reads.
    pub fn inputs(&self) -> Vec<ValueId> {
        match self {
            Node::Embed { .. } => vec![],
            Node::Norm { x, .. } | Node::Rope { x, .. } | Node::Linear { x, .. } => vec![*x],
            Node::Attention { q, k, v, .. } => vec![*q, *k, *v],
            Node::Gate { gate, up, .. } => vec![*gate, *up],
            Node::Add { a, b, .. } => vec![*a, *b],
        }
    }

    /// Parameters that the node reads.
    pub fn params(&self) -> Vec<ParamId> {
        match self {
            Node::Embed { table, .. } => vec![*table],
            Node::Norm { weight, .. } => vec![*weight],
            Node::Linear { projections, .. } => projections
                .iter()
                .flat_map(|p| {
                    [
                        Some(p.weight),
                        p.bias,
                        p.lora.as_ref().map(|l| l.a),
                        p.lora.as_ref().map(|l| l.b),
                    ]
                })
                .flatten()
                .collect(),
            _ => vec![],
        }
    }
}
