//! `samebit merge`: an adapter and its base as one Hugging Face checkpoint.

use crate::infer;
use crate::model::{self, Model, Source};
use crate::output;
use crate::progress;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use formats::merged::{self, DEFAULT_MAX_SHARD_BYTES, Description};
use formats::peft::{Adapter, Module};
use formats::safetensors::OutputTensor;
use formats::{Checkpoint, Dtype, TensorInfo};
use half::bf16;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

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
    /// Without progress bars
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    source: Source,
}

/// Types that merged weights are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MergedType {
    F32,
    Bf16,
}

/// Rows merged at a time.
const TILE_ROWS: usize = 64;

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
    let model = model::open(&args.model, &args.source, args.quiet)?;
    let adapter = infer::open_adapter(&args.adapter)?;
    merge(&model, &adapter, &args.out, args.dtype, args.quiet)?;
    output::print(&format!(
        "merged {} modules into {}\n",
        adapter.modules().len(),
        args.out.display()
    ))
}

fn merge(
    model: &Model,
    adapter: &Adapter,
    out: &Path,
    dtype: Option<MergedType>,
    quiet: bool,
) -> Result<()> {
    let checkpoint = &model.checkpoint;
    check(checkpoint, adapter)?;
    let dtype = match dtype {
        Some(MergedType::Bf16) => Dtype::Bf16,
        Some(MergedType::F32) => Dtype::F32,
        None if checkpoint.config().dtype == Dtype::Bf16 => Dtype::Bf16,
        None => Dtype::F32,
    };
    let companions = companions(model)?;
    let extra: Vec<(&str, &[u8])> =
        companions.iter().map(|(n, bytes)| (n.as_str(), bytes.as_slice())).collect();
    let bar = progress::count("merging", checkpoint.tensors().len() as u64, quiet);
    let tied = checkpoint.config().tie_word_embeddings;
    let tensors = checkpoint
        .tensors()
        .iter()
        .filter(|t| !(tied && t.name == "lm_head.weight"))
        .map(|tensor| {
            let module = adapter.modules().iter().find(|m| weight_of(m) == tensor.name);
            let bar = bar.clone();
            OutputTensor::new(tensor.name.clone(), dtype, tensor.shape.clone(), move |writer| {
                write_tensor(checkpoint, tensor, module.map(|m| (adapter, m)), dtype, writer)?;
                bar.inc(1);
                Ok(())
            })
        })
        .collect();
    let description = Description {
        config: checkpoint.config(),
        dtype,
        generation_config: checkpoint.generation_config(),
        extra_files: &extra,
        max_shard_bytes: DEFAULT_MAX_SHARD_BYTES,
    };
    merged::write(out, description, tensors)?;
    bar.finish_and_clear();
    Ok(())
}

/// Every module of the adapter must be a matrix of the base, of the same shape.
fn check(checkpoint: &Checkpoint, adapter: &Adapter) -> Result<()> {
    let mut seen = HashSet::new();
    for module in adapter.modules() {
        if !seen.insert(&module.name) {
            bail!("the adapter has `{}` twice", module.name);
        }
        checkpoint
            .require(&weight_of(module), &[module.out_features, module.in_features])
            .context("the adapter was made for another model")?;
    }
    Ok(())
}

fn weight_of(module: &Module) -> String {
    format!("{}.weight", module.name)
}

/// Writes a tensor, with `scale · B·A` added in f32 where a module changes it; one rounding at the end.
fn write_tensor(
    checkpoint: &Checkpoint,
    tensor: &TensorInfo,
    module: Option<(&Adapter, &Module)>,
    dtype: Dtype,
    writer: &mut dyn Write,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let width = tensor.row_elements();
    let factors = match module {
        None => None,
        Some((adapter, module)) => {
            let mut a = vec![0f32; module.rank * module.in_features];
            let mut b = vec![0f32; module.out_features * module.rank];
            adapter.read_a(module, &mut a)?;
            adapter.read_b(module, &mut b)?;
            Some((a, b, module.rank, module.scale as f32))
        }
    };
    let mut rows = vec![0f32; TILE_ROWS * width];
    for start in (0..tensor.rows()).step_by(TILE_ROWS) {
        let end = (start + TILE_ROWS).min(tensor.rows());
        let rows = &mut rows[..(end - start) * width];
        checkpoint.read_rows_f32(&tensor.name, start..end, rows)?;
        if let Some((a, b, rank, scale)) = &factors {
            for (row, out) in rows.chunks_mut(width).enumerate() {
                add_product(out, &b[(start + row) * rank..][..*rank], a, *scale);
            }
        }
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

/// `out += scale · b·A`: the product is summed alone, over ranks ascending, then added.
fn add_product(out: &mut [f32], b: &[f32], a: &[f32], scale: f32) {
    let width = out.len();
    let mut sum = vec![0f32; width];
    for (k, &b) in b.iter().enumerate() {
        for (sum, &a) in sum.iter_mut().zip(&a[k * width..][..width]) {
            *sum += b * a;
        }
    }
    for (out, sum) in out.iter_mut().zip(sum) {
        *out += scale * sum;
    }
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
