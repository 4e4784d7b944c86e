//! A small model, its batches, and updates of it on a topology.

use super::common;
use canon::random::{Numbers, Purpose};
use engine::{Blueprint, Engine, EngineError, Hyper, INACTIVE, Job, MicroBatch, Part, Sequence};
use fabric::Ranks;
use families::{BuildOptions, Train};
use formats::ModelConfig;
use program::graph::Param;
use program::keep::Level;
use program::{Graph, Topology};

/// Words of the model.
const WORDS: u64 = 200;
/// Token capacity of a micro-batch.
pub(crate) const TOKENS: usize = 64;
/// Updates of a test.
const UPDATES: usize = 2;

/// A model and how it is trained.
pub(crate) struct Case {
    pub(crate) graph: Graph,
    /// Micro-batches of each step.
    pub(crate) micro_batches: [usize; UPDATES],
    /// Whether coefficients are known before the forward pass.
    pub(crate) coef_known: bool,
}

/// A llama with biases, or a qwen3 with head norms.
pub(crate) fn graph(kv_heads: usize, tied: bool, bias: bool, train: &Train) -> Graph {
    let (name, kind) =
        if bias { ("LlamaForCausalLM", "llama") } else { ("Qwen3ForCausalLM", "qwen3") };
    let json = serde_json::json!({
        "architectures": [name], "model_type": kind, "hidden_act": "silu",
        "vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2,
        "num_attention_heads": 2 * kv_heads, "num_key_value_heads": kv_heads, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 256,
        "tie_word_embeddings": tied, "attention_bias": bias, "mlp_bias": bias,
    });
    let config = ModelConfig::from_json(json.as_object().unwrap().clone()).unwrap();
    let options = BuildOptions { train: train.clone(), ..BuildOptions::default() };
    families::build(&config, &options).unwrap().graph
}

/// Values of a parameter, the same for every topology.
fn values(param: &Param, index: u64) -> Vec<f32> {
    let mut values = vec![0f32; param.rows * param.cols];
    let (low, high) = if param.name.contains("norm") { (0.5, 1.5) } else { (-0.3, 0.3) };
    Numbers::new(3, Purpose::Init, index).fill_uniform(0, low, high, &mut values);
    values
}

/// Sequences of unequal length that context ranks cut; of the shortest batches the last context ranks have nothing.
pub(crate) fn batch(index: u64) -> MicroBatch {
    let numbers = Numbers::new(5, Purpose::Sample, index);
    let mut position = 0;
    let mut sequence = |length: usize| {
        let mut next = || {
            position += 1;
            numbers.below(position, WORDS) as u32
        };
        let ids: Vec<u32> = (0..length).map(|_| next()).collect();
        let mut targets: Vec<u32> = ids[1..].to_vec();
        targets.push(INACTIVE);
        targets[0] = INACTIVE;
        let coef = (0..length).map(|t| 0.02 * (t as f32 - 4.0)).collect();
        Sequence { ids, targets, coef, ..Sequence::default() }
    };
    let lengths: &[usize] =
        [&[23, 5, 30][..], &[17, 4], &[40], &[3, 9, 6, 2], &[60]][index as usize % 5];
    MicroBatch { sequences: lengths.iter().map(|&length| sequence(length)).collect() }
}

/// Everything that an update must repeat, as bits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Update {
    pub(crate) logp: Vec<Vec<u32>>,
    pub(crate) norm: u32,
    pub(crate) scale: u32,
    /// By parameter: value, gradient, moments.
    pub(crate) parameters: Vec<(String, [Option<Vec<u32>>; 4])>,
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

pub(crate) fn hyper() -> Hyper {
    Hyper { lr: 1e-2, beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.1, max_grad_norm: 0.05 }
}

pub(crate) fn job(case: &Case) -> Job {
    let mut job = common::train_job(TOKENS, 4, Level::Input);
    if let Some(train) = &mut job.train {
        train.accumulation = case.micro_batches.into_iter().max().unwrap();
        train.coef_known = case.coef_known;
    }
    job
}

/// An engine of one rank of a topology with its weights.
pub(crate) fn engine<'a>(
    case: &Case,
    topology: Topology,
    member: &'a mut fabric::Member<'_>,
) -> Result<Engine<'a>, EngineError> {
    let executor = common::cpu(1);
    let workspace =
        |op: &program::Op, program: &program::Program| executor.workspace_bytes(op, program);
    let blueprint = Blueprint::new(&case.graph, topology, member.rank(), job(case), &workspace);
    let planned = blueprint.ledger;
    let mut engine =
        Engine::new(case.graph.clone(), blueprint, executor)?.with_exchange(Box::new(member));
    assert_eq!(engine.ledger(), planned, "what is allocated was planned");
    for id in case.graph.param_ids() {
        let values = values(case.graph.param_info(id), u64::from(id.0));
        engine.write_whole(id, &values);
    }
    Ok(engine)
}

/// Runs the case's updates on every rank; all ranks must see the same.
pub(crate) fn updates(case: &Case, topology: Topology) -> Vec<Update> {
    let ranks = Ranks::new(topology).run(|member| -> Result<_, EngineError> {
        let mut engine = engine(case, topology, member)?;
        let mut first = 0;
        let mut seen = Vec::new();
        for (step, total) in case.micro_batches.into_iter().enumerate() {
            seen.push(update(case, &mut engine, first, total, step as u64 + 1)?);
            first += total as u64;
        }
        Ok(seen)
    });
    let mut ranks = ranks.unwrap_or_else(|error| panic!("{topology:?}: {error}"));
    let first = ranks.remove(0);
    for (rank, other) in ranks.iter().enumerate() {
        assert!(*other == first, "{topology:?}: rank {} saw something else", rank + 1);
    }
    first
}

fn update(
    case: &Case,
    engine: &mut Engine<'_>,
    first: u64,
    total: usize,
    step: u64,
) -> Result<Update, EngineError> {
    let mut mine = Vec::new();
    for index in engine.micro_batches_of(total) {
        let batch = batch(first + index as u64);
        mine.push(if case.coef_known {
            engine.train_micro_batch(&batch, index, total)?
        } else {
            let coef: Vec<f32> =
                batch.sequences.iter().flat_map(|s| s.coef.iter().copied()).collect();
            let logp = engine.forward_micro_batch(&batch, index, total)?;
            engine.backward_micro_batch(&coef)?;
            logp
        });
    }
    let logp = engine.gather_micro_batches(total, mine)?;
    let report = engine.update(&hyper(), step)?;
    let mut parameters = Vec::new();
    for id in case.graph.param_ids() {
        let parts = [Part::Value, Part::Gradient, Part::FirstMoment, Part::SecondMoment];
        let mut values = [const { None }; 4];
        for (to, part) in values.iter_mut().zip(parts) {
            *to = engine.gather_whole(id, part)?.map(|values| bits(&values));
        }
        parameters.push((case.graph.param_info(id).name.to_string(), values));
    }
    Ok(Update {
        logp: logp.iter().map(|values| bits(values)).collect(),
        norm: report.grad_norm.to_bits(),
        scale: report.grad_scale.to_bits(),
        parameters,
    })
}
