//! Data to token ids, through the encode cache.

use crate::model::{Model, Source};
use crate::output::warn;
use crate::progress;
use anyhow::Result;
use data::{CacheKey, CacheOutcome, Corpus, DataError, Dataset, EncodeCache, Encoder};
use std::cell::RefCell;
use std::time::Instant;
use text::{ChatTemplate, TemplateError, Tokenizer};
use train::Resolved;

/// What a data set came from, and how the cache served it.
pub(crate) struct EncodedData {
    pub(crate) dataset: Dataset,
    pub(crate) cache: CacheOutcome,
    /// Bytes of the data files.
    pub(crate) bytes: usize,
    /// Which code turned text into ids; none where the cache had them.
    pub(crate) way: Option<String>,
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
    let way = RefCell::new(None);
    let encode = || {
        let tokenizer = model.tokenizer()?;
        way.replace(Some(tokenizer.way().to_string()));
        encode_now(model, &tokenizer, resolved, &corpus, vocab, quiet)
    };
    let text = model.text_identity()?;
    let limit = resolved.encode_cache_limit.value.0 as u64;
    let cache = resolved.encode_cache.value.then(|| encode_cache(source, limit));
    let (dataset, cache) = match cache {
        Some(Ok(cache)) => {
            let (length, rule) = (resolved.max_length.value, resolved.too_long());
            let key = CacheKey::new(&corpus, text, vocab, length, rule, resolved.template_time());
            cache.get_or_encode(&key, &corpus, encode)?
        }
        off => {
            let no_folder = off.and_then(Result::err);
            let warning = no_folder.map(|error| format!("{error:#}; nothing is kept"));
            let start = Instant::now();
            (encode()?, CacheOutcome::off(start.elapsed().as_secs_f64(), warning))
        }
    };
    cache.warnings.iter().for_each(|warning| warn(warning));
    Ok(EncodedData { dataset, cache, bytes: corpus.bytes(), way: way.into_inner() })
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
    tokenizer: &Tokenizer,
    resolved: &Resolved,
    corpus: &Corpus,
    vocab: usize,
    quiet: bool,
) -> Result<Dataset> {
    // Only conversations need a template; the sample that does says so.
    let template = match model.template() {
        Ok(template) => Some(dated(template, resolved)),
        Err(error) if is_missing(&error) => None,
        Err(error) => return Err(error),
    };
    let encoder = Encoder {
        tokenizer,
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

/// A template that is told the day of a run's settings, where it asks for one: every conversation is rendered on the same
/// day, also where encoding goes past midnight or a run goes on weeks later.
pub(crate) fn dated(template: ChatTemplate, resolved: &Resolved) -> ChatTemplate {
    match resolved.template_time() {
        Some(seconds) => template.at_unix_time(seconds),
        None => template,
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(TemplateError::Missing { .. }))
}
