//! Logits over the paged cache are the bytes of one rank on every topology: the cache shared over tensor ranks by
//! key/value heads and over context ranks by pages, prompts and decoded tokens mixed in one pass.

mod common;

use canon::random::{Numbers, Purpose};
use engine::{Advance, Blueprint, Engine, EngineError, GenerateShape, Job, Row};
use fabric::Ranks;
use families::BuildOptions;
use formats::ModelConfig;
use program::ops::PAGE;
use program::{Graph, Kind, Op, Program, Topology};
use std::ops::Range;

const WORDS: u64 = 200;

/// A small qwen3 whose 200 words are padded to 1,024.
fn graph(kv_heads: usize) -> Graph {
    let json = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 72, "num_hidden_layers": 2,
        "num_attention_heads": 2 * kv_heads, "num_key_value_heads": kv_heads, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 512,
        "tie_word_embeddings": false, "attention_bias": false,
    });
    let config = ModelConfig::from_json(json.as_object().unwrap().clone()).unwrap();
    families::build(&config, &BuildOptions::default()).unwrap().graph
}

/// Tokens of a sequence.
fn ids(stream: u64, count: usize) -> Vec<u32> {
    let numbers = Numbers::new(5, Purpose::Sample, stream);
    (0..count as u64).map(|i| numbers.below(i, WORDS) as u32).collect()
}

fn load(engine: &mut Engine<'_>) {
    for id in engine.graph.param_ids() {
        let param = engine.graph.param_info(id);
        let mut values = vec![0f32; param.padded_rows * param.cols];
        let (low, high) = if param.name.contains("norm") { (0.5, 1.5) } else { (-0.3, 0.3) };
        let numbers = Numbers::new(3, Purpose::Init, u64::from(id.0));
        numbers.fill_uniform(0, low, high, &mut values[..param.elements()]);
        engine.write_whole(id, &values);
    }
}

/// Three sequences: a prompt alone; then two more in chunks beside its decoded tokens; pages out of order, the first
/// of the third sequence being the first of the first's (they begin alike).
fn passes(engine: &mut Engine<'_>) -> Result<Vec<Row>, EngineError> {
    let (first, second) = (ids(0, 150), ids(1, 90));
    let third = [&first[..PAGE], &ids(2, 40)].concat();
    let sequences = [first, second, third];
    let pages: [&[u32]; 3] = [&[7, 2, 4], &[0, 5], &[7, 3]];
    let steps: [&[(usize, Range<usize>)]; 5] = [
        &[(0, 0..140)],
        &[(0, 140..141), (1, 0..70)],
        &[(2, PAGE..100), (0, 141..142), (1, 70..71)],
        &[(1, 71..72)],
        &[(1, 72..90), (2, 100..104), (0, 142..150)],
    ];
    let mut rows = Vec::new();
    for step in steps {
        let work: Vec<Advance<'_>> = step
            .iter()
            .map(|(which, range)| Advance {
                pages: pages[*which],
                past: range.start,
                ids: &sequences[*which][range.clone()],
                logits: true,
            })
            .collect();
        rows.extend(engine.forward_pass(&work)?);
    }
    Ok(rows)
}

/// Logits of every step on every rank, and each rank's bytes of cache.
fn run(graph: &Graph, topology: Topology, interleave: usize) -> Vec<(Vec<Vec<u32>>, usize)> {
    let generate = GenerateShape { sequences: 3, length: 192, tokens: 160, pages: 8, interleave };
    let job = Job { generate: Some(generate), ..Job::default() };
    let ranks = Ranks::new(topology).run(|member| -> Result<_, EngineError> {
        let rank = member.rank();
        let executor = common::cpu(1);
        let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
        let blueprint = Blueprint::new(graph, topology, rank, job, &workspace);
        let mut engine =
            Engine::new(graph.clone(), blueprint, executor)?.with_exchange(Box::new(member));
        load(&mut engine);
        let rows = passes(&mut engine)?;
        let bits = |row: &Row| row.iter().map(|v| v.to_bits()).collect();
        Ok((rows.iter().map(bits).collect(), engine.ledger().bytes(Kind::Context)))
    });
    ranks.unwrap_or_else(|error| panic!("{topology:?}: {error}"))
}

fn same_as_one_rank(kv_heads: usize, degrees: &[(usize, usize, usize)]) {
    let graph = graph(kv_heads);
    let (one, context) = run(&graph, Topology::single(), 1).remove(0);
    assert_eq!(one.len(), 10);
    for &(tp, cp, interleave) in degrees {
        let topology = Topology::new(tp, cp).unwrap();
        for (rank, (rows, bytes)) in run(&graph, topology, interleave).into_iter().enumerate() {
            for (index, (row, wanted)) in rows.iter().zip(&one).enumerate() {
                let at = row.iter().zip(wanted).position(|(a, b)| a != b);
                assert_eq!(at, None, "tp {tp} cp {cp} rank {rank}: row {index}");
            }
            if kv_heads.is_multiple_of(tp) {
                assert_eq!(bytes, context / (tp * cp), "tp {tp} cp {cp}: a share of the cache");
            }
        }
    }
}

#[test]
fn logits_over_tensor_and_context_ranks() {
    let degrees = [
        (2, 1, 1),
        (4, 1, 1),
        (8, 1, 1),
        (1, 2, 1),
        (1, 2, 2),
        (1, 4, 1),
        (1, 4, 2),
        (2, 2, 1),
        (2, 4, 2),
        (4, 2, 1),
        (4, 4, 1),
    ];
    same_as_one_rank(8, &degrees);
}

#[test]
fn three_key_value_heads_replicate_where_ranks_are_too_many() {
    same_as_one_rank(3, &[(2, 1, 1), (4, 1, 1), (2, 2, 2)]);
}
