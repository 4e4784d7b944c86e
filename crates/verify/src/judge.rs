//! What makes a run prove nothing: rule 15 of the canon. Each is a failure of its own name, never a pass.

use crate::error::VerifyError;
use crate::seen::{Initial, Seen, Trace};
use crate::work::Settings;

/// Requires every step, and of each that it changed every parameter that had a gradient.
pub(crate) fn honest(trace: &Trace, settings: &Settings) -> Result<(), VerifyError> {
    if trace.steps.len() < settings.steps {
        return Err(VerifyError::MissingStep { step: trace.steps.len() + 1 });
    }
    let mut before: Vec<&str> = trace.initial.iter().map(|p| p.value.as_str()).collect();
    for step in &trace.steps {
        if step.parameters.iter().all(|parameter| parameter.zero_gradient) {
            return Err(VerifyError::NoGradient { step: step.step });
        }
        let pairs = step.parameters.iter().zip(&before);
        let still =
            pairs.into_iter().find(|(now, before)| !now.zero_gradient && now.value == **before);
        if let Some((parameter, _)) = still {
            let parameter = parameter.name.clone();
            return Err(VerifyError::Unchanged { step: step.step, parameter });
        }
        before = step.parameters.iter().map(|p| p.value.as_str()).collect();
    }
    Ok(())
}

/// Requires every training rank to have seen the first one's values.
pub(crate) fn same_ranks(ranks: &[Seen]) -> Result<(), VerifyError> {
    let Some((first, others)) = ranks.split_first() else { return Ok(()) };
    for (index, seen) in others.iter().enumerate() {
        let rank = index + 1;
        let differs = |step, what: String| Err(VerifyError::TrainingRanks { step, rank, what });
        for (theirs, ours) in first.initial.iter().zip(&seen.initial) {
            if theirs != ours {
                return differs(0, theirs.name.clone());
            }
        }
        for (theirs, ours) in first.steps.iter().zip(&seen.steps) {
            let pairs = theirs.fields().into_iter().zip(ours.fields());
            if let Some(((what, _), _)) = pairs.into_iter().find(|(a, b)| a != b) {
                return differs(theirs.step, what);
            }
        }
    }
    Ok(())
}

/// Requires a run to be of the same model, prompts, settings and version as the reference.
pub(crate) fn same_identity(reference: &str, run: &str) -> Result<(), VerifyError> {
    if reference == run {
        return Ok(());
    }
    Err(VerifyError::Identity { what: "the model, its prompts, a setting or the version".into() })
}

/// Requires a run to begin with the reference's weights.
pub(crate) fn same_start(reference: &[Initial], run: &[Initial]) -> Result<(), VerifyError> {
    if reference.len() != run.len() {
        return Err(VerifyError::Identity { what: "the number of trained parameters".into() });
    }
    match reference.iter().zip(run).find(|(theirs, ours)| theirs != ours) {
        None => Ok(()),
        Some((_, ours)) => {
            Err(VerifyError::Identity { what: format!("{} before the first update", ours.name) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seen::{Parameter, Step};

    fn step(step: usize, value: &str, zero_gradient: bool) -> Step {
        let (name, value) = ("a".to_string(), value.to_string());
        let parameter = Parameter { name, value, zero_gradient, ..Parameter::default() };
        Step { step, parameters: vec![parameter], ..Step::default() }
    }

    fn judged(steps: Vec<Step>) -> Result<(), VerifyError> {
        let initial = vec![Initial { name: "a".into(), value: "0".into() }];
        let trace = Trace { identity: String::new(), initial, steps };
        honest(&trace, &Settings { steps: 2, ..Settings::default() })
    }

    #[test]
    fn an_update_with_a_gradient_changes_its_weight() {
        assert!(judged(vec![step(1, "1", false), step(2, "2", false)]).is_ok());
        let idle = judged(vec![step(1, "0", true), step(2, "0", true)]);
        assert!(matches!(idle, Err(VerifyError::NoGradient { step: 1 })), "{idle:?}");
        let first = judged(vec![step(1, "0", false), step(2, "1", false)]);
        assert!(matches!(first, Err(VerifyError::Unchanged { step: 1, .. })), "{first:?}");
        let second = judged(vec![step(1, "1", false), step(2, "1", false)]);
        assert!(matches!(second, Err(VerifyError::Unchanged { step: 2, .. })), "{second:?}");
    }

    #[test]
    fn a_rank_that_saw_something_else_is_named() {
        let seen = |value: &str| Seen { initial: vec![], steps: vec![step(1, value, false)] };
        assert!(same_ranks(&[seen("1"), seen("1")]).is_ok());
        let error = same_ranks(&[seen("1"), seen("1"), seen("2")]).unwrap_err().to_string();
        assert_eq!(error, "step 1: training rank 2 has another value of a than rank 0");
    }

    #[test]
    fn every_step_runs() {
        let missing = judged(vec![step(1, "1", false)]);
        assert!(matches!(missing, Err(VerifyError::MissingStep { step: 2 })), "{missing:?}");
    }

    #[test]
    fn runs_of_other_things_are_not_compared() {
        assert!(same_identity("a", "a").is_ok());
        assert!(matches!(same_identity("a", "b"), Err(VerifyError::Identity { .. })));
        let initial = |value: &str| [Initial { name: "w".into(), value: value.into() }];
        assert!(same_start(&initial("0"), &initial("0")).is_ok());
        let other = same_start(&initial("0"), &initial("1")).unwrap_err().to_string();
        assert!(other.starts_with("w before the first update is not the reference's"), "{other}");
        assert!(same_start(&initial("0"), &[]).is_err());
    }
}
