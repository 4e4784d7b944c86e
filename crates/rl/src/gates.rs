//! Gates of reinforcement learning: what must hold of every step, each with its figure over the run.

use record::{Gate, PhaseBytes};

use crate::error::RlError;
use crate::event::RlEvent;
use crate::rewards::RewardError;
use crate::run::Progress;

const LOG_PROBS: &str = "training repeats log-probs of rollout";
const RATIO: &str = "ratio is 1 before an update";
const TAUGHT: &str = "rewards teach";
const GRADED: &str = "completions are graded";
const SYNCED: &str = "weights arrive in rollout";
const MEMORY: &str = "phases hold what was planned";

const DEFECT: &str =
    "this build computes otherwise than it promises: report it with the model and the processor";
const NOT_TAUGHT: &str = "make prompts easier or harder, raise `group` or `temperature`, or give a reward with more steps";
const NOT_GRADED: &str =
    "look at the grader; `reward_failure = \"drop\"` leaves such completions out";
const NOT_SYNCED: &str = "an update that changes no weight is lost: raise the learning rate; weights that differ are a defect: report it";

/// The gates of a step that is through; `progress` counts it already. What is not `online` has no rollouts.
pub(crate) fn of_step(event: &RlEvent, progress: &Progress, online: bool) -> Vec<Gate> {
    let synced = Gate::ok(SYNCED, format!("the same on both sides: {:.16}", event.weights));
    if !online {
        return vec![taught(progress), synced];
    }
    vec![
        log_probs(event, progress),
        ratio(event.ratio_before),
        taught(progress),
        graded(progress),
        synced,
    ]
}

fn log_probs(event: &RlEvent, progress: &Progress) -> Gate {
    let figure = format!(
        "{} differing bytes in {} log-probs, {} in all",
        event.differing_bytes, event.compared, progress.compared
    );
    Gate::of(LOG_PROBS, event.differing_bytes == 0, figure, DEFECT)
}

fn ratio([least, most]: [f64; 2]) -> Gate {
    Gate::of(RATIO, least == 1.0 && most == 1.0, format!("{least} to {most}"), DEFECT)
}

/// Steps without an update are counted; a run without any has nothing to show for itself.
fn taught(progress: &Progress) -> Gate {
    let Progress { step, taught, groups, uniform, .. } = *progress;
    let figure =
        format!("{taught} of {step} steps; {uniform} of {groups} groups have equal rewards");
    match taught {
        0 => Gate::skipped(TAUGHT, format!("nothing taught yet: {figure}")),
        _ => Gate::ok(TAUGHT, figure),
    }
}

fn graded(progress: &Progress) -> Gate {
    let Progress { samples, dropped, .. } = *progress;
    Gate::ok(GRADED, format!("{dropped} of {samples} left out"))
}

/// The bytes of every rank's phases.
pub(crate) fn memory(phases: &[PhaseBytes]) -> Gate {
    let Some(most) = phases.iter().max_by_key(|phase| phase.planned_bytes) else {
        return Gate::skipped(
            MEMORY,
            "one engine trains and generates: it holds all of its memory all the time",
        );
    };
    let other = phases.iter().find(|phase| phase.planned_bytes != phase.used_bytes);
    let PhaseBytes { rank, phase, planned_bytes, used_bytes } = other.unwrap_or(most);
    let figure = format!("rank {rank}, {phase}: {used_bytes} of {planned_bytes} bytes");
    Gate::of(MEMORY, other.is_none(), figure, DEFECT)
}

/// The gate that an error is the failure of.
pub(crate) fn of_error(error: &RlError) -> Option<Gate> {
    let (name, step, advice) = match error {
        RlError::Differs { step, .. } => (LOG_PROBS, *step, DEFECT),
        RlError::Ratio { step, .. } => (RATIO, *step, DEFECT),
        RlError::NothingTaught { steps, .. } => (TAUGHT, *steps, NOT_TAUGHT),
        RlError::Reward(
            RewardError::Ungraded { step, .. }
            | RewardError::NoneGraded { step, .. }
            | RewardError::Outage { step, .. },
        ) => (GRADED, *step, NOT_GRADED),
        RlError::Sync { step, .. } => (SYNCED, *step, NOT_SYNCED),
        _ => return None,
    };
    Some(Gate::failed(name, error.to_string(), advice).at(step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::Verdict;

    #[test]
    fn each_gate_holds_and_fails() {
        let progress = Progress {
            step: 4,
            taught: 1,
            updates: 1,
            groups: 8,
            uniform: 7,
            ..Progress::default()
        };
        let event = RlEvent { compared: 9, ratio_before: [1.0; 2], ..RlEvent::default() };
        let verdict = |gate: &Gate| gate.verdict;
        let good = of_step(&event, &progress, true);
        assert!(good.iter().all(|gate| gate.verdict == Verdict::Ok), "{good:?}");
        assert_eq!(of_step(&event, &progress, false).len(), 2);
        let untaught = Progress { taught: 0, updates: 0, uniform: 8, ..progress };
        assert_eq!(verdict(&taught(&untaught)), Verdict::Skipped);
        assert_eq!(verdict(&ratio([1.0, 1.0 + f64::EPSILON])), Verdict::Failed);
        let differing = RlEvent { differing_bytes: 1, ..event };
        assert_eq!(verdict(&log_probs(&differing, &progress)), Verdict::Failed);
    }

    #[test]
    fn a_phase_that_holds_other_bytes_is_named() {
        let phase = |rank, used_bytes| PhaseBytes {
            rank,
            phase: "sync".into(),
            planned_bytes: 8,
            used_bytes,
        };
        assert_eq!(memory(&[]).verdict, Verdict::Skipped);
        assert_eq!(memory(&[phase(0, 8), phase(1, 8)]).verdict, Verdict::Ok);
        let gate = memory(&[phase(0, 8), phase(1, 9)]);
        assert_eq!(
            (gate.verdict, &gate.figure[..]),
            (Verdict::Failed, "rank 1, sync: 9 of 8 bytes")
        );
    }

    #[test]
    fn errors_that_are_failed_gates_say_so() {
        let error = RlError::NothingTaught { steps: 3, groups: 6, uniform: 6 };
        let gate = of_error(&error).unwrap();
        assert_eq!((gate.name.as_str(), gate.verdict, gate.step), (TAUGHT, Verdict::Failed, 3));
        assert_eq!(of_error(&RlError::Message("x".into())), None);
    }
}
