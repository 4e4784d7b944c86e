//! Models, samples, and the ways to compute that must change no bit.

use super::common::{self, Golden};
use arena::Executor;
use canon::random::{Numbers, Purpose};
use cpu::Isa;
use engine::{Blueprint, Engine, INACTIVE, Job, MicroBatch, Sequence};
use families::{BuildOptions, Train};
use formats::{Checkpoint, ModelConfig};
use program::graph::Param;
use program::{DType, Op, Program, Rank, Topology};

/// An arithmetic profile: the oracle's and the fast executor's are two types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    F32,
    Bf16,
    Bf16Tiles,
}

impl Profile {
    /// Those of long samples: attention is f32 in all, and runs contain pairs.
    pub(crate) const OF_LONG: [Profile; 2] = [Profile::F32, Profile::Bf16Tiles];
}

/// What is part of a result's identity: a change of it may change bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) model: Model,
    pub(crate) weights: DType,
    pub(crate) profile: Profile,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Model {
    /// A folder of golden values.
    Golden(&'static str),
    /// A random qwen3 with a context of 4,096: room for more than one span of 1,024 keys.
    Long,
}

/// Golden cases: every two of model, storage and profile are met together.
pub(crate) fn cases() -> [Case; 6] {
    let case = |model, weights, profile| Case { model: Model::Golden(model), weights, profile };
    [
        case("qwen3", DType::F32, Profile::F32),
        case("qwen3", DType::Bf16, Profile::Bf16),
        case("llama", DType::F32, Profile::Bf16),
        case("llama", DType::Bf16, Profile::F32),
        case("qwen3", DType::F32, Profile::Bf16Tiles),
        case("llama", DType::Bf16, Profile::Bf16Tiles),
    ]
}

/// What is no part of it: the oracle, or kernels of an instruction set on some threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Oracle,
    Cpu(Isa, usize),
}

impl Way {
    /// Every way of this machine, the oracle first.
    pub(crate) fn all() -> Vec<Way> {
        let kernels = Isa::available().into_iter();
        let kernels = kernels.flat_map(|isa| [1, 2].map(|threads| Way::Cpu(isa, threads)));
        std::iter::once(Way::Oracle).chain(kernels).collect()
    }

    /// The oracle, the best kernels on two threads, and the plainest on one: for what takes long.
    pub(crate) fn some() -> [Way; 3] {
        [Way::Oracle, Way::Cpu(Isa::best(), 2), Way::Cpu(Isa::Portable, 1)]
    }

    pub(crate) fn executor(self, profile: Profile) -> Box<dyn Executor> {
        match (self, profile) {
            (Way::Oracle, profile) => {
                let precision = match profile {
                    Profile::F32 => oracle::Precision::F32,
                    Profile::Bf16 => oracle::Precision::Bf16,
                    Profile::Bf16Tiles => oracle::Precision::Bf16Tiles,
                };
                Box::new(oracle::Oracle::new(precision))
            }
            (Way::Cpu(isa, threads), profile) => {
                let precision = match profile {
                    Profile::F32 => cpu::Precision::F32,
                    Profile::Bf16 => cpu::Precision::Bf16,
                    Profile::Bf16Tiles => cpu::Precision::Bf16Tiles,
                };
                let settings = cpu::Settings { threads, precision, isa: Some(isa) };
                Box::new(cpu::Cpu::new(settings).unwrap())
            }
        }
    }
}

/// A qwen3 of two layers: 2 key/value heads of 16, 150 words.
fn long_config() -> ModelConfig {
    let json = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "vocab_size": 150, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096,
        "tie_word_embeddings": true, "attention_bias": false,
    });
    ModelConfig::from_json(json.as_object().unwrap().clone()).unwrap()
}

/// Random values of a parameter, by its name; padding rows are zero.
fn values(param: &Param) -> Vec<f32> {
    let mut values = vec![0f32; param.padded_rows * param.cols];
    let (low, high) = if param.name.contains("norm") { (0.5, 1.5) } else { (-0.3, 0.3) };
    let stream = param.name.bytes().fold(0, |hash: u64, b| hash.wrapping_mul(31) + u64::from(b));
    let numbers = Numbers::new(11, Purpose::Init, stream);
    numbers.fill_uniform(0, low, high, &mut values[..param.elements()]);
    values
}

impl Case {
    /// An engine with weights loaded; LoRA matrices, B included, have random values.
    pub(crate) fn engine(self, train: Train, job: Job, way: Way) -> Engine<'static> {
        let executor = way.executor(self.profile);
        let options = BuildOptions { weights: self.weights, train, ..BuildOptions::default() };
        let checkpoint = match self.model {
            Model::Golden(name) => Some(Checkpoint::open(&common::folder(name)).unwrap()),
            Model::Long => None,
        };
        let config = checkpoint.as_ref().map_or_else(long_config, |c| c.config().clone());
        let graph = families::build(&config, &options).unwrap().graph;
        let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
        let blueprint = Blueprint::new(&graph, Topology::single(), Rank::FIRST, job, &workspace);
        let mut engine = Engine::new(graph, blueprint, executor).unwrap();
        for id in engine.graph.param_ids() {
            let param = engine.graph.param_info(id);
            if param.adapter || checkpoint.is_none() {
                let values = values(param);
                engine.write_whole(id, &values);
            }
        }
        if let Some(checkpoint) = &checkpoint {
            engine.load(checkpoint, &mut |_| ()).unwrap();
        }
        engine
    }

    /// Samples of unequal length, every next token a target, with unequal coefficients.
    pub(crate) fn samples(self) -> Vec<Sequence> {
        match self.model {
            Model::Golden(name) => {
                let sequences = Golden::open(name).batch().sequences;
                sequences.into_iter().map(|s| sequence(s.ids)).collect()
            }
            Model::Long => [LONG, 30].map(|length| sequence(random_ids(length))).into(),
        }
    }
}

/// Tokens of the long sample: one span of keys, and a part of a second.
pub(crate) const LONG: usize = 1_103;

fn random_ids(length: usize) -> Vec<u32> {
    let numbers = Numbers::new(13, Purpose::Sample, length as u64);
    (0..length as u64).map(|position| numbers.below(position, 150) as u32).collect()
}

fn sequence(ids: Vec<u32>) -> Sequence {
    let targets = ids[1..].iter().copied().chain([INACTIVE]).collect();
    let coef = (0..ids.len()).map(|t| -0.02 - 0.001 * (t % 37) as f32).collect();
    Sequence { ids, targets, coef, ..Sequence::default() }
}

/// The samples at some indexes, in that order.
pub(crate) fn pack(samples: &[Sequence], order: &[usize]) -> MicroBatch {
    MicroBatch { sequences: order.iter().map(|&i| samples[i].clone()).collect() }
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Every gradient of a training engine, by parameter.
pub(crate) fn gradients(engine: &Engine<'_>) -> Vec<(String, Vec<f32>)> {
    let gradient = |id| Some((engine.graph.param_info(id).name.to_string(), engine.read_grad(id)?));
    engine.graph.param_ids().filter_map(gradient).collect()
}

/// Fails where a gradient's bytes differ, naming the parameter and the element.
pub(crate) fn assert_same_gradients(
    ours: &[(String, Vec<f32>)],
    theirs: &[(String, Vec<f32>)],
    what: &str,
) {
    assert_eq!(ours.len(), theirs.len(), "{what}: as many gradients");
    for ((name, ours), (_, theirs)) in ours.iter().zip(theirs) {
        let (ours, theirs) = (bits(ours), bits(theirs));
        let first = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        assert!(
            ours.len() == theirs.len() && first.is_none(),
            "{what}: {name} differs at {first:?}"
        );
    }
}
