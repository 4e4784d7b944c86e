//! `samebit export`: a model, or an adapter alone, as one GGUF file.

use crate::base::{self, Base, OtherBase};
use crate::model::{self, Model, Source};
use crate::output;
use crate::progress;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use formats::Dtype;
use formats::export::{self, Written};
use formats::gguf::Metadata;
use formats::merged::Weights;
use formats::peft::Adapter;
use program::ledger::Bytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use text::{ChatTemplate, TemplateError};

/// Arguments of `samebit export`.
#[derive(clap::Args)]
#[group(skip)]
pub(crate) struct Args {
    /// Model reference
    model: String,
    /// PEFT adapter folder: merged into the model with --gguf, written alone with --lora-gguf
    #[arg(long)]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Storage of matrices; vectors stay f32 [default: bf16]
    #[arg(long = "type", value_enum, value_name = "TYPE", conflicts_with = "lora_gguf")]
    dtype: Option<StoredType>,
    #[command(flatten)]
    other: OtherBase,
    /// Without progress bars
    #[arg(long)]
    quiet: bool,
    /// Machine-readable report
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    source: Source,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
struct Target {
    /// Model file to write; it must not exist
    #[arg(long, value_name = "FILE")]
    gguf: Option<PathBuf>,
    /// Adapter file to write, for `--lora` of llama.cpp; it must not exist
    #[arg(long, value_name = "FILE", requires = "adapter")]
    lora_gguf: Option<PathBuf>,
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum StoredType {
    /// 4 bytes a number
    F32,
    /// 2 bytes a number, the range of f32
    Bf16,
    /// 2 bytes a number, up to 65504
    F16,
    /// 8.5 bits a number
    #[value(name = "q8_0")]
    Q8_0,
    /// 4.5 bits a number; embedding and head in q8_0
    #[value(name = "q4_0")]
    Q4_0,
}

impl StoredType {
    fn dtype(self) -> Dtype {
        match self {
            StoredType::F32 => Dtype::F32,
            StoredType::Bf16 => Dtype::Bf16,
            StoredType::F16 => Dtype::F16,
            StoredType::Q8_0 => Dtype::Q8_0,
            StoredType::Q4_0 => Dtype::Q4_0,
        }
    }
}

/// The report.
#[derive(Serialize)]
struct Exported {
    file: PathBuf,
    bytes: u64,
    /// Tensors by storage.
    tensors: BTreeMap<String, usize>,
    /// Modules of the adapter; 0 without one.
    modules: usize,
    /// With an adapter.
    base: Option<Base>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let quiet = args.quiet || args.json;
    let Some(file) = args.target.gguf.as_ref().or(args.target.lora_gguf.as_ref()) else {
        bail!("nothing to write: give --gguf or --lora-gguf");
    };
    if file.exists() {
        bail!("{} exists: choose another file, or remove it first", file.display());
    }
    let model = model::open(&args.model, &args.source, quiet)?;
    let adapter = args.adapter.as_deref().map(base::open).transpose()?;
    let weights = Weights::new(&model.checkpoint, adapter.as_ref())?;
    let base = match &adapter {
        Some(adapter) => Some(base::identify(&model, adapter, &args.other, quiet)?),
        None => None,
    };
    let modules = adapter.as_ref().map_or(0, |a| a.modules().len());
    if let Some(adapter) = &adapter {
        refuse_untrained(adapter)?;
    }
    let written = match (&args.target.lora_gguf, &adapter) {
        (Some(file), Some(adapter)) => write_adapter(file, adapter, &model)?,
        _ => {
            let dtype = args.dtype.unwrap_or(StoredType::Bf16).dtype();
            write_model(file, &args.model, &model, &weights, dtype, quiet)?
        }
    };
    let tensors = written.tensors.iter().map(|(dtype, &n)| (dtype.to_string(), n)).collect();
    let report = Exported { file: file.clone(), bytes: written.bytes, tensors, modules, base };
    output::report(args.json, &report, text)
}

/// Refuses an adapter that changes nothing, as `merge` does by comparing logits.
fn refuse_untrained(adapter: &Adapter) -> Result<()> {
    for module in adapter.modules() {
        let mut b = vec![0f32; module.out_features * module.rank];
        adapter.read_b(module, &mut b)?;
        if b.iter().any(|&x| x != 0.0) {
            return Ok(());
        }
    }
    bail!(
        "{}: its B are zero, so that it changes nothing and there is nothing to export (was it trained?)",
        adapter.path().display()
    )
}

fn write_adapter(file: &Path, adapter: &Adapter, model: &Model) -> Result<Written> {
    let bytes = export::write_adapter(file, adapter, model.checkpoint.config())?;
    let tensors = BTreeMap::from([(Dtype::F32, 2 * adapter.modules().len())]);
    Ok(Written { bytes, tensors })
}

fn write_model(
    file: &Path,
    reference: &str,
    model: &Model,
    weights: &Weights<'_>,
    dtype: Dtype,
    quiet: bool,
) -> Result<Written> {
    let vocabulary = vocabulary(model)?;
    // What follows the last slash of a path or of owner/name.
    let name = reference.trim_end_matches('/').rsplit('/').next().unwrap_or(reference);
    let export = export::Model { weights, name, vocabulary: &vocabulary, dtype };
    let bar = progress::count("writing", weights.tensors().count() as u64, quiet);
    let written = export::write_model(file, &export, &|| bar.inc(1))?;
    bar.finish_and_clear();
    Ok(written)
}

/// Tokenizer and chat template: what is inside a GGUF as it is, or made from a folder's files.
fn vocabulary(model: &Model) -> Result<Metadata> {
    if let Some(metadata) = model.checkpoint.gguf_metadata() {
        return Ok(metadata.clone());
    }
    let tokenizer = model.tokenizer()?;
    let template = match ChatTemplate::from_folder(model.checkpoint.path()) {
        Ok(template) => Some(template),
        // A base model has none.
        Err(TemplateError::Missing { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    let config = model.checkpoint.config();
    tokenizer
        .to_gguf(config.vocab_size, &config.eos_token_ids, template.as_ref())
        .with_context(|| model.checkpoint.path().display().to_string())
}

fn text(report: &Exported) -> String {
    let tensors: Vec<String> =
        report.tensors.iter().map(|(dtype, count)| format!("{count} {dtype}")).collect();
    let what = match report.modules {
        0 => String::new(),
        modules => format!(" · {modules} modules of the adapter"),
    };
    let mut text = format!(
        "wrote {} · {} · tensors: {}{what}\n",
        report.file.display(),
        Bytes(report.bytes as usize),
        tensors.join(", ")
    );
    if let Some(base) = &report.base {
        text.push_str(&format!("base: {} · {}\n", base.model, base.weights));
    }
    text
}
