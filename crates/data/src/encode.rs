//! Samples to token ids with a mask of what is learnt.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use serde_json::{Map, Value};
use text::{ChatTemplate, Tokenizer};

use crate::dataset::Dataset;
use crate::error::{DataError, SampleError};
use crate::report::Report;
use crate::sample::{Content, Sample};

/// What becomes of a sample longer than `max_length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TooLong {
    /// An error that names it.
    #[default]
    Refuse,
    /// It is left out and counted.
    Drop,
}

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

/// Ids and flags of one sample, or none where it was dropped, with its tokens.
struct Outcome {
    kept: Option<text::Encoded>,
    tokens: usize,
}

impl Encoder<'_> {
    /// Encodes every sample, in order. `progress` is told how many are done.
    ///
    /// # Errors
    /// The first sample that cannot be encoded or that nothing can be learnt from, by file and line;
    /// [`DataError::AllDropped`].
    pub fn encode(
        &self,
        samples: &[Sample],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Dataset, DataError> {
        let outcomes = self.encode_parallel(samples, progress)?;
        let mut report = Report::default();
        let mut dataset = Dataset::empty();
        for (sample, outcome) in samples.iter().zip(outcomes) {
            report.read.count(sample.content.shape());
            let Some(text::Encoded { ids, supervised }) = outcome.kept else {
                report.dropped += 1;
                report.dropped_tokens += outcome.tokens;
                continue;
            };
            report.samples += 1;
            report.tokens += ids.len();
            report.supervised += supervised.iter().filter(|&&flag| flag).count();
            report.longest = report.longest.max(ids.len());
            report.shortest = match report.samples {
                1 => ids.len(),
                _ => report.shortest.min(ids.len()),
            };
            dataset.push(&ids, &supervised, sample.origin.clone());
        }
        if dataset.is_empty() {
            return Err(DataError::AllDropped {
                dropped: report.dropped,
                max_length: self.max_length,
            });
        }
        Ok(dataset.with_report(report))
    }

    /// Samples are handed out in order and every one handed out is finished, so the error of the lowest index does not
    /// depend on the threads.
    fn encode_parallel(
        &self,
        samples: &[Sample],
        progress: &mut dyn FnMut(usize),
    ) -> Result<Vec<Outcome>, DataError> {
        let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let mut results = Vec::with_capacity(samples.len());
        thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, samples.len().max(1)) {
                let (send, next, failed) = (send.clone(), &next, &failed);
                scope.spawn(move || {
                    while !failed.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(sample) = samples.get(index) else { break };
                        let result = self.encode_sample(&sample.content);
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
                progress(results.len());
            }
        });
        results.sort_unstable_by_key(|(index, _)| *index);
        results
            .into_iter()
            .map(|(index, result)| result.map_err(|error| error.at(&samples[index].origin)))
            .collect()
    }

    fn encode_sample(&self, content: &Content) -> Result<Outcome, SampleError> {
        let mut encoded = match content {
            Content::Messages { messages, tools } => self.conversation(messages, tools.as_ref())?,
            Content::Completion { prompt, completion } => self.completion(prompt, completion)?,
            Content::Text(text) => self.text(text)?,
        };
        let tokens = encoded.ids.len();
        let outside = encoded.ids.iter().position(|&id| id as usize >= self.vocab);
        if let Some(position) = outside {
            return Err(SampleError::OutsideVocabulary {
                position,
                id: encoded.ids[position],
                vocab: self.vocab,
            });
        }
        if tokens > self.max_length {
            return match self.too_long {
                TooLong::Refuse => {
                    Err(SampleError::TooLong { length: tokens, limit: self.max_length })
                }
                TooLong::Drop => Ok(Outcome { kept: None, tokens }),
            };
        }
        if let Some(first) = encoded.supervised.first_mut() {
            *first = false;
        }
        if !encoded.supervised.contains(&true) {
            return Err(SampleError::NothingToLearn {
                why: "no token but the first is the model's to say",
            });
        }
        Ok(Outcome { kept: Some(encoded), tokens })
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
