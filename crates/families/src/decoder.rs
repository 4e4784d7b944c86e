//! The dense decoder that the families share: pre-norm attention with grouped heads and a gated feed-forward.

use crate::adapt::{self, LoraSpec, Train};
use crate::error::FamilyError;
use crate::{BuildOptions, Model, rope};
use formats::ModelConfig;
use program::graph::{Class, Lora, Node, Param, Projection, Split, Value};
use program::ops::Activation;
use program::topology::{Cut, VOCAB_TILE, padded_vocab};
use program::{DType, Graph, ParamId, ValueId};

/// A configuration with what it does not say of its family.
pub(crate) struct Shape<'a> {
    pub(crate) config: &'a ModelConfig,
    /// Whether q and k heads are normalised before the rotation.
    pub(crate) head_norm: bool,
}

/// A linear module of a layer.
struct Module {
    /// Path below the layer: `self_attn.q_proj`.
    path: &'static str,
    rows: usize,
    cols: usize,
    split: Split,
    bias: bool,
}

struct Builder<'a> {
    shape: &'a Shape<'a>,
    options: &'a BuildOptions,
    graph: Graph,
    /// Cuts of query columns, key/value columns, and the feed-forward.
    query: Cut,
    key: Cut,
    ffn: Cut,
}

pub(crate) fn build(shape: &Shape<'_>, options: &BuildOptions) -> Result<Model, FamilyError> {
    let config = shape.config;
    let groups = Cut::new(config.num_key_value_heads, 1, options.width);
    let group = config.num_attention_heads / config.num_key_value_heads;
    let mut builder = Builder {
        shape,
        options,
        graph: Graph {
            layers: config.num_hidden_layers,
            vocab: config.vocab_size,
            max_positions: config.max_position_embeddings,
            caches: vec![(config.num_key_value_heads, config.head_dim); config.num_hidden_layers],
            ..Graph::default()
        },
        query: groups.scaled(group * config.head_dim),
        key: groups.scaled(config.head_dim),
        ffn: Cut::new(config.intermediate_size, 1, options.width),
    };
    (builder.graph.inv_freq, builder.graph.rope_scale) = rope::frequencies(config);
    let patterns = match options.train.lora() {
        None => Vec::new(),
        Some(spec) => builder.match_lora(spec)?,
    };
    builder.model();
    Ok(Model { graph: builder.graph, patterns })
}

impl Builder<'_> {
    fn attention_modules(&self) -> [Module; 4] {
        let c = self.shape.config;
        let (query, key) = (self.query.len(), self.key.len());
        let module = |path, rows, cols, split, bias| Module { path, rows, cols, split, bias };
        let rows = |cut: &Cut| Split::Rows(cut.clone());
        [
            module("self_attn.q_proj", query, c.hidden_size, rows(&self.query), c.attention_bias),
            module("self_attn.k_proj", key, c.hidden_size, rows(&self.key), c.attention_bias),
            module("self_attn.v_proj", key, c.hidden_size, rows(&self.key), c.attention_bias),
            module(
                "self_attn.o_proj",
                c.hidden_size,
                query,
                Split::Cols(self.query.clone()),
                c.attention_output_bias,
            ),
        ]
    }

    fn ffn_modules(&self) -> [Module; 3] {
        let c = self.shape.config;
        let (hidden, ffn) = (c.hidden_size, c.intermediate_size);
        let module = |path, rows, cols, split| Module { path, rows, cols, split, bias: c.mlp_bias };
        [
            module("mlp.gate_proj", ffn, hidden, Split::Rows(self.ffn.clone())),
            module("mlp.up_proj", ffn, hidden, Split::Rows(self.ffn.clone())),
            module("mlp.down_proj", hidden, ffn, Split::Cols(self.ffn.clone())),
        ]
    }

    fn match_lora(&self, spec: &LoraSpec) -> Result<Vec<adapt::PatternMatch>, FamilyError> {
        spec.check()?;
        let all: Vec<Module> =
            self.attention_modules().into_iter().chain(self.ffn_modules()).collect();
        let layers = self.shape.config.num_hidden_layers;
        let modules: Vec<(usize, String)> = (0..layers)
            .flat_map(|l| all.iter().map(move |m| (l, module_path(l, m.path))))
            .collect();
        let patterns = adapt::match_patterns(&spec.targets, &modules, layers)?;
        let matched =
            all.iter().filter(|m| (0..layers).any(|l| is_target(spec, &module_path(l, m.path))));
        let smallest =
            matched.min_by_key(|m| m.rows.min(m.cols)).expect("patterns match something");
        let limit = smallest.rows.min(smallest.cols);
        if spec.r == 0 || spec.r > limit {
            return Err(FamilyError::Rank { r: spec.r, limit, module: smallest.path.into() });
        }
        Ok(patterns)
    }

    fn model(&mut self) {
        let c = self.shape.config;
        let padded = padded_vocab(c.vocab_size, self.options.width);
        let vocab = Cut::new(padded / VOCAB_TILE, VOCAB_TILE, self.options.width);
        let mut table = |name: &str| {
            self.graph.param(Param {
                name: name.into(),
                rows: c.vocab_size,
                padded_rows: padded,
                cols: c.hidden_size,
                split: Split::Rows(vocab.clone()),
                dtype: self.options.weights,
                adapter: false,
                trainable: self.options.train == Train::Full,
                decay: true,
            })
        };
        let embedding = table("model.embed_tokens.weight");
        let head = if c.tie_word_embeddings { embedding } else { table("lm_head.weight") };
        self.graph.head = Some(head);
        let mut x = self.value("embed", c.hidden_size, None, None, Class::Residual);
        self.graph.nodes.push(Node::Embed { table: embedding, out: x, scale: 1.0 });
        for layer in 0..c.num_hidden_layers {
            x = self.attention_block(layer, x);
            x = self.ffn_block(layer, x);
        }
        let weight = self.norm_weight("model.norm.weight", c.hidden_size);
        let hidden = self.value("hidden", c.hidden_size, None, None, Class::Normed);
        self.norm(x, weight, hidden, c.hidden_size);
        self.graph.hidden = Some(hidden);
    }

    fn attention_block(&mut self, layer: usize, x: ValueId) -> ValueId {
        let c = self.shape.config;
        let (query, key) = (self.query.clone(), self.key.clone());
        let normed = self.layer_norm(layer, "input_layernorm", "attn_norm", x);
        let [q_proj, k_proj, v_proj, o_proj] = self.attention_modules();
        let mut q = self.layer_value(layer, "q", &query, Class::Projected);
        let mut k = self.layer_value(layer, "k", &key, Class::Projected);
        let v = self.layer_value(layer, "v", &key, Class::Rotated);
        let projections = vec![
            self.projection(layer, &q_proj, q),
            self.projection(layer, &k_proj, k),
            self.projection(layer, &v_proj, v),
        ];
        self.graph.nodes.push(Node::Linear { x: normed, projections });
        if self.shape.head_norm {
            q = self.head_norm(layer, "q", q, &query);
            k = self.head_norm(layer, "k", k, &key);
        }
        q = self.rotate(layer, "q_rot", q, &query);
        k = self.rotate(layer, "k_rot", k, &key);
        let out = self.layer_value(layer, "attn", &query, Class::Attended);
        let heads = query.scaled_down(c.head_dim);
        let lse = self.layer_value(layer, "lse", &heads, Class::Attended);
        self.graph.nodes.push(Node::Attention {
            q,
            k,
            v,
            out,
            lse,
            heads: c.num_attention_heads,
            kv_heads: c.num_key_value_heads,
            head_dim: c.head_dim,
            scale: 1.0 / (c.head_dim as f32).sqrt(),
            window: None,
            cache: layer,
        });
        self.output_block(layer, &o_proj, out, x, "o", "mid", Class::Middle)
    }

    fn ffn_block(&mut self, layer: usize, x: ValueId) -> ValueId {
        let ffn = self.ffn.clone();
        let normed = self.layer_norm(layer, "post_attention_layernorm", "ffn_norm", x);
        let [gate_proj, up_proj, down_proj] = self.ffn_modules();
        let gate = self.layer_value(layer, "gate", &ffn, Class::Gated);
        let up = self.layer_value(layer, "up", &ffn, Class::Gated);
        let projections =
            vec![self.projection(layer, &gate_proj, gate), self.projection(layer, &up_proj, up)];
        self.graph.nodes.push(Node::Linear { x: normed, projections });
        let act = self.layer_value(layer, "act", &ffn, Class::Activated);
        self.graph.nodes.push(Node::Gate { gate, up, out: act, activation: Activation::Silu });
        self.output_block(layer, &down_proj, act, x, "down", "out", Class::Residual)
    }

    /// A projection back to the residual stream, and its addition.
    #[allow(clippy::too_many_arguments)]
    fn output_block(
        &mut self,
        layer: usize,
        module: &Module,
        input: ValueId,
        stream: ValueId,
        delta: &str,
        sum: &str,
        class: Class,
    ) -> ValueId {
        let hidden = self.shape.config.hidden_size;
        let delta =
            self.value(&format!("{layer}.{delta}"), hidden, None, Some(layer), Class::Delta);
        let projections = vec![self.projection(layer, module, delta)];
        self.graph.nodes.push(Node::Linear { x: input, projections });
        let out = self.value(&format!("{layer}.{sum}"), hidden, None, Some(layer), class);
        self.graph.nodes.push(Node::Add { a: stream, b: delta, out });
        out
    }

    fn value(
        &mut self,
        name: &str,
        cols: usize,
        cut: Option<&Cut>,
        layer: Option<usize>,
        class: Class,
    ) -> ValueId {
        self.graph.value(Value { name: name.into(), cols, cut: cut.cloned(), layer, class })
    }

    fn layer_value(&mut self, layer: usize, name: &str, cut: &Cut, class: Class) -> ValueId {
        self.value(&format!("{layer}.{name}"), cut.len(), Some(cut), Some(layer), class)
    }

    fn norm(&mut self, x: ValueId, weight: ParamId, out: ValueId, group: usize) {
        let eps = self.shape.config.rms_norm_eps as f32;
        self.graph.nodes.push(Node::Norm { x, weight, out, group, eps, plus_one: false });
    }

    fn norm_weight(&mut self, name: &str, cols: usize) -> ParamId {
        self.vector(name, cols, Split::Replicated)
    }

    /// A row vector `[1, cols]`, f32, without weight decay.
    fn vector(&mut self, name: &str, cols: usize, split: Split) -> ParamId {
        self.graph.param(Param {
            name: name.into(),
            rows: 1,
            padded_rows: 1,
            cols,
            split,
            dtype: DType::F32,
            adapter: false,
            trainable: self.options.train == Train::Full,
            decay: false,
        })
    }

    fn layer_norm(&mut self, layer: usize, module: &str, name: &str, x: ValueId) -> ValueId {
        let hidden = self.shape.config.hidden_size;
        let weight = self.norm_weight(&format!("model.layers.{layer}.{module}.weight"), hidden);
        let out = self.value(&format!("{layer}.{name}"), hidden, None, Some(layer), Class::Normed);
        self.norm(x, weight, out, hidden);
        out
    }

    fn head_norm(&mut self, layer: usize, which: &str, x: ValueId, cut: &Cut) -> ValueId {
        let head_dim = self.shape.config.head_dim;
        let weight = self
            .norm_weight(&format!("model.layers.{layer}.self_attn.{which}_norm.weight"), head_dim);
        let out = self.layer_value(layer, &format!("{which}_norm"), cut, Class::Rotated);
        self.norm(x, weight, out, head_dim);
        out
    }

    fn rotate(&mut self, layer: usize, name: &str, x: ValueId, cut: &Cut) -> ValueId {
        let out = self.layer_value(layer, name, cut, Class::Rotated);
        self.graph.nodes.push(Node::Rope { x, out, head_dim: self.shape.config.head_dim });
        out
    }

    fn projection(&mut self, layer: usize, module: &Module, out: ValueId) -> Projection {
        let path = module_path(layer, module.path);
        let full = self.options.train == Train::Full;
        let weight = self.graph.param(Param {
            name: format!("{path}.weight").into(),
            rows: module.rows,
            padded_rows: module.rows,
            cols: module.cols,
            split: module.split.clone(),
            dtype: self.options.weights,
            adapter: false,
            trainable: full,
            decay: true,
        });
        let bias = module.bias.then(|| {
            // A bias follows the output features; those of a row-parallel module are whole on every rank.
            let split = match &module.split {
                Split::Rows(cut) => Split::Cols(cut.clone()),
                _ => Split::Replicated,
            };
            self.vector(&format!("{path}.bias"), module.rows, split)
        });
        let lora = match self.options.train.lora() {
            Some(spec) if is_target(spec, &path) => {
                Some(self.lora(layer, &path, module, spec, out))
            }
            _ => None,
        };
        Projection { weight, bias, lora, out }
    }

    fn lora(
        &mut self,
        layer: usize,
        path: &str,
        module: &Module,
        spec: &LoraSpec,
        out: ValueId,
    ) -> Lora {
        let trainable = matches!(self.options.train, Train::Lora(_));
        let (a_split, b_split) = match &module.split {
            Split::Rows(cut) => (Split::Replicated, Split::Rows(cut.clone())),
            Split::Cols(cut) => (Split::Cols(cut.clone()), Split::Replicated),
            Split::Replicated => (Split::Replicated, Split::Replicated),
        };
        let mut matrix = |which: &str, rows: usize, cols: usize, split: Split| {
            self.graph.param(Param {
                name: format!("base_model.model.{path}.lora_{which}.weight").into(),
                rows,
                padded_rows: rows,
                cols,
                split,
                dtype: DType::F32,
                adapter: true,
                trainable,
                decay: true,
            })
        };
        let a = matrix("A", spec.r, module.cols, a_split);
        let b = matrix("B", module.rows, spec.r, b_split);
        let name = format!("{}.lora", self.graph.value_info(out).name);
        let h = self.value(&name, spec.r, None, Some(layer), Class::Lora);
        Lora { a, b, scale: spec.scale(), h }
    }
}

fn module_path(layer: usize, path: &str) -> String {
    format!("model.layers.{layer}.{path}")
}

fn is_target(spec: &LoraSpec, path: &str) -> bool {
    spec.targets.iter().any(|pattern| adapt::matches(pattern, path))
}
