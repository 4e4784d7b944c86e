//! Completing a prompt: sampling, stops, streaming.

use anyhow::{Result, bail};
use clap::Args;
use engine::{Advance, Engine, Sampler, Sampling};
use serde::Serialize;
use text::Tokenizer;

/// How tokens are chosen and when a completion ends.
#[derive(Args, Clone, Debug)]
pub(crate) struct Decoding {
    /// Most tokens of a completion
    #[arg(long, default_value_t = 256)]
    pub(crate) max_tokens: usize,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Most candidates; 0 for all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Smallest set of candidates that reaches this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f32,
    /// Drop candidates under this share of the best one's probability
    #[arg(long, default_value_t = 0.0)]
    min_p: f32,
    /// Penalty on tokens that were there; 1 for none
    #[arg(long, default_value_t = 1.0)]
    repetition_penalty: f32,
    /// Seed of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Text that ends a completion and is not part of it; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
}

impl Decoding {
    /// Refuses settings out of their range, before anything is loaded.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(empty) = self.stop.iter().find(|s| s.is_empty()) {
            bail!("--stop {empty:?}: a stop text has at least one character");
        }
        Sampler::new(self.sampling(), 0)?;
        Ok(())
    }

    fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        }
    }
}

/// Why a completion ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ending {
    /// An end-of-turn or end-of-text token.
    EndToken,
    /// A stop text.
    StopText,
    /// `max_tokens`, or the planned length.
    Length,
}

/// A completion.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Completion {
    pub(crate) text: String,
    /// Chosen tokens, the end token included.
    pub(crate) ids: Vec<u32>,
    pub(crate) ending: Ending,
    pub(crate) prefill_s: f64,
    pub(crate) decode_s: f64,
}

/// What is given text as it becomes certain.
pub(crate) type Emit<'a> = dyn FnMut(&str) -> Result<()> + 'a;

/// Completes `prompt`, whose first `past` tokens the cache holds already.
pub(crate) fn complete(
    engine: &mut Engine<'_>,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    past: usize,
    ends: &[u32],
    decoding: &Decoding,
    emit: &mut Emit<'_>,
) -> Result<Completion> {
    let capacity = engine.blueprint.job.generate.map_or(0, |g| g.length);
    let mut sampler = Sampler::new(decoding.sampling(), 0)?;
    sampler.observe(prompt);
    let mut stream = tokenizer.stream(true);
    let mut held = Held::new(&decoding.stop);
    let mut ids: Vec<u32> = Vec::new();
    let start = std::time::Instant::now();
    let work = Advance { slot: 0, past, ids: &prompt[past..] };
    let mut logits = engine.advance(&[work])?.swap_remove(0);
    let prefill_s = start.elapsed().as_secs_f64();
    let start = std::time::Instant::now();
    let mut length = prompt.len();
    let ending = loop {
        if ids.len() == decoding.max_tokens || length >= capacity {
            break Ending::Length;
        }
        let id = sampler.choose(&logits, length as u64)?;
        ids.push(id);
        if ends.contains(&id) {
            break Ending::EndToken;
        }
        if held.push(&stream.push(id)?, emit)? {
            break Ending::StopText;
        }
        if ids.len() == decoding.max_tokens {
            break Ending::Length;
        }
        logits = engine.advance(&[Advance { slot: 0, past: length, ids: &[id] }])?.swap_remove(0);
        length += 1;
    };
    let stopped = ending == Ending::StopText || held.push(&stream.finish()?, emit)?;
    let ending = if stopped { Ending::StopText } else { ending };
    if !stopped {
        held.flush(emit)?;
    }
    let decode_s = start.elapsed().as_secs_f64();
    Ok(Completion { text: held.text, ids, ending, prefill_s, decode_s })
}

/// Text that may yet turn out to begin a stop.
struct Held<'a> {
    stops: &'a [String],
    /// Everything emitted.
    text: String,
    waiting: String,
}

impl<'a> Held<'a> {
    fn new(stops: &'a [String]) -> Self {
        Held { stops, text: String::new(), waiting: String::new() }
    }

    /// Takes a piece; true when a stop is complete (what precedes it has been emitted).
    fn push(&mut self, piece: &str, emit: &mut Emit<'_>) -> Result<bool> {
        self.waiting.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|s| self.waiting.find(s.as_str())).min() {
            self.release(at, emit)?;
            return Ok(true);
        }
        let keep = self.stops.iter().map(|s| overlap(&self.waiting, s)).max().unwrap_or(0);
        self.release(self.waiting.len() - keep, emit)?;
        Ok(false)
    }

    fn flush(&mut self, emit: &mut Emit<'_>) -> Result<()> {
        self.release(self.waiting.len(), emit)
    }

    fn release(&mut self, bytes: usize, emit: &mut Emit<'_>) -> Result<()> {
        if bytes > 0 {
            let piece: String = self.waiting.drain(..bytes).collect();
            emit(&piece)?;
            self.text.push_str(&piece);
        }
        Ok(())
    }
}

/// Length of the longest end of `text` that begins `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    (1..stop.len())
        .rev()
        .filter(|&n| stop.is_char_boundary(n))
        .find(|&n| text.ends_with(&stop[..n]))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut held = Held::new(&stops);
        let mut out = String::new();
        let mut emit = |s: &str| {
            out.push_str(s);
            Ok(())
        };
        let stopped = pieces.iter().any(|piece| held.push(piece, &mut emit).unwrap());
        if !stopped {
            held.flush(&mut emit).unwrap();
        }
        (out, stopped)
    }

    #[test]
    fn a_stop_across_pieces_is_found_and_not_emitted() {
        assert_eq!(run(&["END"], &["a E", "N", "D b"]), ("a ".into(), true));
        assert_eq!(run(&["END"], &["a E", "N", "x"]), ("a ENx".into(), false));
        assert_eq!(run(&["zz", "b"], &["ab", "zz"]), ("a".into(), true));
        assert_eq!(run(&["é!"], &["café", "?"]), ("café?".into(), false));
    }
}
