//! Data to token ids, through the encode cache.

use crate::model::{Model, Source};
use crate::output::warn;
use crate::progress;
use anyhow::Result;
use data::{CacheKey, CacheOutcome, Corpus, DataError, Dataset, EncodeCache, Encoder};
use std::time::Instant;
use text::TemplateError;
use train::Resolved;

/// What a data set came from, and how the cache served it.
pub(crate) struct EncodedData {
    pub(crate) dataset: Dataset,
    pub(crate) cache: CacheOutcome,
    /// Bytes of the data files.
    pub(crate) bytes: usize,
}

/// Encodes sources for a model as the settings say.
///
/// What is wrong with the cache is told on the error stream, and stops nothing.
pub(crate) fn encode(
    model: &Model,
    resolved: &Resolved,
    sources: &[data::Source],
    source: &Source,
    quiet: bool,
) -> Result<EncodedData> {
    let corpus = Corpus::open(sources)?;
    let vocab = model.checkpoint.config().vocab_size;
    let encode = || encode_now(model, resolved, &corpus, vocab, quiet);
    let text = model.text_identity()?;
    let off = if !resolved.encode_cache.value {
        Some(None)
    } else if text.uses_clock {
        Some(Some(
            "the chat template asks for the date, so the encode cache is not used: encoded data would go stale"
                .to_string(),
        ))
    } else {
        None
    };
    let limit = resolved.encode_cache_limit.value.0 as u64;
    let (dataset, cache) = match (off, encode_cache(source, limit)) {
        (None, Ok(cache)) => {
            let (length, rule) = (resolved.max_length.value, resolved.too_long());
            let key = CacheKey::new(&corpus, &text, vocab, length, rule);
            cache.get_or_encode(&key, &corpus, encode)?
        }
        (off, cache) => {
            let no_folder = || cache.err().map(|error| format!("{error:#}; nothing is kept"));
            let warning = off.unwrap_or_else(no_folder);
            let start = Instant::now();
            (encode()?, CacheOutcome::off(start.elapsed().as_secs_f64(), warning))
        }
    };
    cache.warnings.iter().for_each(|warning| warn(warning));
    Ok(EncodedData { dataset, cache, bytes: corpus.bytes() })
}

/// The cache of encoded data, beside downloaded models.
pub(crate) fn encode_cache(source: &Source, limit_bytes: u64) -> Result<EncodeCache> {
    let folder = match &source.cache {
        Some(folder) => folder.clone(),
        None => hub::default_folder()?,
    };
    Ok(EncodeCache::new(folder.join("encoded"), limit_bytes))
}

fn encode_now(
    model: &Model,
    resolved: &Resolved,
    corpus: &Corpus,
    vocab: usize,
    quiet: bool,
) -> Result<Dataset> {
    let tokenizer = model.tokenizer()?;
    // Only conversations need a template; the sample that does says so.
    let template = match model.template() {
        Ok(template) => Some(template),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(error),
    };
    let encoder = Encoder {
        tokenizer: &tokenizer,
        template: template.as_ref(),
        vocab,
        threads: resolved.threads.value,
        max_length: resolved.max_length.value,
        too_long: resolved.too_long(),
    };
    let bar = progress::count("encoding", 0, quiet);
    let dataset = encoder.encode(corpus, &mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    dataset.map_err(|error: DataError| error.into())
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(TemplateError::Missing { .. }))
}
