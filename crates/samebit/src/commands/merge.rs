//! `samebit merge`: an adapter and its base as one Hugging Face checkpoint.

use crate::base::{self, Base, OtherBase};
use crate::device::{Compute, Device};
use crate::merge_check::{self, Check};
use crate::model::{self, Model, Source};
use crate::output;
use crate::progress;
use anyhow::{Context, Result};
use clap::ValueEnum;
use formats::merged::{self, DEFAULT_MAX_SHARD_BYTES, Description, Weights};
use formats::safetensors::OutputTensor;
use formats::{Checkpoint, Dtype, TensorInfo};
use half::bf16;
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::PathBuf;
use train::Facts;

/// Arguments of `samebit merge`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Model reference of the base
    model: String,
    /// PEFT adapter folder
    adapter: PathBuf,
    /// Folder to write; it must not exist, or be empty
    #[arg(long)]
    out: PathBuf,
    /// Type of the merged weights [default: bf16 for a bf16 base, else f32]
    #[arg(long, value_enum)]
    dtype: Option<MergedType>,
    /// Do not compare the merged model's logits with those of base and adapter
    #[arg(long)]
    no_check: bool,
    #[command(flatten)]
    other: OtherBase,
    /// Without progress bars
    #[arg(long)]
    quiet: bool,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    source: Source,
}

/// Types that merged weights are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MergedType {
    F32,
    Bf16,
}

/// The report.
#[derive(Serialize)]
struct Merged {
    out: PathBuf,
    files: Vec<PathBuf>,
    modules: usize,
    dtype: Option<&'static str>,
    base: Base,
    /// Null with --no-check.
    check: Option<Check>,
}

/// Rows merged at a time.
const TILE_ROWS: usize = 64;

/// What a merged model was made of, beside its weights.
const ORIGIN_FILE: &str = "samebit.json";

/// Files of a Hugging Face folder that go along unchanged.
const COMPANIONS: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "added_tokens.json",
];

pub(crate) fn run(args: Args) -> Result<()> {
    let quiet = args.quiet || args.json;
    let model = model::open(&args.model, &args.source, quiet)?;
    let adapter = base::open(&args.adapter)?;
    let weights = Weights::new(&model.checkpoint, Some(&adapter))?;
    let base = base::identify(&model, &adapter, &args.other, quiet)?;
    let dtype = dtype(&model.checkpoint, args.dtype);
    let mut companions = companions(&model)?;
    let origin = json!({
        "base_weights": base.weights, "base_model": args.model, "adapter": args.adapter, "merged_by": version(),
    });
    companions.push((ORIGIN_FILE.into(), serde_json::to_vec_pretty(&origin)?));
    let extra: Vec<(&str, &[u8])> =
        companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let bar = progress::count("merging", model.checkpoint.tensors().len() as u64, quiet);
    let tensors = weights.tensors().map(|info| {
        let (bar, weights) = (bar.clone(), &weights);
        OutputTensor::new(info.name.clone(), dtype, info.shape.clone(), move |writer| {
            write_tensor(weights, info, dtype, writer)?;
            bar.inc(1);
            Ok(())
        })
    });
    let description = Description {
        config: model.checkpoint.config(),
        dtype,
        generation_config: model.checkpoint.generation_config(),
        extra_files: &extra,
        max_shard_bytes: DEFAULT_MAX_SHARD_BYTES,
    };
    let staged = merged::stage(&args.out, description, tensors.collect())?;
    bar.finish_and_clear();
    let check = if args.no_check {
        None
    } else {
        let checkpoint = Checkpoint::open(staged.path())?;
        let merged = Model::new(checkpoint, args.out.display().to_string());
        let device = Device::new(&args.compute)?;
        let check = merge_check::check(&model, &adapter, &merged, &device, quiet);
        Some(check.context("the merge was checked and is not kept (--no-check leaves this out)")?)
    };
    let files = staged.commit()?;
    let modules = adapter.modules().len();
    let report = Merged { out: args.out, files, modules, dtype: dtype.torch_name(), base, check };
    output::report(args.json, &report, text)
}

/// This program, for what it writes.
fn version() -> &'static str {
    concat!("samebit ", env!("CARGO_PKG_VERSION"))
}

fn dtype(checkpoint: &Checkpoint, wanted: Option<MergedType>) -> Dtype {
    match wanted {
        Some(MergedType::Bf16) => Dtype::Bf16,
        Some(MergedType::F32) => Dtype::F32,
        // As training takes it: by the tensors; a configuration may say bf16 of f32 weights.
        None if Facts::of(checkpoint).stored_as_bf16 => Dtype::Bf16,
        None => Dtype::F32,
    }
}

fn text(report: &Merged) -> String {
    let mut text = format!(
        "merged {} modules into {} ({})\nbase: {} · {}\n",
        report.modules,
        report.out.display(),
        report.dtype.unwrap_or("?"),
        report.base.model,
        report.base.weights
    );
    if let Some(check) = &report.check {
        text.push_str(&format!(
            "checked on {} tokens: logits differ from base + adapter by {:.1e} (at most {:.0e}), from the base by {:.1e}\n",
            check.tokens, check.error, check.bound, check.change
        ));
    }
    text
}

/// Writes a tensor; one rounding at the end.
fn write_tensor(
    weights: &Weights<'_>,
    info: &TensorInfo,
    dtype: Dtype,
    writer: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let tensor = weights.tensor(info)?;
    let width = info.row_elements();
    let mut rows = vec![0f32; TILE_ROWS * width];
    for start in (0..info.rows()).step_by(TILE_ROWS) {
        let end = (start + TILE_ROWS).min(info.rows());
        let rows = &mut rows[..(end - start) * width];
        tensor.read_rows(start..end, rows)?;
        if dtype == Dtype::Bf16 {
            for value in rows {
                writer.write_all(&bf16::from_f32(*value).to_le_bytes())?;
            }
        } else {
            for value in rows {
                writer.write_all(&value.to_le_bytes())?;
            }
        }
    }
    Ok(())
}

/// Tokenizer and chat template: a folder's own files, or made from what is inside a GGUF.
pub(crate) fn companions(model: &Model) -> Result<Vec<(String, Vec<u8>)>> {
    if model.checkpoint.gguf_metadata().is_none() {
        let folder = model.checkpoint.path();
        let mut files = Vec::new();
        for name in COMPANIONS {
            let path = folder.join(name);
            if path.is_file() {
                let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
                files.push((name.to_string(), bytes));
            }
        }
        return Ok(files);
    }
    let tokenizer = model.tokenizer()?;
    let mut config = serde_json::Map::new();
    config.insert("tokenizer_class".into(), "PreTrainedTokenizerFast".into());
    config.insert("add_bos_token".into(), tokenizer.adds_bos().into());
    for (name, text) in tokenizer.special_tokens().iter() {
        config.insert(name.into(), text.into());
    }
    if let Some(metadata) = model.checkpoint.gguf_metadata()
        && let Some(template) = metadata.str("tokenizer.chat_template")?
    {
        config.insert("chat_template".into(), template.into());
    }
    Ok(vec![
        ("tokenizer.json".into(), tokenizer.to_json()?.into_bytes()),
        ("tokenizer_config.json".into(), serde_json::to_vec_pretty(&config)?),
    ])
}
