//! Whether an adapter was trained on the base that it meets.

use crate::model::Model;
use crate::progress;
use anyhow::Result;
use clap::Args;
use formats::FormatError;
use formats::merged::MergeError;
use formats::peft::Adapter;
use serde::Serialize;

/// Part of every command that joins an adapter and a base for good.
#[derive(Args, Clone, Debug)]
pub(crate) struct OtherBase {
    /// Take a base whose weights are not those that the adapter was trained on
    #[arg(long)]
    pub(crate) allow_other_base: bool,
}

/// The base's identity, and what is to be said about it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Base {
    pub(crate) model: String,
    /// Hash of the weights' numbers.
    pub(crate) weights: String,
    /// What the adapter says it was trained on; null where it does not say.
    pub(crate) trained_on: Option<String>,
    /// What a reader should know before relying on the result.
    pub(crate) note: Option<String>,
}

/// Hashes the base and holds it against what the adapter says.
pub(crate) fn identify(
    model: &Model,
    adapter: &Adapter,
    allowed: &OtherBase,
    quiet: bool,
) -> Result<Base> {
    let weights = fingerprint(model, quiet)?;
    let origin = adapter.origin();
    let note = match origin {
        None => Some(
            "the adapter does not say which base it was trained on (peft's do not); only shapes were compared".into(),
        ),
        Some(origin) if origin.base_weights == weights => None,
        Some(origin) if allowed.allow_other_base => Some(format!(
            "the adapter was trained on {} and this base has {weights}",
            origin.base_weights
        )),
        Some(origin) => {
            let source = MergeError::OtherBase {
                trained_on: origin.base_weights.clone(),
                reference: Some(origin.base_model.clone()),
                found: weights,
            };
            return Err(FormatError::Merge { path: model.checkpoint.path().to_owned(), source }.into());
        }
    };
    if let (Some(note), false) = (&note, quiet) {
        eprintln!("note: {note}");
    }
    let trained_on = origin.map(|origin| origin.base_weights.clone());
    Ok(Base { model: model.identity.clone(), weights, trained_on, note })
}

/// The hash of a model's weights, under a progress bar.
pub(crate) fn fingerprint(model: &Model, quiet: bool) -> Result<String> {
    let bar = progress::count("hashing the base", model.checkpoint.tensors().len() as u64, quiet);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let weights = model.checkpoint.fingerprint(threads, &|done| bar.set_position(done as u64))?;
    bar.finish_and_clear();
    Ok(weights)
}
