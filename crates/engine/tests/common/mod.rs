//! Tiny models with golden values of transformers and peft.

#![allow(dead_code, unreachable_pub)]

use arena::Executor;
use engine::{Blueprint, Engine, INACTIVE, Job, MicroBatch, Sequence, TrainShape};
use families::{BuildOptions, LoraSpec, Train};
use formats::Checkpoint;
use program::keep::{Keep, Level};
use program::{Rank, Topology};
use safetensors::SafeTensors;
use std::path::PathBuf;

/// Every folder of golden values.
pub const MODELS: [&str; 9] = [
    "llama",
    "llama_tied",
    "llama_bias",
    "llama_rope_linear",
    "llama_rope_llama3",
    "llama_rope_dynamic",
    "llama_rope_yarn",
    "qwen2",
    "qwen3",
];

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../families/tests/golden").join(name)
}

/// Golden tensors by name.
pub struct Golden {
    bytes: Vec<u8>,
}

impl Golden {
    pub fn open(model: &str) -> Golden {
        let path = folder(model).join("golden.safetensors");
        Golden { bytes: std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())) }
    }

    pub fn f32(&self, name: &str) -> Vec<f32> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap_or_else(|e| panic!("{name}: {e}"));
        tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn i64(&self, name: &str) -> Vec<i64> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).unwrap();
        tensor.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
    }

    pub fn names(&self, prefix: &str) -> Vec<String> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let mut names: Vec<String> = tensors
            .names()
            .into_iter()
            .filter_map(|n| n.strip_prefix(prefix).map(str::to_string))
            .collect();
        names.sort();
        names
    }

    /// The sequences with their supervised targets and the coefficients of the mean loss over them.
    pub fn batch(&self) -> MicroBatch {
        let (ids, targets) = (self.i64("ids"), self.i64("targets"));
        let active = targets.iter().filter(|&&t| t >= 0).count();
        let mut row = 0;
        let sequences = self.i64("lengths").into_iter().map(|length| {
            let range = row..row + length as usize;
            row = range.end;
            let targets: Vec<u32> = targets[range.clone()]
                .iter()
                .map(|&t| if t < 0 { INACTIVE } else { t as u32 })
                .collect();
            Sequence {
                ids: ids[range].iter().map(|&i| i as u32).collect(),
                coef: targets
                    .iter()
                    .map(|&t| if t == INACTIVE { 0.0 } else { -1.0 / active as f32 })
                    .collect(),
                targets,
                ..Sequence::default()
            }
        });
        MicroBatch { sequences: sequences.collect() }
    }
}

pub fn oracle() -> Box<dyn Executor> {
    Box::new(oracle::Oracle::new(oracle::Precision::F32))
}

pub fn cpu(threads: usize) -> Box<dyn Executor> {
    let settings = cpu::Settings { threads, precision: cpu::Precision::F32, isa: None };
    Box::new(cpu::Cpu::new(settings).unwrap())
}

pub fn lora_spec() -> LoraSpec {
    LoraSpec { r: 4, alpha: 8.0, rslora: false, targets: vec!["all-linear".into()] }
}

pub fn train_job(tokens: usize, segments: usize, level: Level) -> Job {
    Job {
        train: Some(TrainShape {
            tokens,
            segments,
            accumulation: 1,
            keep: Keep::uniform(level),
            coef_known: true,
        }),
        ..Job::default()
    }
}

/// An engine of one rank over a model folder, weights loaded.
pub fn engine<'a>(
    model: &str,
    train: Train,
    job: Job,
    executor: Box<dyn Executor + 'a>,
) -> Engine<'a> {
    let options = BuildOptions { train, ..BuildOptions::default() };
    let checkpoint = Checkpoint::open(&folder(model)).unwrap();
    let graph = families::build(checkpoint.config(), &options).unwrap().graph;
    let workspace =
        |op: &program::Op, program: &program::Program| executor.workspace_bytes(op, program);
    let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
    if let Some(compiled) = &blueprint.train {
        assert_eq!(program::plan::overlapping(&compiled.program, &compiled.plan), None);
        let idle = program::plan::idle(&compiled.program);
        let line =
            |i: usize| program::listing::op_line(&compiled.program, &compiled.program.ops[i]);
        assert_eq!(idle.map(line), None, "computed for nothing");
    }
    let mut engine = Engine::new(graph, blueprint, executor).unwrap();
    engine.load(&checkpoint, &mut |_| ()).unwrap();
    engine
}

/// Largest difference over largest magnitude.
pub fn relative(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    let scale = theirs.iter().fold(0f32, |m, x| m.max(x.abs()));
    let worst = ours.iter().zip(theirs).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
    worst / scale.max(1e-30)
}
