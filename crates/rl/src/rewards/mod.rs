//! Rewards: built-in verifiers, an external program, an HTTP endpoint.
//!
//! A reward is a finite number. What could not be graded names its sample and why; the settings say whether that ends
//! the run or drops the sample, counted.

mod fault;
mod http;
mod numeric;
mod program;
mod verifiers;

pub use fault::{Fault, RewardError};
pub use http::Endpoint;
pub use program::ExternalProgram;
pub use verifiers::{Verifier, VerifierError};

use serde::Serialize;
use serde_json::{Map, Value};

/// One completion to grade.
#[derive(Clone, Debug, Serialize)]
pub struct Question<'a> {
    /// Number of the sample in its step.
    pub sample: usize,
    /// The prompt as text.
    pub prompt: &'a str,
    /// The completion's text; may be empty.
    pub completion: &'a str,
    /// The prompt's `answer`, if it has one.
    pub answer: Option<&'a Value>,
    /// Every other field of the prompt's line.
    pub fields: &'a Map<String, Value>,
}

/// Who grades.
#[derive(Debug)]
pub enum Grader {
    /// A built-in verifier.
    Verifier(Verifier),
    /// A program of the user's.
    Program(ExternalProgram),
    /// A server of the user's.
    Http(Endpoint),
}

impl Grader {
    /// The reward of each completion, or why there is none.
    pub fn grade(&self, questions: &[Question<'_>]) -> Vec<Result<f64, Fault>> {
        if questions.is_empty() {
            return Vec::new();
        }
        match self {
            Grader::Verifier(verifier) => questions.iter().map(|q| verifier.grade(q)).collect(),
            Grader::Program(program) => program.grade(questions),
            Grader::Http(endpoint) => endpoint.grade(questions),
        }
    }
}

/// The reward in a value that an outside grader gave: a number, or an object with one as `reward`.
fn reward_of(value: &Value) -> Result<f64, Fault> {
    let number = value.get("reward").unwrap_or(value);
    match number.as_f64() {
        Some(reward) if reward.is_finite() => Ok(reward),
        _ => Err(Fault::NotANumber { found: excerpt(&number.to_string()) }),
    }
}

/// The beginning of a text, for messages.
fn excerpt(text: &str) -> String {
    const LENGTH: usize = 120;
    let text = text.trim();
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_finite_numbers_are_rewards() {
        assert_eq!(reward_of(&json!(0.5)).unwrap(), 0.5);
        assert_eq!(reward_of(&json!({"reward": -1, "why": "x"})).unwrap(), -1.0);
        for wrong in [json!(null), json!("1"), json!({"reward": "NaN"}), json!([1]), json!({})] {
            assert!(matches!(reward_of(&wrong), Err(Fault::NotANumber { .. })), "{wrong}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(excerpt(&"é".repeat(130)), format!("{}…", "é".repeat(120)));
        assert_eq!(excerpt(" a "), "a");
    }
}
