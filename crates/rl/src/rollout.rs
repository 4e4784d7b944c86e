//! Completions of prompts.

use engine::Sampling;
use rollout::{Completion, Ending, Event, Request, RolloutError, Scheduler, Stops};

use crate::engines::Engines;
use crate::error::RlError;
use crate::prompts::Prompt;
use crate::run::Data;
use crate::settings::Grpo;
use crate::store::Sample;

/// What to generate.
pub(crate) struct Work<'a> {
    pub(crate) prompts: &'a [Prompt],
    /// Prompts by number, each `group` times in turn.
    pub(crate) chosen: Vec<usize>,
    pub(crate) group: usize,
    /// Number of the first sample: draws depend on it.
    pub(crate) first: u64,
    pub(crate) sampling: Sampling,
}

/// Generates on this rank's engine and gives every rank the samples, ungraded.
pub(crate) fn samples(
    engines: &mut Engines<'_>,
    data: &Data<'_>,
    g: &Grpo,
    step: usize,
    work: &Work<'_>,
    told: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Sample>, RlError> {
    let failed = |source| RlError::Rollout { step, source: Box::new(source) };
    let total = work.chosen.len() * work.group;
    let mut completions = Vec::new();
    if let Some(engine) = engines.generator() {
        let mut scheduler = Scheduler::new(engine, Some(data.tokenizer)).map_err(failed)?;
        for (i, &prompt) in work.chosen.iter().flat_map(|p| vec![p; work.group]).enumerate() {
            let request = Request {
                sample: work.first + i as u64,
                prompt: work.prompts[prompt].ids.clone(),
                max_tokens: g.max_tokens.value,
                sampling: work.sampling,
                stops: Stops { ids: data.ends.to_vec(), texts: g.stop.value.clone() },
                policy: true,
            };
            scheduler.submit(request).map_err(failed)?;
        }
        let mut done = 0;
        let tell = |event: &Event| {
            if let Event::End { .. } = event {
                done += 1;
                told(done, total);
            }
            Ok::<(), RolloutError>(())
        };
        completions = scheduler.run(engine, tell).map_err(failed)?;
    }
    let mine = if engines.leads() {
        let truncated = g.head().truncated;
        let samples: Vec<Sample> = completions
            .iter()
            .zip(work.chosen.iter().flat_map(|p| vec![*p; work.group]))
            .map(|(completion, prompt)| sample(completion, prompt, work.prompts, truncated))
            .collect();
        serde_json::to_vec(&samples).map_err(|error| RlError::Message(error.to_string()))?
    } else {
        Vec::new()
    };
    let bytes = engines.lead_bytes("completions", mine)?;
    serde_json::from_slice(&bytes).map_err(|error| RlError::Message(error.to_string()))
}

fn sample(completion: &Completion, prompt: usize, prompts: &[Prompt], truncated: bool) -> Sample {
    let choices = &completion.choices;
    let ending = match completion.ending {
        Ending::EndToken => "end_token",
        Ending::StopText => "stop_text",
        Ending::Length => "length",
        Ending::Cancelled => "cancelled",
    };
    Sample {
        prompt,
        origin: prompts[prompt].origin.clone(),
        prompt_ids: prompts[prompt].ids.clone(),
        ids: completion.ids.clone(),
        text: completion.text.clone(),
        ending: ending.into(),
        logp: choices.iter().map(|c| c.logp).collect(),
        full_logp: if truncated { choices.iter().map(|c| c.full_logp).collect() } else { vec![] },
        kept: if truncated {
            let all = engine::Kept::ALL;
            let kept = choices.iter().map(|c| (c.kept != all).then_some((c.kept.logit, c.kept.id)));
            kept.collect()
        } else {
            vec![]
        },
        ..Sample::default()
    }
}
