//! Opening a model: reference, checkpoint, tokenizer, chat template.

use crate::progress::Downloads;
use crate::sealed;
use anyhow::{Context, Result, bail};
use clap::Args;
use formats::{Checkpoint, Dtype, ModelConfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;
use text::{ChatTemplate, TextIdentity, Tokenizer};
use train::{Facts, Requested};

/// How models are found; part of every command that takes one.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Source {
    /// Use only what is in the cache, never the network
    #[arg(long)]
    pub(crate) offline: bool,
    /// Folder of downloaded models and encoded data [default: $SAMEBIT_CACHE, or samebit in the user's cache folder]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<std::path::PathBuf>,
}

/// An open model: headers read, weights not.
pub(crate) struct Model {
    pub(crate) checkpoint: Checkpoint,
    /// What the reference came to, for records.
    pub(crate) identity: String,
    /// Hashes of its text files, once they were asked for.
    text: OnceLock<TextIdentity>,
}

/// Resolves a reference and opens its checkpoint.
pub(crate) fn open(reference: &str, source: &Source, quiet: bool) -> Result<Model> {
    let resolved = resolve(reference, source, quiet)?;
    // It may be what a run in mode full made.
    sealed::check_product(&resolved.path)?;
    Ok(Model::new(Checkpoint::open(&resolved.path)?, resolved.identity))
}

/// Opens the model that settings name.
pub(crate) fn open_asked(requested: &Requested, source: &Source, quiet: bool) -> Result<Model> {
    let reference = requested.settings.model.as_deref();
    let reference = reference.context("no model: give --model, or `model` in the settings file")?;
    open(reference, source, quiet)
}

/// Resolves a reference to a path.
pub(crate) fn resolve(reference: &str, source: &Source, quiet: bool) -> Result<hub::Resolved> {
    resolve_by(hub::resolve, reference, source, quiet)
}

fn resolve_by(
    resolve: fn(&str, &hub::Options<'_>) -> Result<hub::Resolved, hub::HubError>,
    reference: &str,
    source: &Source,
    quiet: bool,
) -> Result<hub::Resolved> {
    let progress = Downloads::new(quiet);
    let mut options = hub::Options { progress: &progress, ..hub::Options::from_env()? };
    options.offline = source.offline;
    if let Some(cache) = &source.cache {
        options.cache_dir = cache.clone();
    }
    resolve(reference, &options).with_context(|| format!("model `{reference}`"))
}

/// The configuration, whether bf16 holds the weights without rounding, and what the reference came to.
///
/// A `config.json`, or a folder with nothing else of a model, is enough: then the type that it names counts. Of a hub
/// repository only that file is downloaded.
pub(crate) fn config(
    reference: &str,
    source: &Source,
    quiet: bool,
) -> Result<(ModelConfig, bool, String)> {
    if reference.starts_with("hf:") && !Path::new(reference).exists() {
        let resolved = resolve_by(hub::resolve_config, reference, source, quiet)?;
        let config = ModelConfig::from_json_file(&resolved.path.join("config.json"))?;
        let stored_as_bf16 = config.dtype == Dtype::Bf16;
        return Ok((config, stored_as_bf16, resolved.identity));
    }
    let path = Path::new(reference);
    let file = if path.is_dir() { path.join("config.json") } else { path.to_path_buf() };
    let has_weights = path.is_dir()
        && (path.join("model.safetensors").exists()
            || path.join("model.safetensors.index.json").exists());
    if !has_weights && file.is_file() && file.extension().is_some_and(|e| e == "json") {
        let config = ModelConfig::from_json_file(&file)?;
        let stored_as_bf16 = config.dtype == Dtype::Bf16;
        return Ok((config, stored_as_bf16, file.display().to_string()));
    }
    let model = open(reference, source, quiet)?;
    let stored_as_bf16 = Facts::of(&model.checkpoint).stored_as_bf16;
    Ok((model.checkpoint.config().clone(), stored_as_bf16, model.identity))
}

impl Model {
    /// An open checkpoint under a name.
    pub(crate) fn new(checkpoint: Checkpoint, identity: String) -> Model {
        Model { checkpoint, identity, text: OnceLock::new() }
    }

    /// The model's tokenizer.
    pub(crate) fn tokenizer(&self) -> Result<Tokenizer> {
        if let Some(metadata) = self.checkpoint.gguf_metadata() {
            return Ok(Tokenizer::from_gguf(metadata)?);
        }
        let file = self.checkpoint.path().join("tokenizer.json");
        if !file.is_file() {
            bail!(
                "{}: no tokenizer.json there; put the model's own beside its weights",
                self.checkpoint.path().display()
            );
        }
        Ok(Tokenizer::from_tokenizer_json(&file)?)
    }

    /// The model's chat template.
    pub(crate) fn template(&self) -> Result<ChatTemplate> {
        Ok(match self.checkpoint.gguf_metadata() {
            Some(metadata) => ChatTemplate::from_gguf(metadata)?,
            None => ChatTemplate::from_folder(self.checkpoint.path())?,
        })
    }

    /// What defaults of settings depend on.
    pub(crate) fn facts(&self) -> Result<Facts> {
        Ok(Facts::of(&self.checkpoint).with_template(self.text_identity()?.uses_clock))
    }

    /// Hashes of all that decides how text is encoded.
    pub(crate) fn text_identity(&self) -> Result<&TextIdentity> {
        if let Some(text) = self.text.get() {
            return Ok(text);
        }
        let text = match self.checkpoint.gguf_metadata() {
            Some(metadata) => TextIdentity::of_gguf(metadata),
            None => TextIdentity::of_folder(self.checkpoint.path())?,
        };
        Ok(self.text.get_or_init(|| text))
    }

    /// Hashes of the text's parts, which join a run's identity, so that a resumed run names what changed.
    pub(crate) fn identity_hashes(&self) -> Result<BTreeMap<String, String>> {
        let text = self.text_identity()?.clone();
        let hashes = [
            ("tokenizer", text.tokenizer),
            ("special_tokens", text.special),
            ("template", text.template),
        ];
        Ok(hashes.into_iter().map(|(of, hash)| (of.to_owned(), hash)).collect())
    }

    /// Tokens that end a completion.
    pub(crate) fn stops(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let mut stops = self.checkpoint.config().eos_token_ids.clone();
        stops.extend(tokenizer.eos().filter(|eos| !stops.contains(eos)));
        stops
    }
}
