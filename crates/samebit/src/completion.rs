//! Completions: what is asked for on the command line, and running it.

use anyhow::{Result, bail};
use clap::Args;
use engine::{Engine, Sampler, Sampling};
use rollout::{Completion, Event, Request, Scheduler, Stops};

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

    /// Whether samples of one prompt differ.
    pub(crate) fn is_greedy(&self) -> bool {
        self.temperature == 0.0
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

    /// A request for one completion of a prompt that ends at one of the tokens `ends`, or earlier.
    pub(crate) fn request(&self, sample: u64, prompt: Vec<u32>, ends: &[u32]) -> Request {
        Request {
            sample,
            prompt,
            max_tokens: self.max_tokens,
            sampling: self.sampling(),
            stops: Stops { ids: ends.to_vec(), texts: self.stop.clone() },
            policy: false,
        }
    }
}

/// A completion and the seconds to its first token and after it.
pub(crate) struct Timed {
    pub(crate) completion: Completion,
    pub(crate) prefill_s: f64,
    pub(crate) decode_s: f64,
}

/// Makes one completion, the only one under way; `emit` is given text as it becomes certain.
pub(crate) fn complete(
    engine: &mut Engine<'_>,
    scheduler: &mut Scheduler<'_>,
    request: Request,
    mut emit: impl FnMut(&str) -> Result<()>,
) -> Result<Timed> {
    scheduler.submit(request)?;
    let start = std::time::Instant::now();
    let mut prefill_s = None;
    let mut completions = scheduler.run(engine, |event| {
        prefill_s.get_or_insert_with(|| start.elapsed().as_secs_f64());
        let (Event::Token { text, .. } | Event::End { text, .. }) = event;
        if text.is_empty() { Ok(()) } else { emit(text) }
    })?;
    let total_s = start.elapsed().as_secs_f64();
    let Some(completion) = completions.pop() else {
        unreachable!("a request ends in a completion")
    };
    let prefill_s = prefill_s.unwrap_or(total_s);
    Ok(Timed { completion, prefill_s, decode_s: total_s - prefill_s })
}
