//! Samples to token ids with a mask of what is learnt.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde_json::{Map, Value};
use text::{ChatTemplate, MaskError, Tokenizer};

use crate::corpus::{Corpus, Rows};
use crate::dataset::{Dataset, SourceInfo};
use crate::error::{DataError, SampleError};
use crate::lines::SAMPLES_LIMIT;
use crate::report::{Counts, Report, SourceReport};
use crate::sample::{Content, Shape};
use crate::shorten::{self, Exchanges};
use crate::unread;

pub use crate::shorten::TooLong;

/// Encodes samples for one model.
///
/// What is learnt, by shape:
/// - `messages`: what the assistant says, with the marker that ends its turn
///   ([`ChatTemplate::encode_with_mask`]); the template writes its own BOS.
/// - `prompt` and `completion`: the completion, and the end-of-text token after it, as trl does it. Both are encoded
///   as one text, BOS first where the tokenizer adds one.
/// - `text`: everything but the first token, which nothing predicts; BOS as above, the end-of-text token appended.
///
/// The end-of-text token is the tokenizer's `eos_token`; it is not doubled where the text ends with it.
#[derive(Clone, Copy)]
pub struct Encoder<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's chat template; only `messages` need it.
    pub template: Option<&'a ChatTemplate>,
    /// Rows of the model's embedding.
    pub vocab: usize,
    /// Most tokens of a sample.
    pub max_length: usize,
    /// What becomes of longer ones.
    pub too_long: TooLong,
    /// Threads that encode; at least 1. They change no result.
    pub threads: usize,
}

/// What became of one sample.
struct Outcome {
    id: Option<String>,
    shape: Shape,
    /// None where it was dropped.
    kept: Option<text::Encoded>,
    /// Tokens and learnt tokens that it had and has no longer.
    lost: Size,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    tokens: usize,
    supervised: usize,
}

impl Size {
    fn of(encoded: &text::Encoded) -> Size {
        let supervised = encoded.supervised.iter().filter(|&&flag| flag).count();
        Size { tokens: encoded.ids.len(), supervised }
    }
}

impl Encoder<'_> {
    /// Encodes every sample, in order. `progress` is told how many are done, and how many there are.
    ///
    /// # Errors
    /// The first sample that cannot be encoded or that nothing can be learnt from, by file and line;
    /// [`DataError::DuplicateId`]; [`DataError::AllDropped`].
    pub fn encode(
        &self,
        corpus: &Corpus,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Dataset, DataError> {
        let rows = corpus.rows(SAMPLES_LIMIT)?;
        let outcomes = self.encode_parallel(&rows, progress)?;
        check_ids(&rows, &outcomes)?;
        let sources = SourceInfo::of(corpus);
        let mut counts = vec![Counts::default(); sources.len()];
        let mut dataset = Dataset::empty(sources);
        let mut seen = HashSet::new();
        for (index, outcome) in outcomes.into_iter().enumerate() {
            let (source, row) = rows.place(index);
            let Some(encoded) = count(&mut counts[source], outcome) else { continue };
            counts[source].duplicates +=
                usize::from(!seen.insert(digest(&encoded.ids, &encoded.supervised)));
            dataset.push(&encoded.ids, &encoded.supervised, source, row + 1);
        }
        dataset.report = report(&dataset.sources, &counts);
        if dataset.is_empty() {
            let dropped = dataset.report.total.dropped;
            return Err(DataError::AllDropped { dropped, max_length: self.max_length });
        }
        Ok(dataset)
    }

    /// Samples are handed out in order and every one handed out is finished, so the error of the lowest index does not
    /// depend on the threads.
    fn encode_parallel(
        &self,
        rows: &Rows<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Outcome>, DataError> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let mut results = Vec::with_capacity(rows.len());
        thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, rows.len().max(1)) {
                let (send, next, failed) = (send.clone(), &next, &failed);
                scope.spawn(move || {
                    while !failed.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        if index >= rows.len() {
                            break;
                        }
                        let result = self.encode_row(rows, index);
                        if result.is_err() {
                            failed.store(true, Ordering::Relaxed);
                        }
                        if send.send((index, result)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(send);
            for result in receive {
                results.push(result);
                progress(results.len(), rows.len());
            }
        });
        results.sort_unstable_by_key(|(index, _)| *index);
        results
            .into_iter()
            .map(|(index, result)| result.map_err(|error| error.at(&rows.origin(index))))
            .collect()
    }

    fn encode_row(&self, rows: &Rows<'_>, index: usize) -> Result<Outcome, SampleError> {
        let (content, id) = rows.parse(index)?;
        let whole = self.encode_content(&content)?;
        let size = Size::of(&whole);
        let kept = if size.tokens <= self.max_length {
            Some(whole)
        } else {
            self.shorten(&content, whole)?
        };
        let left = kept.as_ref().map(Size::of).unwrap_or_default();
        let lost = Size {
            tokens: size.tokens.saturating_sub(left.tokens),
            supervised: size.supervised.saturating_sub(left.supervised),
        };
        Ok(Outcome { id, shape: content.shape(), kept, lost })
    }

    /// What the rule makes of a sample that is too long; none where it drops it, or leaves nothing to learn of it.
    fn shorten(
        &self,
        content: &Content,
        whole: text::Encoded,
    ) -> Result<Option<text::Encoded>, SampleError> {
        let limit = self.max_length;
        let shortened = match (self.too_long, content) {
            (TooLong::Refuse, _) => {
                return Err(SampleError::TooLong { length: whole.ids.len(), limit });
            }
            (TooLong::Drop, _) => None,
            (TooLong::Left, _) => Some(shorten::left(&whole, self.tokenizer.bos(), limit)),
            (TooLong::Middle, Content::Messages { messages, tools }) => {
                self.without_oldest(messages, tools.as_ref())?
            }
            (TooLong::Middle, _) => None,
        };
        Ok(shortened.filter(|encoded| encoded.supervised.contains(&true)))
    }

    /// The conversation without as few of its oldest exchanges as it takes; the last stays.
    fn without_oldest(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
    ) -> Result<Option<text::Encoded>, SampleError> {
        let exchanges = Exchanges::of(messages);
        let (mut least, mut most) = (1, exchanges.count().saturating_sub(1));
        let mut found = None;
        while least <= most {
            let gone = usize::midpoint(least, most);
            let left = match self.conversation(&exchanges.without(gone), tools) {
                // Nothing of the whole is wrong, so too much is gone.
                Err(SampleError::Mask(MaskError::NoAssistant | MaskError::NoneTrained)) => None,
                other => Some(self.checked(other?)?),
            };
            match left {
                Some(left) if left.ids.len() > self.max_length => least = gone + 1,
                left => {
                    found = left.or(found);
                    most = gone - 1;
                }
            }
        }
        Ok(found)
    }

    fn encode_content(&self, content: &Content) -> Result<text::Encoded, SampleError> {
        let encoded = match content {
            Content::Messages { messages, tools } => {
                let template = self.template.ok_or(SampleError::NoTemplate)?;
                unread::refuse(template, messages, tools.as_ref())?;
                self.conversation(messages, tools.as_ref())?
            }
            Content::Completion { prompt, completion } => self.completion(prompt, completion)?,
            Content::Text(text) => self.text(text)?,
        };
        let encoded = self.checked(encoded)?;
        if !encoded.supervised.contains(&true) {
            return Err(SampleError::NothingToLearn {
                why: "no token but the first is the model's to say",
            });
        }
        Ok(encoded)
    }

    /// Ids that the model has, at most one BOS before them, and a first token that is not learnt.
    fn checked(&self, mut encoded: text::Encoded) -> Result<text::Encoded, SampleError> {
        let outside = encoded.ids.iter().position(|&id| id as usize >= self.vocab);
        if let Some(position) = outside {
            let id = encoded.ids[position];
            return Err(SampleError::OutsideVocabulary { position, id, vocab: self.vocab });
        }
        if let (Some(bos), [first, second, ..]) = (self.tokenizer.bos(), &encoded.ids[..])
            && (*first, *second) == (bos, bos)
        {
            return Err(SampleError::TwoBos);
        }
        if let Some(first) = encoded.supervised.first_mut() {
            *first = false;
        }
        Ok(encoded)
    }

    fn conversation(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
    ) -> Result<text::Encoded, SampleError> {
        let template = self.template.ok_or(SampleError::NoTemplate)?;
        Ok(template.encode_with_mask(self.tokenizer, messages, tools, &Map::new())?)
    }

    fn completion(&self, prompt: &str, completion: &str) -> Result<text::Encoded, SampleError> {
        if completion.is_empty() {
            return Err(SampleError::NothingToLearn { why: "the completion is empty" });
        }
        let given = self.tokenizer.encode(prompt, false)?;
        let whole = self.tokenizer.encode(&format!("{prompt}{completion}"), false)?;
        let same = given.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        if same < given.len() {
            return Err(SampleError::TokenAcrossPrompt { index: same });
        }
        self.delimit(whole, given.len(), "prompt/completion")
    }

    fn text(&self, text: &str) -> Result<text::Encoded, SampleError> {
        if text.is_empty() {
            return Err(SampleError::NothingToLearn { why: "the text is empty" });
        }
        self.delimit(self.tokenizer.encode(text, false)?, 0, "text")
    }

    /// Puts BOS before and the end-of-text token after ids of which all but the first `given` are learnt.
    fn delimit(
        &self,
        ids: Vec<u32>,
        given: usize,
        shape: &'static str,
    ) -> Result<text::Encoded, SampleError> {
        let eos = self.tokenizer.eos().ok_or(SampleError::NoEndOfText { shape })?;
        let bos = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos());
        let bos = bos.filter(|bos| ids.first() != Some(bos));
        let eos = Some(eos).filter(|eos| ids.len() == given || ids.last() != Some(eos));
        let supervised = bos
            .map(|_| false)
            .into_iter()
            .chain((0..ids.len()).map(|index| index >= given))
            .chain(eos.map(|_| true))
            .collect();
        Ok(text::Encoded { ids: bos.into_iter().chain(ids).chain(eos).collect(), supervised })
    }
}

/// Counts a sample; gives it back where it is kept.
fn count(counts: &mut Counts, outcome: Outcome) -> Option<text::Encoded> {
    counts.read.count(outcome.shape);
    let Some(encoded) = outcome.kept else {
        counts.dropped += 1;
        counts.dropped_tokens += outcome.lost.tokens;
        counts.dropped_supervised += outcome.lost.supervised;
        return None;
    };
    let Size { tokens, supervised } = Size::of(&encoded);
    counts.keep(tokens, supervised);
    if outcome.lost != Size::default() {
        counts.shortened += 1;
        counts.cut_tokens += outcome.lost.tokens;
        counts.cut_supervised += outcome.lost.supervised;
    }
    Some(encoded)
}

/// The report of counts by source.
pub(crate) fn report(sources: &[SourceInfo], counts: &[Counts]) -> Report {
    let of = |(source, counts): (&SourceInfo, &Counts)| SourceReport {
        name: source.name.clone(),
        weight: source.weight,
        counts: *counts,
    };
    Report::new(sources.iter().zip(counts).map(of).collect())
}

/// Refuses two samples of one file with one id.
fn check_ids(rows: &Rows<'_>, outcomes: &[Outcome]) -> Result<(), DataError> {
    let mut lines = HashMap::new();
    for (index, outcome) in outcomes.iter().enumerate() {
        let Some(id) = &outcome.id else { continue };
        let (source, row) = rows.place(index);
        if let Some(first) = lines.insert((source, id), row + 1) {
            let (origin, id) = (rows.origin(index), id.clone());
            return Err(DataError::DuplicateId { origin, id, first });
        }
    }
    Ok(())
}

/// What a sample is known by: two of one digest are one sample.
pub(crate) fn digest(ids: &[u32], supervised: &[bool]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    let ids = ids.iter().flat_map(|id| id.to_le_bytes());
    hasher.update(&ids.collect::<Vec<u8>>());
    hasher.update(&supervised.iter().map(|&flag| u8::from(flag)).collect::<Vec<u8>>());
    hasher.finalize()
}
