//! Whether an adapter was trained on the base that it meets.

use crate::model::Model;
use crate::progress;
use crate::sealed;
use anyhow::{Context, Result, bail};
use clap::Args;
use formats::FormatError;
use formats::merged::{MergeError, Weights};
use formats::peft::{self, Adapter};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Part of every command that runs a model with an adapter, if there is one.
#[derive(Args, Clone, Debug)]
pub(crate) struct WithAdapter {
    /// PEFT adapter folder to run the model with
    #[arg(long)]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    other: OtherBase,
}

impl WithAdapter {
    /// Opens the adapter, if one is given, and holds its base against the model.
    pub(crate) fn open(&self, model: &Model, quiet: bool) -> Result<Option<(Adapter, Base)>> {
        let Some(folder) = &self.adapter else { return Ok(None) };
        let adapter = open(folder)?;
        // Said before the hashes: an adapter of another shape was made for another model.
        Weights::new(&model.checkpoint, Some(&adapter))?;
        let base = identify(model, &adapter, &self.other, quiet)?;
        Ok(Some((adapter, base)))
    }
}

/// Part of every command that joins an adapter and a base.
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

/// Opens an adapter. One inside a sealed run must be as it was sealed.
pub(crate) fn open(folder: &Path) -> Result<Adapter> {
    let inner = folder.join(train::ADAPTER);
    if !folder.join(peft::CONFIG_FILE).exists() && inner.join(peft::CONFIG_FILE).exists() {
        bail!("`{}` is a run; its adapter is `{}`", folder.display(), inner.display());
    }
    sealed::check_product(folder)?;
    Adapter::open(folder).with_context(|| format!("adapter `{}`", folder.display()))
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
        tell!("note: {note}");
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
