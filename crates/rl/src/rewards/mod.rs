//! Rewards: built-in verifiers, an external program, an HTTP endpoint.
//!
//! A reward is a finite number. A completion that could not be graded has a [`Fault`], and the settings say whether that
//! ends the run or drops the sample, counted. Where it is not known which answers of a grader are whose, or there are
//! none, the whole batch has an [`Outage`], which ends the run: rewards of other samples would teach without a sign.

mod answers;
mod fault;
mod http;
mod numeric;
mod process;
mod program;
mod verifiers;

pub use fault::{Fault, Outage, RewardError};
pub use http::Endpoint;
pub use program::ExternalProgram;
pub use verifiers::{Verifier, VerifierError};

use serde::Serialize;
use serde_json::{Map, Value};

use crate::prompts::Prompt;

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

/// The reward of each completion of a batch, or why it has none.
pub type Grades = Vec<Result<f64, Fault>>;

/// The most bytes of an outside grader's answer to one completion.
const ANSWER_BYTES_LIMIT: usize = 1 << 20;

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
    ///
    /// # Errors
    /// [`Outage`]: no answer of an outside grader can be used.
    pub fn grade(&self, questions: &[Question<'_>]) -> Result<Grades, Outage> {
        if questions.is_empty() {
            return Ok(Vec::new());
        }
        match self {
            Grader::Verifier(verifier) => Ok(questions.iter().map(|q| verifier.grade(q)).collect()),
            Grader::Program(program) => program.grade(questions),
            Grader::Http(endpoint) => endpoint.grade(questions),
        }
    }

    /// Refuses prompts whose completions a verifier can grade in no case, whatever they are.
    ///
    /// # Errors
    /// [`RewardError::Prompt`]: the first.
    pub fn check(&self, prompts: &[Prompt]) -> Result<(), RewardError> {
        let Grader::Verifier(verifier) = self else { return Ok(()) };
        prompts.iter().try_for_each(|prompt| {
            let origin = || prompt.origin.clone();
            let refused = |fault| RewardError::Prompt { prompt: origin(), fault };
            verifier.check(prompt.answer.as_ref()).map_err(refused)
        })
    }

    /// Asks an outside grader about an empty completion of a prompt, so that one that is not there or cannot begin is
    /// found before any completion is generated.
    ///
    /// # Errors
    /// [`RewardError::NotReady`].
    pub fn try_out(&self, prompt: &Prompt) -> Result<(), RewardError> {
        if let Grader::Verifier(_) = self {
            return Ok(());
        }
        let question = prompt.question(0, "");
        self.grade(&[question]).map_err(|outage| RewardError::NotReady { outage })?;
        Ok(())
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
    use std::time::Duration;

    fn prompt(answer: Value) -> Prompt {
        Prompt {
            origin: "asks.jsonl:3".into(),
            text: "p".into(),
            ids: vec![1],
            answer: Some(answer).filter(|answer| !answer.is_null()),
            fields: Map::new(),
        }
    }

    #[test]
    fn a_prompt_that_can_never_be_graded_is_refused_by_its_line() {
        let check = |verifier, answer| Grader::Verifier(verifier).check(&[prompt(answer)]);
        for (verifier, answer) in [
            (Verifier::Numeric, Value::Null),
            (Verifier::Gsm8k, json!("none")),
            (Verifier::Exact, json!([1])),
            (Verifier::pattern("(a)").unwrap(), json!({})),
        ] {
            let text = check(verifier, answer).unwrap_err().to_string();
            assert!(text.starts_with("asks.jsonl:3: the prompt has no `answer`"), "{text}");
        }
        check(Verifier::Numeric, json!("1,000")).unwrap();
        check(Verifier::Gsm8k, json!("so\n#### 4")).unwrap();
        check(Verifier::Exact, json!("a")).unwrap();
        check(Verifier::pattern("(a)").unwrap(), Value::Null).unwrap();
        check(Verifier::pattern("a").unwrap(), json!({})).unwrap();
    }

    #[test]
    fn an_outside_grader_is_tried_before_it_is_needed() {
        let limit = Duration::from_secs(60);
        let program = |script: &str| {
            let command = ["sh", "-c", script].map(str::to_owned).to_vec();
            Grader::Program(ExternalProgram { command, limit })
        };
        program("cat > /dev/null; echo 1").try_out(&prompt(Value::Null)).unwrap();
        program("echo none").try_out(&prompt(Value::Null)).unwrap();
        let nobody = Grader::Http(Endpoint { url: "http://127.0.0.1:1/".into(), limit });
        for grader in [program("exit 0"), program("exec /nowhere/grade"), nobody] {
            let error = grader.try_out(&prompt(Value::Null)).unwrap_err();
            assert!(matches!(error, RewardError::NotReady { .. }), "{error}");
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(excerpt(&"é".repeat(130)), format!("{}…", "é".repeat(120)));
        assert_eq!(excerpt(" a "), "a");
    }
}
