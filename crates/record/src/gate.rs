//! Checks before a run and gates during it: one line each, with a figure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It holds.
    Ok,
    /// It does not.
    Failed,
    /// It was not tried; the figure says why.
    Skipped,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Ok => "ok",
            Verdict::Failed => "FAILED",
            Verdict::Skipped => "skipped",
        })
    }
}

/// A check or a gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    /// What it holds, such as `adapters learn`.
    pub name: String,
    /// How it came out; a gate that failed once stays failed.
    pub verdict: Verdict,
    /// The figure that it went by, or why it was skipped.
    pub figure: String,
    /// What to do where it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub advice: String,
    /// The step after which it last ran; 0 is before the first.
    #[serde(default)]
    pub step: usize,
    /// How many times it ran.
    pub times: usize,
}

impl Gate {
    fn new(name: &str, verdict: Verdict, figure: String, advice: &str) -> Gate {
        Gate {
            name: name.to_owned(),
            verdict,
            figure,
            advice: advice.to_owned(),
            step: 0,
            times: 1,
        }
    }

    /// One that holds.
    pub fn ok(name: &str, figure: impl Into<String>) -> Gate {
        Self::new(name, Verdict::Ok, figure.into(), "")
    }

    /// One that does not, with what to do.
    pub fn failed(name: &str, figure: impl Into<String>, advice: &str) -> Gate {
        Self::new(name, Verdict::Failed, figure.into(), advice)
    }

    /// One that was not tried, with the reason.
    pub fn skipped(name: &str, why: impl Into<String>) -> Gate {
        Self::new(name, Verdict::Skipped, why.into(), "")
    }

    /// One that holds if `good`.
    pub fn of(name: &str, good: bool, figure: impl Into<String>, advice: &str) -> Gate {
        if good { Self::ok(name, figure) } else { Self::failed(name, figure, advice) }
    }

    /// The same after a step.
    pub fn at(mut self, step: usize) -> Gate {
        self.step = step;
        self
    }

    /// Joins a later run of the same gate: the latest figure counts, but a failure stays.
    pub(crate) fn again(&mut self, later: Gate) {
        let times = self.times + later.times;
        if self.verdict != Verdict::Failed {
            *self = later;
        }
        self.times = times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_figure_counts_and_a_failure_stays() {
        let mut gate = Gate::skipped("loss", "no step yet");
        gate.again(Gate::ok("loss", "2.0").at(1));
        assert_eq!((gate.verdict, gate.figure.as_str(), gate.step), (Verdict::Ok, "2.0", 1));
        gate.again(Gate::failed("loss", "20.0", "look").at(2));
        gate.again(Gate::ok("loss", "1.0").at(3));
        assert_eq!((gate.verdict, gate.figure.as_str(), gate.step), (Verdict::Failed, "20.0", 2));
        assert_eq!(gate.times, 4);
    }

    #[test]
    fn verdicts_are_words_that_line_up() {
        let said = [Verdict::Ok, Verdict::Failed, Verdict::Skipped].map(|v| format!("{v:7}"));
        assert_eq!(said, ["ok     ", "FAILED ", "skipped"]);
    }

    #[test]
    fn a_condition_makes_an_outcome() {
        assert_eq!(Gate::of("a", true, "1", "do"), Gate::ok("a", "1"));
        assert_eq!(Gate::of("a", false, "1", "do"), Gate::failed("a", "1", "do"));
    }
}
