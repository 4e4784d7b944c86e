//! Verifiers that need nothing but the completion and the prompt's answer: the reward is 1 or 0.

use std::path::Path;

use serde_json::Value;

use super::numeric::{after_mark, numbers};
use super::{Fault, Question};

/// The largest schema file, bytes.
const SCHEMA_BYTES_LIMIT: u64 = 1 << 20;

/// How a completion is compared.
#[derive(Debug)]
pub enum Verifier {
    /// The completion's last number is the answer's.
    Numeric,
    /// The completion is the answer, apart from space around it.
    Exact,
    /// The completion matches a pattern; where the pattern has a group and the prompt an answer, what the group caught is
    /// the answer.
    Pattern(regex::Regex),
    /// The completion is JSON that a schema accepts.
    JsonSchema(Box<jsonschema::Validator>),
    /// GSM8K: the number after the completion's last `####` is the one after the answer's (or the answer itself).
    Gsm8k,
}

/// A verifier that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VerifierError {
    /// The pattern is wrong.
    #[error("the pattern `{pattern}` is no regular expression: {source}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        source: Box<regex::Error>,
    },
    /// The schema's file cannot be read.
    #[error("the schema {path} cannot be read: {reason}")]
    Read {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// The schema is no schema.
    #[error("the schema {path} is no JSON schema: {reason}")]
    Schema {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
}

impl Verifier {
    /// A verifier by pattern.
    ///
    /// # Errors
    /// [`VerifierError::Pattern`].
    pub fn pattern(pattern: &str) -> Result<Verifier, VerifierError> {
        let regex = regex::Regex::new(pattern).map_err(|source| VerifierError::Pattern {
            pattern: pattern.to_owned(),
            source: Box::new(source),
        })?;
        Ok(Verifier::Pattern(regex))
    }

    /// A verifier by JSON schema.
    ///
    /// # Errors
    /// [`VerifierError::Read`], [`VerifierError::Schema`].
    pub fn schema(path: &Path) -> Result<Verifier, VerifierError> {
        let name = path.display().to_string();
        let read = |reason: String| VerifierError::Read { path: name.clone(), reason };
        let bytes = std::fs::metadata(path).map_err(|e| read(e.to_string()))?.len();
        if bytes > SCHEMA_BYTES_LIMIT {
            return Err(read(format!("{bytes} bytes are over the limit of {SCHEMA_BYTES_LIMIT}")));
        }
        let text = std::fs::read_to_string(path).map_err(|e| read(e.to_string()))?;
        let wrong = |reason: String| VerifierError::Schema { path: name.clone(), reason };
        let schema: Value = serde_json::from_str(&text).map_err(|e| wrong(e.to_string()))?;
        let validator = jsonschema::validator_for(&schema).map_err(|e| wrong(e.to_string()))?;
        Ok(Verifier::JsonSchema(Box::new(validator)))
    }

    /// Whether a prompt's answer is one that completions can be compared with.
    pub(super) fn check(&self, answer: Option<&Value>) -> Result<(), Fault> {
        match self {
            Verifier::Numeric => wanted_number(answer, false).map(|_| ()),
            Verifier::Gsm8k => wanted_number(answer, true).map(|_| ()),
            Verifier::Exact => wanted_text(answer).map(|_| ()),
            Verifier::Pattern(pattern) if pattern.captures_len() > 1 => {
                answer.map_or(Ok(()), |answer| text_of(answer).map(|_| ()))
            }
            Verifier::Pattern(_) | Verifier::JsonSchema(_) => Ok(()),
        }
    }

    pub(super) fn grade(&self, question: &Question<'_>) -> Result<f64, Fault> {
        let completion = question.completion;
        let good = match self {
            Verifier::Numeric => {
                let wanted = wanted_number(question.answer, false)?;
                numbers(completion).last() == Some(wanted)
            }
            Verifier::Exact => completion.trim() == wanted_text(question.answer)?.trim(),
            Verifier::Pattern(pattern) => matches(pattern, completion, question.answer)?,
            Verifier::JsonSchema(validator) => {
                let value = serde_json::from_str::<Value>(completion.trim());
                value.is_ok_and(|value| validator.is_valid(&value))
            }
            Verifier::Gsm8k => {
                let wanted = wanted_number(question.answer, true)?;
                let stated = after_mark(completion).and_then(|answer| numbers(answer).next());
                stated == Some(wanted)
            }
        };
        Ok(if good { 1.0 } else { 0.0 })
    }
}

fn no_answer(reason: &str) -> Fault {
    Fault::NoAnswer { reason: reason.to_owned() }
}

/// An answer as text: strings as they are, numbers as JSON writes them.
fn text_of(answer: &Value) -> Result<String, Fault> {
    match answer {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(no_answer("it is neither a text nor a number")),
    }
}

/// The text that a completion should be.
fn wanted_text(answer: Option<&Value>) -> Result<String, Fault> {
    text_of(answer.ok_or_else(|| no_answer("there is none"))?)
}

/// The number that a completion should come to.
fn wanted_number(answer: Option<&Value>, marked: bool) -> Result<f64, Fault> {
    let answer = answer.ok_or_else(|| no_answer("there is none"))?;
    if let Some(number) = answer.as_f64() {
        return Ok(number);
    }
    let text = text_of(answer)?;
    let text = if marked { after_mark(&text).unwrap_or(&text) } else { &text };
    let mut found = numbers(text);
    match (found.next(), found.next()) {
        (Some(number), None) if number.is_finite() => Ok(number),
        (Some(_), None) => Err(no_answer("its number is beyond what can be compared")),
        (None, _) => Err(no_answer("it holds no number")),
        (Some(_), Some(_)) => Err(no_answer("it holds several numbers")),
    }
}

fn matches(
    pattern: &regex::Regex,
    completion: &str,
    answer: Option<&Value>,
) -> Result<bool, Fault> {
    let Some(captures) = pattern.captures(completion) else { return Ok(false) };
    match (captures.get(1), answer) {
        (Some(caught), Some(answer)) => Ok(caught.as_str().trim() == text_of(answer)?.trim()),
        // A pattern with a group that caught nothing states no answer.
        (None, Some(_)) if pattern.captures_len() > 1 => Ok(false),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, json};

    fn grade(verifier: &Verifier, completion: &str, answer: Value) -> Result<f64, Fault> {
        let fields = Map::new();
        let answer = (!answer.is_null()).then_some(&answer);
        verifier.grade(&Question { sample: 0, prompt: "", completion, answer, fields: &fields })
    }

    #[test]
    fn the_last_number_counts() {
        let of = |text: &str, answer: Value| grade(&Verifier::Numeric, text, answer).unwrap();
        assert_eq!(of("7 + 5 = 12", json!(12)), 1.0);
        assert_eq!(of("12, or 13", json!(12)), 0.0);
        assert_eq!(of("$1,200.0.", json!("1200")), 1.0);
        assert_eq!(of("-3", json!(3)), 0.0);
        assert_eq!(of(".5", json!(5)), 0.0);
        assert_eq!(of("", json!(3)), 0.0, "an empty completion");
    }

    #[test]
    fn gsm8k_wants_its_mark() {
        let answer = json!("She sold 48/2 = 24.\n#### 72");
        let of = |text: &str| grade(&Verifier::Gsm8k, text, answer.clone()).unwrap();
        assert_eq!(of("24 + 48 = 72\n#### 72"), 1.0);
        assert_eq!(of("#### 24\nno, #### 72 clips"), 1.0);
        assert_eq!(of("72"), 0.0);
        assert_eq!(of("#### 71"), 0.0);
        assert_eq!(grade(&Verifier::Gsm8k, "#### 1,000", json!(1000)).unwrap(), 1.0);
    }

    #[test]
    fn exact_and_patterns() {
        assert_eq!(grade(&Verifier::Exact, " yes\n", json!("yes")).unwrap(), 1.0);
        assert_eq!(grade(&Verifier::Exact, "Yes", json!("yes")).unwrap(), 0.0);
        let boxed = Verifier::pattern(r"<answer>(.*?)</answer>").unwrap();
        assert_eq!(grade(&boxed, "so <answer> 4 </answer>", json!(4)).unwrap(), 1.0);
        assert_eq!(grade(&boxed, "so <answer>5</answer>", json!(4)).unwrap(), 0.0);
        assert_eq!(grade(&boxed, "so <answer>5</answer>", Value::Null).unwrap(), 1.0);
        assert_eq!(grade(&boxed, "4", json!(4)).unwrap(), 0.0);
        let error = Verifier::pattern("(").unwrap_err();
        assert!(error.to_string().contains("no regular expression"), "{error}");
    }

    #[test]
    fn a_schema_accepts_json_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("schema.json");
        std::fs::write(&path, r#"{"type": "object", "required": ["a"]}"#).unwrap();
        let verifier = Verifier::schema(&path).unwrap();
        for (text, reward) in [(r#" {"a": 1} "#, 1.0), (r#"{"b": 1}"#, 0.0), ("{", 0.0), ("", 0.0)]
        {
            assert_eq!(grade(&verifier, text, Value::Null).unwrap(), reward, "{text}");
        }
        std::fs::write(&path, r#"{"type": 7}"#).unwrap();
        assert!(matches!(Verifier::schema(&path), Err(VerifierError::Schema { .. })));
        std::fs::write(&path, "{").unwrap();
        assert!(matches!(Verifier::schema(&path), Err(VerifierError::Schema { .. })));
        let missing = Verifier::schema(Path::new("/nowhere/schema.json"));
        assert!(matches!(missing, Err(VerifierError::Read { .. })));
        std::fs::File::create(&path).unwrap().set_len(SCHEMA_BYTES_LIMIT + 1).unwrap();
        assert!(matches!(Verifier::schema(&path), Err(VerifierError::Read { .. })));
    }

    #[test]
    fn an_answer_that_cannot_be_compared_is_a_fault() {
        for (verifier, answer) in [
            (Verifier::Numeric, Value::Null),
            (Verifier::Numeric, json!("none")),
            (Verifier::Numeric, json!("1 or 2")),
            (Verifier::Numeric, json!("1e999")),
            (Verifier::Numeric, json!([1])),
            (Verifier::Gsm8k, Value::Null),
            (Verifier::Exact, Value::Null),
            (Verifier::Exact, json!({})),
        ] {
            let fault = grade(&verifier, "1", answer.clone()).unwrap_err();
            assert!(matches!(fault, Fault::NoAnswer { .. }), "{answer}: {fault}");
        }
    }
}
