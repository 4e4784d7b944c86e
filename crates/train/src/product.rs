//! What a run leaves: a PEFT adapter, or a whole checkpoint.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use engine::{Engine, EngineError, Part};
use families::LoraSpec;
use formats::merged::{DEFAULT_MAX_SHARD_BYTES, Description};
use formats::peft::{AdapterConfig, Origin, TargetModules};
use formats::safetensors::OutputTensor;
use formats::{Checkpoint, Dtype, FormatError};
use program::graph::Param;
use program::{Graph, ParamId};

/// The adapter's folder in a run's folder.
pub const ADAPTER: &str = "adapter";
/// The tuned model's folder in a run's folder.
const MODEL: &str = "model";

/// Where the product of a run goes.
pub fn path(folder: &Path, lora: bool) -> PathBuf {
    folder.join(if lora { ADAPTER } else { MODEL })
}

/// Writes the adapter as a PEFT folder, which names the weights that it was trained on. On the first rank, while
/// the others follow.
///
/// # Errors
/// Whatever writing gives.
pub fn adapter(
    folder: &Path,
    engine: &Engine<'_>,
    spec: &LoraSpec,
    base: &str,
    checkpoint: &Checkpoint,
) -> Result<(), EngineError> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let base_weights = checkpoint.fingerprint(threads, &|_| ())?;
    let origin = Origin { base_weights, base_model: base.to_owned() };
    let config = AdapterConfig {
        r: spec.r,
        lora_alpha: spec.alpha,
        lora_dropout: 0.0,
        use_rslora: spec.rslora,
        target_modules: TargetModules::Names(target_modules(&engine.graph)),
        rank_pattern: Vec::new(),
        alpha_pattern: Vec::new(),
        base_model_name_or_path: Some(base.to_owned()),
    };
    engine.save_adapter(folder, &config, Some(&origin))
}

/// The adapted modules as peft is to find them: by the last part of their name where every module of that name is
/// adapted, else by their whole path.
fn target_modules(graph: &Graph) -> Vec<String> {
    let last = |module: &str| module.rsplit('.').next().unwrap_or(module).to_owned();
    let adapted: BTreeSet<&str> =
        graph.params.iter().filter_map(|param| families::lora_module(&param.name)).collect();
    let plain: HashSet<String> = graph
        .params
        .iter()
        .filter(|param| !param.adapter)
        .filter_map(|param| param.name.strip_suffix(".weight"))
        .filter(|module| !adapted.contains(module))
        .map(last)
        .collect();
    let name = |&module: &&str| {
        let name = last(module);
        if plain.contains(&name) { module.to_owned() } else { name }
    };
    adapted.iter().map(name).collect::<BTreeSet<String>>().into_iter().collect()
}

/// Writes the tuned model as a Hugging Face checkpoint in f32, the type in which it was trained. On the first rank, while
/// the others follow.
///
/// # Errors
/// Whatever writing gives.
pub fn model(
    folder: &Path,
    engine: &Engine<'_>,
    checkpoint: &Checkpoint,
    extra_files: &[(&str, &[u8])],
) -> Result<(), FormatError> {
    let tensors = engine.graph.param_ids().map(|id| tensor(engine, id)).collect();
    let description = Description {
        config: checkpoint.config(),
        dtype: Dtype::F32,
        generation_config: checkpoint.generation_config(),
        extra_files,
        max_shard_bytes: DEFAULT_MAX_SHARD_BYTES,
    };
    formats::merged::write(folder, description, tensors)?;
    Ok(())
}

fn tensor<'a>(engine: &'a Engine<'_>, id: ParamId) -> OutputTensor<'a> {
    let param = engine.graph.param_info(id);
    let elements = param.elements();
    OutputTensor::new(param.name.to_string(), Dtype::F32, shape(param), move |writer| {
        // Rows past the vocabulary's are padding.
        let mut left = elements;
        engine.visit_served(id, Part::Value, |numbers| {
            let numbers = &numbers[..left.min(numbers.len())];
            left -= numbers.len();
            Ok(writer.write_all(bytemuck::cast_slice(numbers))?)
        })
    })
}

/// The shape in files: norms and biases are vectors there.
fn shape(param: &Param) -> Vec<usize> {
    if param.is_vector() { vec![param.cols] } else { vec![param.rows, param.cols] }
}
