//! The same bits on every topology: log-probs and every gradient of TP 2, 4, 8 and CP 2, 4 are the bytes of one rank.

mod common;

use canon::random::{Numbers, Purpose};
use engine::{Blueprint, Engine, EngineError, INACTIVE, Job, Kept, MicroBatch, Sequence};
use fabric::Ranks;
use families::{BuildOptions, Train};
use formats::ModelConfig;
use program::graph::{Param, Split};
use program::keep::Level;
use program::lower::Head;
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
        Sequence { ids, targets, coef, ..Sequence::default() }
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
    run_batch(config, train, topology, level, (Head::default(), &batch()))
}

fn run_batch(
    config: &ModelConfig,
    train: &Train,
    topology: Topology,
    level: Level,
    work: (Head, &MicroBatch),
) -> Vec<Outcome> {
    let ranks = try_run(config, train, topology, level, work);
    ranks.unwrap_or_else(|error| panic!("{topology:?}: {error}"))
}

fn try_run(
    config: &ModelConfig,
    train: &Train,
    topology: Topology,
    level: Level,
    (head, batch): (Head, &MicroBatch),
) -> Result<Vec<Outcome>, Box<fabric::RunError<EngineError>>> {
    let graph = graph(config, train);
    let job = Job { head, ..common::train_job(128, 3, level) };
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
        let logp = engine.train_micro_batch(batch, 0, 1)?;
        let grads = graph.param_ids().map(|id| engine.read_grad(id).map(|g| bits(&g))).collect();
        Ok(Outcome { rank, logp: bits(&logp), grads })
    });
    ranks.map_err(Box::new)
}

/// A batch with coefficients of every measure, whose rows keep different candidates; targets that are dropped are none.
fn truncated_batch(config: &ModelConfig, train: &Train, head: Head) -> MicroBatch {
    let mut batch = batch();
    for sequence in &mut batch.sequences {
        let kept = |t| Kept { logit: [-1e3, -1.0, 0.0][t % 3], id: u32::MAX };
        sequence.kept = (0..sequence.ids.len()).map(kept).collect();
        sequence.coef_full = sequence.coef.iter().map(|c| 0.5 * c).collect();
        sequence.coef_entropy = sequence.coef.iter().map(|c| 0.25 * c).collect();
    }
    loop {
        match try_run(config, train, Topology::single(), Level::All, (head, &batch)) {
            Ok(_) => break,
            Err(error) => {
                let row = dropped_row(&error.to_string());
                let mut targets = batch.sequences.iter_mut().flat_map(|s| &mut s.targets);
                *targets.nth(row).unwrap() = INACTIVE;
            }
        }
    }
    assert!(batch.active() > 60 && batch.active() < 105, "{} active", batch.active());
    batch
}

/// The row that an error about a dropped target names.
fn dropped_row(message: &str) -> usize {
    assert!(message.contains("is not among the candidates kept"), "{message}");
    let (_, after) = message.split_once("row ").unwrap();
    after.split_once(':').unwrap().0.parse().unwrap()
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
    same_batch(config, train, degrees, (Head::default(), &batch()));
}

fn same_batch(
    config: &ModelConfig,
    train: &Train,
    degrees: &[(usize, usize)],
    work: (Head, &MicroBatch),
) {
    let graph = graph(config, train);
    let one = run_batch(config, train, Topology::single(), Level::All, work).remove(0);
    assert!(one.logp.iter().any(|&l| l != 0), "log-probs are not all zero");
    let trained = one.grads.iter().flatten().count();
    let moved = one.grads.iter().flatten().filter(|g| g.iter().any(|&b| b << 1 != 0)).count();
    assert_eq!(trained, moved, "every trained parameter has a gradient");
    for &(tp, cp) in degrees {
        let topology = Topology::new(tp, cp).unwrap();
        for outcome in run_batch(config, train, topology, Level::Input, work) {
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

/// A policy with a temperature, dropped candidates and an entropy, with coefficients of every measure.
#[test]
fn training_a_truncated_policy() {
    let head = Head { scale: 1.25, truncated: true, entropy: true };
    let degrees = [(2, 1), (8, 1), (1, 4), (2, 2)];
    for (config, train) in
        [(config(8, false), Train::Lora(common::lora_spec())), (config(8, true), Train::Full)]
    {
        let batch = truncated_batch(&config, &train, head);
        same_batch(&config, &train, &degrees, (head, &batch));
    }
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
