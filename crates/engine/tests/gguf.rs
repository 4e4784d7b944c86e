//! GGUF files against transformers: the f32 file gives the logits of the safetensors it was made from (rows of llama's
//! q and k are permuted in it), the Q8_0 file those of the dequantized weights.

mod common;

use common::{Golden, folder, relative};
use engine::{Advance, Blueprint, Engine, GenerateShape, Job, MicroBatch};
use families::BuildOptions;
use formats::Checkpoint;
use program::{Op, Program, Rank, Topology};
use std::path::Path;

/// Every folder of golden values with a `gguf` folder.
const MODELS: [&str; 3] = ["llama_tied", "llama_rope_llama3", "qwen3"];

fn engine(file: &Path, generate: GenerateShape) -> Engine<'static> {
    let checkpoint = Checkpoint::open(file).unwrap();
    let graph = families::build(checkpoint.config(), &BuildOptions::default()).unwrap().graph;
    let executor = common::cpu(2);
    let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
    let job = Job { generate: Some(generate), ..Job::default() };
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    let mut engine = Engine::new(graph, blueprint, executor).unwrap();
    engine.load(&checkpoint, &mut |_| ()).unwrap();
    engine
}

/// Logits `[tokens, vocab]` of every sequence, decoded one token at a time.
fn logits(file: &Path, batch: &MicroBatch) -> Vec<f32> {
    let length = batch.sequences.iter().map(|s| s.ids.len()).max().unwrap();
    let mut engine = engine(file, GenerateShape::full(1, length, 1));
    let pages = engine.blueprint.job.generate.unwrap().slot(0);
    let mut logits = Vec::new();
    for sequence in &batch.sequences {
        for (past, id) in sequence.ids.iter().enumerate() {
            let ids = std::slice::from_ref(id);
            let advance = Advance { pages: &pages, past, ids, logits: true };
            logits.extend(engine.advance(&[advance]).unwrap().swap_remove(0));
        }
    }
    logits
}

#[test]
fn f32_files_give_the_logits_of_their_safetensors() {
    for model in MODELS {
        let golden = Golden::open(model);
        let ours = logits(&folder(model).join("gguf/f32.gguf"), &golden.batch());
        let error = relative(&ours, &golden.f32("logits"));
        assert!(error < 1e-4, "{model}: {error}");
    }
}

#[test]
fn f32_files_give_the_bits_of_their_safetensors() {
    for model in MODELS {
        let batch = Golden::open(model).batch();
        let bits = |file: &Path| -> Vec<u32> {
            logits(file, &batch).iter().map(|logit| logit.to_bits()).collect()
        };
        assert!(bits(&folder(model).join("gguf/f32.gguf")) == bits(&folder(model)), "{model}");
    }
}

#[test]
fn q8_0_files_give_the_logits_of_the_dequantized_weights() {
    for model in MODELS {
        let (golden, quantized) = (Golden::open(model), Golden::open(&format!("{model}/gguf")));
        let ours = logits(&folder(model).join("gguf/q8_0.gguf"), &golden.batch());
        let error = relative(&ours, &quantized.f32("q8_0.logits"));
        assert!(error < 1e-4, "{model}: {error}");
        let lost = relative(&ours, &golden.f32("logits"));
        assert!(lost > 1e-4, "{model}: quantized weights are not the f32 ones ({lost})");
    }
}
