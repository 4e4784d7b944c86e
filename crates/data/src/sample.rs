//! Samples: what a line of JSON Lines holds.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::error::{DataError, Origin, SampleError};
use crate::lines::{SAMPLES_LIMIT, each_line};

/// The shapes that a sample may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// `messages`, with `tools` if there are any.
    Messages,
    /// `prompt` and `completion`.
    Completion,
    /// `text`.
    Text,
}

/// What a sample holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// A conversation: objects with `role` and `content`, and the tools offered in it.
    Messages {
        /// The messages.
        messages: Vec<Value>,
        /// A list of JSON schemas.
        tools: Option<Value>,
    },
    /// A prompt and what is to follow it.
    Completion {
        /// Given.
        prompt: String,
        /// Learnt.
        completion: String,
    },
    /// A text, all of it learnt.
    Text(String),
}

impl Content {
    /// The shape.
    pub fn shape(&self) -> Shape {
        match self {
            Content::Messages { .. } => Shape::Messages,
            Content::Completion { .. } => Shape::Completion,
            Content::Text(_) => Shape::Text,
        }
    }
}

/// A sample and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The file and line.
    pub origin: Origin,
    /// What it holds.
    pub content: Content,
}

/// Reads every sample of JSON Lines files, in order.
///
/// A line is an object with `messages` (and perhaps `tools`), or `prompt` and `completion`, or `text`; further keys are
/// the owner's notes and are not read. Blank lines may stand at the end of a file only.
///
/// # Errors
/// [`DataError`]: a file that cannot be read or has no sample, or a line that is wrong, by file and line.
pub fn read(files: &[PathBuf]) -> Result<Vec<Sample>, DataError> {
    read_at_most(files, SAMPLES_LIMIT)
}

fn read_at_most(files: &[PathBuf], limit: usize) -> Result<Vec<Sample>, DataError> {
    if files.is_empty() {
        return Err(DataError::NoFile);
    }
    let mut samples = Vec::new();
    for path in files {
        let before = samples.len();
        each_line(path, &mut |origin, line| {
            if samples.len() == limit {
                return Err(DataError::TooManySamples { origin, limit });
            }
            let content = parse(line).map_err(|error| error.at(&origin))?;
            samples.push(Sample { origin, content });
            Ok(())
        })?;
        if samples.len() == before {
            return Err(DataError::EmptyFile { path: path.clone() });
        }
    }
    Ok(samples)
}

fn parse(line: &str) -> Result<Content, SampleError> {
    let value = serde_json::from_str(line).map_err(|source| SampleError::Json { source })?;
    let Value::Object(mut object) = value else {
        return Err(SampleError::NotAnObject { found: kind(&value) });
    };
    one_shape(&object)?;
    if let Some(messages) = object.remove("messages") {
        let tools = object.remove("tools").filter(|tools| !tools.is_null());
        let messages = check_messages(messages)?;
        return Ok(Content::Messages { messages, tools });
    }
    if object.contains_key("text") {
        return Ok(Content::Text(string(&mut object, "text")?));
    }
    Ok(Content::Completion {
        prompt: string(&mut object, "prompt")?,
        completion: string(&mut object, "completion")?,
    })
}

/// Checks that an object has the keys of exactly one shape.
fn one_shape(object: &Map<String, Value>) -> Result<(), SampleError> {
    const SHAPE_KEYS: [(&str, Shape); 4] = [
        ("messages", Shape::Messages),
        ("prompt", Shape::Completion),
        ("completion", Shape::Completion),
        ("text", Shape::Text),
    ];
    let present: Vec<(&'static str, Shape)> =
        SHAPE_KEYS.into_iter().filter(|(key, _)| object.contains_key(*key)).collect();
    let Some(&(first, shape)) = present.first() else {
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        let keys = if keys.is_empty() { "nothing".to_owned() } else { keys.join(", ") };
        return Err(SampleError::NoShape { keys });
    };
    if let Some(&(second, _)) = present.iter().find(|(_, other)| *other != shape) {
        return Err(SampleError::TwoShapes { first, second });
    }
    if shape == Shape::Completion && present.len() == 1 {
        let missing = if first == "prompt" { "completion" } else { "prompt" };
        return Err(SampleError::HalfShape { found: first, missing });
    }
    Ok(())
}

fn check_messages(value: Value) -> Result<Vec<Value>, SampleError> {
    let Value::Array(messages) = value else {
        return Err(wrong_type("messages", "a list of messages", &value));
    };
    for (index, message) in messages.iter().enumerate() {
        let Some(message) = message.as_object() else {
            let key = format!("messages[{index}]");
            return Err(wrong_type(&key, "an object", message));
        };
        check_message(index, message)?;
    }
    Ok(messages)
}

fn check_message(index: usize, message: &Map<String, Value>) -> Result<(), SampleError> {
    let key = |name: &str| format!("messages[{index}].{name}");
    let role = message.get("role").unwrap_or(&Value::Null);
    let Some(role) = role.as_str() else {
        return Err(wrong_type(&key("role"), "a string", role));
    };
    if !text::ROLES.contains(&role) {
        return Err(SampleError::UnknownRole { index, role: role.to_owned() });
    }
    for weight in ["train", "weight"] {
        if message.contains_key(weight) {
            return Err(SampleError::MessageWeight { index, key: weight });
        }
    }
    let calls = message.get("tool_calls").is_some_and(|v| !v.is_null());
    match message.get("content") {
        // Some templates take a list of typed parts.
        Some(Value::String(_) | Value::Array(_)) => Ok(()),
        None | Some(Value::Null) if calls => Ok(()),
        None | Some(Value::Null) => Err(SampleError::NoContent { index, role: role.to_owned() }),
        Some(other) => Err(wrong_type(&key("content"), "a string", other)),
    }
}

fn string(object: &mut Map<String, Value>, key: &str) -> Result<String, SampleError> {
    match object.remove(key) {
        Some(Value::String(text)) => Ok(text),
        other => Err(wrong_type(key, "a string", other.as_ref().unwrap_or(&Value::Null))),
    }
}

fn wrong_type(key: &str, needed: &'static str, found: &Value) -> SampleError {
    SampleError::WrongType { key: key.to_owned(), needed, found: kind(found) }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "missing or null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_shapes() {
        let chat = r#"{"id": 7, "messages": [{"role": "user", "content": "a"}], "tools": null}"#;
        let content = parse(chat).unwrap();
        assert_eq!(content.shape(), Shape::Messages);
        assert!(
            matches!(&content, Content::Messages { messages, tools: None } if messages.len() == 1)
        );
        let pair = parse(r#"{"prompt": "p", "completion": "c"}"#).unwrap();
        assert_eq!(pair.shape(), Shape::Completion);
        assert_eq!(parse(r#"{"text": "t"}"#).unwrap(), Content::Text("t".into()));
    }

    #[test]
    fn a_message_may_call_tools_instead_of_speaking() {
        let line = r#"{"messages": [{"role": "assistant", "content": null, "tool_calls": [{}]}], "tools": [{}]}"#;
        assert!(matches!(parse(line).unwrap(), Content::Messages { tools: Some(_), .. }));
    }

    /// Every way in which a line can be wrong, with a part of what is said.
    #[test]
    fn every_wrong_line_has_its_error() {
        let cases: [(&str, &str); 18] = [
            ("{", "not JSON"),
            (r#"{"text": "a"} x"#, "not JSON"),
            ("[1]", "a list where an object is needed"),
            ("{}", "none of `messages`"),
            (r#"{"message": "a"}"#, "it has: message"),
            (r#"{"messages": [], "text": "a"}"#, "both `messages` and `text`"),
            (r#"{"prompt": "a", "text": "a"}"#, "both `prompt` and `text`"),
            (r#"{"messages": [], "prompt": "a"}"#, "both `messages` and `prompt`"),
            (r#"{"prompt": "a"}"#, "`prompt` without `completion`"),
            (r#"{"completion": "a"}"#, "`completion` without `prompt`"),
            (r#"{"text": 7}"#, "`text` is a number, not a string"),
            (r#"{"prompt": [], "completion": "a"}"#, "`prompt` is a list"),
            (r#"{"messages": "a"}"#, "`messages` is a string"),
            (r#"{"messages": ["a"]}"#, "`messages[0]` is a string, not an object"),
            (r#"{"messages": [{"content": "a"}]}"#, "`messages[0].role` is missing"),
            (r#"{"messages": [{"role": "bot", "content": "a"}]}"#, "role \"bot\""),
            (r#"{"messages": [{"role": "user"}]}"#, "message 0 (user) has no `content`"),
            (
                r#"{"messages": [{"role": "user", "content": 1}]}"#,
                "`messages[0].content` is a number",
            ),
        ];
        for (line, said) in cases {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
    }

    #[test]
    fn weights_of_messages_are_refused_rather_than_ignored() {
        for key in ["train", "weight"] {
            let line =
                format!(r#"{{"messages": [{{"role": "user", "content": "a", "{key}": false}}]}}"#);
            let error = parse(&line).unwrap_err();
            assert!(matches!(error, SampleError::MessageWeight { index: 0, key: k } if k == key));
        }
    }

    #[test]
    fn files_are_read_in_order_and_errors_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let one = path("one.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
        let two = path("two.jsonl", "{\"text\": \"c\"}\n");
        let samples = read(&[one.clone(), two]).unwrap();
        let texts: Vec<_> = samples.iter().map(|s| s.content.clone()).collect();
        assert_eq!(texts, ["a", "b", "c"].map(|t| Content::Text(t.into())));
        assert_eq!((samples[1].origin.line, samples[2].origin.line), (2, 1));
        let refused = read_at_most(std::slice::from_ref(&one), 1);
        assert!(matches!(refused, Err(DataError::TooManySamples { limit: 1, .. })));

        let bad = path("bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
        let error = read(&[one, bad.clone()]).unwrap_err().to_string();
        assert!(error.contains("bad.jsonl:2: "), "{error}");
        let empty = path("empty.jsonl", "\n");
        assert!(matches!(read(&[empty]), Err(DataError::EmptyFile { .. })));
        assert!(matches!(read(&[]), Err(DataError::NoFile)));
    }
}
