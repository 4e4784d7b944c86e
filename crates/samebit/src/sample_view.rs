//! One sample, token by token.

use crate::output::Table;
use anyhow::Result;
use data::{Dataset, Schedule};
use serde::Serialize;
use text::Tokenizer;

/// A sample as training sees it.
#[derive(Serialize)]
pub(crate) struct SampleView {
    /// From 1.
    sample: usize,
    origin: String,
    /// Whether it is kept for evaluation, and not trained on.
    held_out: bool,
    /// The first step that has it, from 1; null where no step does.
    step: Option<usize>,
    tokens: Vec<TokenView>,
}

#[derive(Serialize)]
struct TokenView {
    id: u32,
    text: String,
    learnt: bool,
    /// What its −log-prob counts in the loss of its step: 1 / learnt tokens of the step; 0 where it is not learnt.
    weight: f64,
}

/// Sample `index` of a data set, called `number`, in the first step of `schedule` that has it; without a schedule it is
/// held out.
pub(crate) fn view(
    dataset: &Dataset,
    index: usize,
    number: usize,
    schedule: Option<&mut Schedule>,
    tokenizer: &Tokenizer,
) -> Result<SampleView> {
    let held_out = schedule.is_none();
    let found = schedule.and_then(|schedule| {
        (0..schedule.steps()).find_map(|step| {
            let samples = schedule.step(step)?.micro_batches.concat();
            samples.contains(&index).then(|| {
                let learnt =
                    samples.iter().map(|&sample| dataset.sample(sample).supervised_tokens());
                (step + 1, learnt.sum::<usize>())
            })
        })
    });
    let weight = found.map_or(0.0, |(_, learnt)| 1.0 / learnt as f64);
    let sample = dataset.sample(index);
    let tokens = sample
        .ids
        .iter()
        .zip(sample.supervised)
        .map(|(&id, &learnt)| {
            let text = tokenizer.decode(&[id], false)?;
            Ok(TokenView { id, text, learnt, weight: if learnt { weight } else { 0.0 } })
        })
        .collect::<Result<_>>()?;
    Ok(SampleView {
        sample: number,
        origin: dataset.origin(index).to_string(),
        held_out,
        step: found.map(|(step, _)| step),
        tokens,
    })
}

pub(crate) fn text(view: &SampleView) -> String {
    let mut table = Table::new(&["token", "place", "id", "learnt", "loss weight"]);
    for (place, token) in view.tokens.iter().enumerate() {
        table.row([
            format!("{:?}", token.text),
            place.to_string(),
            token.id.to_string(),
            if token.learnt { "yes" } else { "-" }.to_string(),
            if token.learnt { format!("{:.3e}", token.weight) } else { "0".into() },
        ]);
    }
    let step = match (view.step, view.held_out) {
        (Some(step), _) => format!("first in step {step}"),
        (None, true) => "held out for evaluation".into(),
        (None, false) => "in no step".into(),
    };
    format!("sample {} ({}), {step}\n{}", view.sample, view.origin, table.text())
}
