//! The same bits on every topology: log-probs and every gradient of TP 2, 4, 8 and CP 2, 4 are the bytes of one rank.

mod common;

use canon::random::{Numbers, Purpose};
use engine::{Blueprint, Engine, EngineError, INACTIVE, Job, MicroBatch, Sequence};
use fabric::Ranks;
use families::{BuildOptions, Train};
use formats::ModelConfig;
use program::graph::{Param, Split};
use program::keep::Level;
use program::{Graph, Rank, Topology};

/// A small qwen3: 8 key/value heads of 16, a feed-forward of 72 (nine rows a leaf), 200 words (padded to 1,024).
fn config(kv_heads: usize, tied: bool) -> ModelConfig {
    let json = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": 200, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2,
        "num_attention_heads": 2 * kv_heads, "num_key_value_heads": kv_heads, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 256,
        "tie_word_embeddings": tied, "attention_bias": false,
    });
    ModelConfig::from_json(json.as_object().unwrap().clone()).unwrap()
}

fn graph(config: &ModelConfig, train: &Train) -> Graph {
    let options = BuildOptions { train: train.clone(), ..BuildOptions::default() };
    families::build(config, &options).unwrap().graph
}

/// Random values of a parameter, the same for every topology; padding rows are zero.
fn values(param: &Param, index: u64) -> Vec<f32> {
    let mut values = vec![0f32; param.padded_rows * param.cols];
    let (low, high) = if param.name.contains("norm") { (0.5, 1.5) } else { (-0.3, 0.3) };
    Numbers::new(3, Purpose::Init, index).fill_uniform(
        0,
        low,
        high,
        &mut values[..param.elements()],
    );
    values
}

/// Sequences of unequal length, so that context ranks cut some of them; the last rank has few tokens or none.
fn batch() -> MicroBatch {
    let numbers = Numbers::new(5, Purpose::Sample, 0);
    let mut position = 0;
    let mut sequence = |length: usize| {
        let mut next = || {
            position += 1;
            numbers.below(position, 200) as u32
        };
        let ids: Vec<u32> = (0..length).map(|_| next()).collect();
        let mut targets: Vec<u32> = ids[1..].to_vec();
        targets.push(INACTIVE);
        targets[0] = INACTIVE;
        let coef = (0..length).map(|t| -0.01 - 0.001 * t as f32).collect();
        Sequence { ids, targets, coef }
    };
    MicroBatch { sequences: vec![sequence(37), sequence(5), sequence(70)] }
}

/// Log-probs of a rank's tokens and the gradients that it holds, as bits.
struct Outcome {
    rank: Rank,
    logp: Vec<u32>,
    grads: Vec<Option<Vec<u32>>>,
}

fn run(config: &ModelConfig, train: &Train, topology: Topology, level: Level) -> Vec<Outcome> {
    let graph = graph(config, train);
    let batch = batch();
    let job: Job = common::train_job(128, 3, level);
    let ranks = Ranks::new(topology).run(|member| -> Result<Outcome, EngineError> {
        let rank = member.rank();
        let executor = common::cpu(1);
        let workspace =
            |op: &program::Op, program: &program::Program| executor.workspace_bytes(op, program);
        let blueprint = Blueprint::new(&graph, topology, rank, job, &workspace);
        let mut engine =
            Engine::new(graph.clone(), blueprint, executor)?.with_exchange(Box::new(member));
        for id in graph.param_ids() {
            let values = values(graph.param_info(id), u64::from(id.0));
            engine.write_whole(id, &values);
        }
        let logp = engine.train_micro_batch(&batch, 0, 1)?;
        let grads = graph.param_ids().map(|id| engine.read_grad(id).map(|g| bits(&g))).collect();
        Ok(Outcome { rank, logp: bits(&logp), grads })
    });
    ranks.unwrap_or_else(|error| panic!("{topology:?}: {error}"))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// A rank's share of a whole parameter.
fn share(param: &Param, whole: &[u32], topology: &Topology, rank: Rank) -> Vec<u32> {
    match &param.split {
        Split::Replicated => whole.to_vec(),
        Split::Rows(cut) => {
            let rows = cut.owned(topology.tp, rank.tp);
            whole[rows.start * param.cols..rows.end * param.cols].to_vec()
        }
        Split::Cols(cut) => {
            let cols = cut.owned(topology.tp, rank.tp);
            whole.chunks(param.cols).flat_map(|row| row[cols.clone()].to_vec()).collect()
        }
    }
}

fn same_as_one_rank(config: &ModelConfig, train: &Train, degrees: &[(usize, usize)]) {
    let graph = graph(config, train);
    let one = run(config, train, Topology::single(), Level::All).remove(0);
    assert!(one.logp.iter().any(|&l| l != 0), "log-probs are not all zero");
    let trained = one.grads.iter().flatten().count();
    let moved = one.grads.iter().flatten().filter(|g| g.iter().any(|&b| b << 1 != 0)).count();
    assert_eq!(trained, moved, "every trained parameter has a gradient");
    for &(tp, cp) in degrees {
        let topology = Topology::new(tp, cp).unwrap();
        for outcome in run(config, train, topology, Level::Input) {
            let rank = outcome.rank;
            assert_eq!(outcome.logp, one.logp, "tp {tp} cp {cp} {rank:?}: log-probs");
            for id in graph.param_ids() {
                let param = graph.param_info(id);
                let (Some(whole), Some(mine)) =
                    (&one.grads[id.0 as usize], &outcome.grads[id.0 as usize])
                else {
                    continue;
                };
                let theirs = share(param, whole, &topology, rank);
                assert!(*mine == theirs, "tp {tp} cp {cp} {rank:?}: gradient of {}", param.name);
            }
        }
    }
}

const DEGREES: [(usize, usize); 8] =
    [(2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (2, 2), (4, 2), (2, 4)];

#[test]
fn lora_training() {
    same_as_one_rank(&config(8, false), &Train::Lora(common::lora_spec()), &DEGREES);
}

#[test]
fn full_training() {
    same_as_one_rank(&config(8, false), &Train::Full, &DEGREES);
}

#[test]
fn full_training_with_tied_embeddings() {
    same_as_one_rank(&config(8, true), &Train::Full, &[(2, 1), (8, 1), (1, 4), (2, 2)]);
}

#[test]
fn three_key_value_heads_replicate_where_ranks_are_too_many() {
    same_as_one_rank(
        &config(3, true),
        &Train::Lora(common::lora_spec()),
        &[(2, 1), (4, 1), (8, 1), (2, 2)],
    );
}

/// The proof can fail: with another width the leaves are others, and so are the bits.
#[test]
fn another_width_is_another_identity() {
    let (config, train) = (config(8, false), Train::Lora(common::lora_spec()));
    let one = run(&config, &train, Topology::single(), Level::All).remove(0);
    let options = BuildOptions { width: 1, train: train.clone(), ..BuildOptions::default() };
    let graph = families::build(&config, &options).unwrap().graph;
    let executor = common::cpu(1);
    let workspace =
        |op: &program::Op, program: &program::Program| executor.workspace_bytes(op, program);
    let topology = Topology { width: 1, ..Topology::single() };
    let job = common::train_job(128, 3, Level::All);
    let blueprint = Blueprint::new(&graph, topology, Rank::FIRST, job, &workspace);
    let mut engine = Engine::new(graph.clone(), blueprint, executor).unwrap();
    for id in graph.param_ids() {
        let values = values(graph.param_info(id), u64::from(id.0));
        engine.write_whole(id, &values);
    }
    let logp = engine.train_micro_batch(&batch(), 0, 1).unwrap();
    assert_ne!(one.logp, bits(&logp));
}
