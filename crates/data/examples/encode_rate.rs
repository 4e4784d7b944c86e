//! How fast data is encoded, beside the `tokenizers` crate's own batch on the same text; and how fast a hit in the
//! encode cache is.
//!
//! ```text
//! cargo run --release -p data --example encode_rate -- MODEL_FOLDER DATA.jsonl
//! ```
//!
//! MODEL_FOLDER holds tokenizer.json, and tokenizer_config.json with a chat template; DATA holds `messages` or `text`. All
//! rates are bytes of DATA by second, so that they can be compared: the crate is given every conversation already
//! rendered, and everything else (reading, parsing, rendering, masks, their proof, report) is on our side only.
//! Before it measures, it compares every id.

use std::path::Path;
use std::time::Instant;

use data::{CacheKey, CacheState, Content, Corpus, EncodeCache, Encoder, Source, TooLong};
use serde_json::Map;
use text::{ChatTemplate, TextIdentity, Tokenizer};

/// Pairs of measurements, in turn; medians count. One more comes first and warms caches up.
const PAIRS: usize = 5;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, file] = &args[..] else {
        return Err("give MODEL_FOLDER DATA.jsonl".into());
    };
    // As many as the crate's own pool takes.
    let threads = std::thread::available_parallelism()?.get();
    let folder = Path::new(folder);
    let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json"))?;
    let template = ChatTemplate::from_folder(folder)?;
    let sources = [Source::new(file)];
    let texts = rendered(&sources, &template)?;
    let encoder = Encoder {
        tokenizer: &tokenizer,
        template: Some(&template),
        vocab: tokenizer.vocab_size(),
        max_length: usize::MAX,
        too_long: TooLong::Refuse,
        threads,
    };
    let megabytes = std::fs::metadata(file)?.len() as f64 / 1e6;
    let peer = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json"))?;
    let reference = peer.encode_batch(texts.clone(), false)?;
    for (text, reference) in texts.iter().zip(reference) {
        if tokenizer.encode(text, false)? != reference.get_ids() {
            return Err(format!("other ids than the crate's: {text:?}").into());
        }
    }
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut dataset = None;
    for pair in 0..=PAIRS {
        let start = Instant::now();
        dataset = Some(encoder.encode(&Corpus::open(&sources)?, &mut |_, _| ())?);
        let our = start.elapsed().as_secs_f64();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let start = Instant::now();
        peer.encode_batch(texts, false)?;
        let their = start.elapsed().as_secs_f64();
        if pair > 0 {
            ours.push(our);
            theirs.push(their);
            ratios.push(our / their);
        }
    }
    let [ours, theirs, ratio] = [ours, theirs, ratios].map(median);
    let dataset = dataset.ok_or("nothing was measured")?;
    println!("ids by {}", tokenizer.way());
    println!(
        "{} samples, {} tokens, {megabytes:.1} MB, {threads} threads",
        dataset.len(),
        dataset.report().total.tokens
    );
    println!("samebit, file to masked ids      {:6.2} MB/s", megabytes / ours);
    println!("tokenizers, text to ids (batch)  {:6.2} MB/s", megabytes / theirs);
    println!("time beside the crate's own      {:6.2}", ratio);

    let cache_folder = tempfile::tempdir()?;
    let cache = EncodeCache::new(cache_folder.path(), u64::MAX);
    let hit = || -> Result<_, Failed> {
        let start = Instant::now();
        let corpus = Corpus::open(&sources)?;
        let text = TextIdentity::of_folder(folder)?;
        let key = CacheKey::new(&corpus, &text, 0, 0, TooLong::Refuse, None);
        let encode = || Ok::<_, Failed>(dataset.clone());
        let (read, outcome) = cache.get_or_encode(&key, &corpus, encode)?;
        let read_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let identity = read.identity();
        Ok((outcome.state, outcome.bytes, read_s, start.elapsed().as_secs_f64(), identity))
    };
    hit()?;
    let (state, bytes, read_s, identity_s, identity) = hit()?;
    if state != CacheState::Hit || identity != dataset.identity() {
        return Err("the cache gave something else".into());
    }
    println!(
        "hit: files hashed, {:.1} MB read and verified in {read_s:.3} s; identity in {identity_s:.3} s",
        bytes as f64 / 1e6
    );
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn rendered(sources: &[Source], template: &ChatTemplate) -> Result<Vec<String>, Failed> {
    let mut texts = Vec::new();
    for sample in Corpus::open(sources)?.samples()? {
        texts.push(match sample.content {
            Content::Messages { messages, tools } => {
                template.render(&messages, tools.as_ref(), false, &Map::new())?
            }
            Content::Text(text) => text,
            Content::Completion { .. } => {
                return Err("the data must hold `messages` or `text`".into());
            }
        });
    }
    Ok(texts)
}
