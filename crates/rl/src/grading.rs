//! The grades of a step's completions: asked of the grader on the lead rank, known on every rank.

use serde::{Deserialize, Serialize};

use crate::engines::Engines;
use crate::error::RlError;
use crate::prompts::Prompt;
use crate::rewards::{Grades, Outage, Question, RewardError};
use crate::settings::{FailurePolicy, Grpo};
use crate::store::Sample;

/// What the lead rank tells.
#[derive(Serialize, Deserialize)]
enum Told {
    /// A grade or a fault a sample.
    Graded(Grades),
    /// None of them counts.
    Failed(Outage),
    /// As before, after the run was asked to stop.
    Stopped,
}

/// Grades samples of a step. Every rank comes to the same rewards or the same error.
///
/// # Errors
/// [`RewardError`]: a sample without a reward where the settings say to fail, none with one, an outage;
/// [`RewardError::Stopped`] for an outage after the run was `asked_to_stop`, which ends graders too.
pub(crate) fn grade(
    engines: &mut Engines<'_>,
    g: &Grpo,
    step: usize,
    prompts: &[Prompt],
    samples: &mut [Sample],
    asked_to_stop: &dyn Fn() -> bool,
) -> Result<(), RlError> {
    let grader = g.reward.value.grader()?;
    let mine = if engines.leads() {
        let questions: Vec<Question<'_>> = samples
            .iter()
            .enumerate()
            .map(|(number, sample)| prompts[sample.prompt].question(number, &sample.text))
            .collect();
        let told = match grader.grade(&questions) {
            Ok(grades) => Told::Graded(grades),
            Err(_) if asked_to_stop() => Told::Stopped,
            Err(outage) => Told::Failed(outage),
        };
        serde_json::to_vec(&told).map_err(|error| RlError::Message(error.to_string()))?
    } else {
        Vec::new()
    };
    let bytes = engines.lead_bytes("rewards", mine)?;
    let told =
        serde_json::from_slice(&bytes).map_err(|error| RlError::Message(error.to_string()))?;
    let grades = match told {
        Told::Graded(grades) => grades,
        Told::Failed(outage) => return Err(RewardError::Outage { step, outage }.into()),
        Told::Stopped => return Err(RewardError::Stopped { step }.into()),
    };
    Ok(settle(grades, g.reward_failure.value, step, samples)?)
}

/// Gives samples their rewards; refuses faults where the settings say to fail, and a step of nothing else.
fn settle(
    grades: Grades,
    policy: FailurePolicy,
    step: usize,
    samples: &mut [Sample],
) -> Result<(), RewardError> {
    let mut first = None;
    for (number, (sample, grade)) in samples.iter_mut().zip(grades).enumerate() {
        match grade {
            Ok(reward) => sample.reward = Some(reward),
            Err(fault) => {
                sample.fault = Some(fault.to_string());
                first.get_or_insert((number, sample.origin.clone(), fault));
            }
        }
    }
    let Some((sample, prompt, fault)) = first else { return Ok(()) };
    if policy == FailurePolicy::Fail {
        return Err(RewardError::Ungraded { step, sample, prompt, fault });
    }
    if samples.iter().all(|sample| sample.reward.is_none()) {
        return Err(RewardError::NoneGraded { step, samples: samples.len(), fault });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewards::Fault;

    fn samples() -> Vec<Sample> {
        let sample = |n: usize| Sample { origin: format!("a.jsonl:{n}"), ..Sample::default() };
        (1..4).map(sample).collect()
    }

    #[test]
    fn a_fault_ends_the_run_or_drops_its_sample() {
        let fault = || Err(Fault::NotJson { found: "oops".into() });
        let grades = vec![Ok(1.0), fault(), Ok(0.5)];
        let error = settle(grades.clone(), FailurePolicy::Fail, 3, &mut samples()).unwrap_err();
        assert!(
            matches!(&error, RewardError::Ungraded { step: 3, sample: 1, prompt, .. } if prompt == "a.jsonl:2"),
            "{error}"
        );
        let mut graded = samples();
        settle(grades, FailurePolicy::Drop, 3, &mut graded).unwrap();
        let rewards: Vec<_> = graded.iter().map(|sample| sample.reward).collect();
        assert_eq!(rewards, [Some(1.0), None, Some(0.5)]);
        assert!(graded[1].fault.as_ref().is_some_and(|said| said.contains("oops")));
        let none = (0..3).map(|_| fault()).collect();
        let error = settle(none, FailurePolicy::Drop, 3, &mut samples()).unwrap_err();
        assert!(matches!(error, RewardError::NoneGraded { samples: 3, .. }), "{error}");
        settle(vec![Ok(1.0); 3], FailurePolicy::Fail, 3, &mut samples()).unwrap();
    }
}
