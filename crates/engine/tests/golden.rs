//! Against transformers and peft: log-probs, logits, and every gradient, on tiny models of every family.

mod common;

use arena::Executor;
use common::{Golden, MODELS, engine, folder, lora_spec, relative, train_job};
use engine::{Advance, EngineError, GenerateShape, Job, MicroBatch};
use families::Train;
use formats::peft::Adapter;
use program::keep::Level;

type Make = fn() -> Box<dyn Executor>;

fn executors() -> [(&'static str, Make); 2] {
    [("oracle", common::oracle), ("cpu", || common::cpu(2))]
}

/// The golden sequences that the model takes: dynamic rope changes its base past the trained length, which is refused.
fn batch(model: &str, golden: &Golden) -> MicroBatch {
    let mut batch = golden.batch();
    if model == "llama_rope_dynamic" {
        batch.sequences.retain(|s| s.ids.len() <= 24);
    }
    batch
}

fn segments(batch: &MicroBatch) -> (usize, usize) {
    (batch.tokens(), batch.sequences.len())
}

#[test]
fn log_probs_of_every_family() {
    for (name, executor) in executors() {
        for model in MODELS {
            let golden = Golden::open(model);
            let mut batch = batch(model, &golden);
            for sequence in &mut batch.sequences {
                let next = sequence.ids[1..].iter().copied().chain([engine::INACTIVE]);
                sequence.targets = next.collect();
            }
            let job = Job { score: Some(segments(&batch)), ..Job::default() };
            let logp = engine(model, Train::Nothing, job, executor()).score(&batch).unwrap();
            let theirs = golden.f32("logprobs");
            let error = relative(&logp, &theirs[..logp.len()]);
            assert!(error < 1e-4, "{name} {model}: {error}");
        }
    }
}

/// Operands of 8 bits leave log-probs within a percent.
#[test]
fn log_probs_in_the_bf16_profiles() {
    for precision in [cpu::Precision::Bf16, cpu::Precision::Bf16Tiles] {
        for model in MODELS {
            let golden = Golden::open(model);
            let mut batch = batch(model, &golden);
            for sequence in &mut batch.sequences {
                let next = sequence.ids[1..].iter().copied().chain([engine::INACTIVE]);
                sequence.targets = next.collect();
            }
            let job = Job { score: Some(segments(&batch)), ..Job::default() };
            let settings = cpu::Settings { threads: 2, precision, isa: None };
            let executor = Box::new(cpu::Cpu::new(settings).unwrap());
            let logp = engine(model, Train::Nothing, job, executor).score(&batch).unwrap();
            let theirs = golden.f32("logprobs");
            let error = relative(&logp, &theirs[..logp.len()]);
            println!("{precision:?} {model}: {error:e}");
            assert!(error > 1e-5 && error < 1e-2, "{precision:?} {model}: {error}");
        }
    }
}

#[test]
fn logits_of_every_family_one_token_at_a_time() {
    for (name, executor) in executors() {
        for model in MODELS {
            let golden = Golden::open(model);
            let batch = batch(model, &golden);
            let length = batch.sequences.iter().map(|s| s.ids.len()).max().unwrap();
            let generate = GenerateShape::full(batch.sequences.len(), length, 8);
            let job = Job { generate: Some(generate), ..Job::default() };
            let mut engine = engine(model, Train::Nothing, job, executor());
            let theirs = golden.f32("logits");
            let vocab = engine.graph.vocab;
            let mut row = 0;
            for (slot, sequence) in batch.sequences.iter().enumerate() {
                let pages = generate.slot(slot);
                for past in 0..sequence.ids.len() {
                    let ids = &sequence.ids[past..past + 1];
                    let piece = Advance { pages: &pages, past, ids, logits: true };
                    let ours = engine.advance(&[piece]).unwrap();
                    let theirs = &theirs[(row + past) * vocab..(row + past + 1) * vocab];
                    let error = relative(&ours[0], theirs);
                    assert!(error < 1e-4, "{name} {model} sequence {slot} token {past}: {error}");
                }
                row += sequence.ids.len();
            }
        }
    }
}

#[test]
fn gradients_of_every_parameter() {
    for (name, executor) in executors() {
        for model in MODELS.into_iter().filter(|&m| m != "llama_rope_dynamic") {
            let golden = Golden::open(model);
            let batch = golden.batch();
            let (tokens, sequences) = segments(&batch);
            let job = train_job(tokens, sequences, Level::All);
            let mut engine = engine(model, Train::Full, job, executor());
            engine.train_micro_batch(&batch, 0, 1).unwrap();
            compare_gradients(&engine, &golden, "grad.", &format!("{name} {model}"));
        }
    }
}

#[test]
fn gradients_of_every_lora_matrix_at_every_keep_level() {
    for (name, executor) in executors() {
        for model in MODELS.into_iter().filter(|&m| m != "llama_rope_dynamic") {
            let golden = Golden::open(model);
            let batch = golden.batch();
            let (tokens, sequences) = segments(&batch);
            let adapter = Adapter::open(&folder(model).join("adapter")).unwrap();
            let mut kept: Option<Vec<Vec<u32>>> = None;
            for level in Level::ALL {
                let job = train_job(tokens, sequences, level);
                let mut engine = engine(model, Train::Lora(lora_spec()), job, executor());
                engine.load_adapter(&adapter).unwrap();
                engine.train_micro_batch(&batch, 0, 1).unwrap();
                compare_gradients(&engine, &golden, "lora.grad.", &format!("{name} {model}"));
                let bits: Vec<Vec<u32>> = engine
                    .graph
                    .param_ids()
                    .filter_map(|id| engine.read_grad(id))
                    .map(|grad| grad.iter().map(|g| g.to_bits()).collect())
                    .collect();
                let first = kept.get_or_insert_with(|| bits.clone());
                assert_eq!(*first, bits, "{name} {model}: recomputing at {level:?} changed a bit");
            }
        }
    }
}

fn compare_gradients(engine: &engine::Engine<'_>, golden: &Golden, prefix: &str, what: &str) {
    let mut compared = 0;
    for id in engine.graph.param_ids() {
        let Some(ours) = engine.read_grad(id) else { continue };
        let param = engine.graph.param_info(id);
        let theirs = golden.f32(&format!("{prefix}{}", param.name));
        let (ours, padding) = ours.split_at(param.elements());
        assert!(padding.iter().all(|&g| g == 0.0), "{what} {}: padding has a gradient", param.name);
        let error = relative(ours, &theirs);
        assert!(error < 1e-3, "{what} {}: {error}", param.name);
        compared += 1;
    }
    assert_eq!(compared, golden.names(prefix).len(), "{what}: every golden gradient is compared");
}

#[test]
fn a_sequence_past_the_trained_context_is_refused() {
    let golden = Golden::open("llama_rope_dynamic");
    let batch = golden.batch();
    let job = Job { score: Some(segments(&batch)), ..Job::default() };
    let (_, executor) = executors()[0];
    let refused = engine("llama_rope_dynamic", Train::Nothing, job, executor()).score(&batch);
    assert!(matches!(refused, Err(EngineError::TooLong { length: 33, limit: 24, .. })));
}
