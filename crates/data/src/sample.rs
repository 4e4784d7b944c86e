//! Samples: what a line of JSON Lines, or a row of a table, holds.

use std::path::PathBuf;

use serde_json::{Map, Value};

use crate::corpus::Corpus;
use crate::error::{DataError, Origin, SampleError};
use crate::source::Source;
use crate::strict_json;

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

/// Reads every sample of files, in order: [`Corpus::samples`] of files that count once.
///
/// # Errors
/// As [`Corpus::open`] and [`Corpus::samples`].
pub fn read(files: &[PathBuf]) -> Result<Vec<Sample>, DataError> {
    Corpus::open(&Source::of_files(files))?.samples()
}

impl Content {
    /// Takes one sample from JSON: an object with `messages` (and perhaps `tools`), or `prompt` and `completion`, or
    /// `text`; further keys are the owner's notes and are not read, but for those that ask for what is not done there
    /// (`train`, `weight`; `tools` without `messages`): these are refused.
    ///
    /// # Errors
    /// [`SampleError`]: what is wrong with it.
    pub fn from_json(text: &str) -> Result<Content, SampleError> {
        from_line(text.as_bytes()).map(|(content, _)| content)
    }
}

/// What a line holds, and its `id`.
pub(crate) fn from_line(line: &[u8]) -> Result<(Content, Option<String>), SampleError> {
    from_object(object_of(line)?)
}

/// The object that a line is.
pub(crate) fn object_of(line: &[u8]) -> Result<Map<String, Value>, SampleError> {
    let text = std::str::from_utf8(line)
        .map_err(|error| SampleError::NotUtf8 { byte: error.valid_up_to() })?;
    let value = strict_json::value(text).map_err(|source| SampleError::Json { source })?;
    match value {
        Value::Object(object) => Ok(object),
        other => Err(SampleError::NotAnObject { found: kind(&other) }),
    }
}

/// What an object holds, and its `id` as JSON where that is a string or an integer: other ids are the owner's notes.
pub(crate) fn from_object(
    mut object: Map<String, Value>,
) -> Result<(Content, Option<String>), SampleError> {
    let id = object.get("id").filter(|id| id.is_string() || id.is_u64() || id.is_i64());
    let id = id.map(Value::to_string);
    Ok((content(&mut object)?, id))
}

fn content(object: &mut Map<String, Value>) -> Result<Content, SampleError> {
    let shape = one_shape(object)?;
    for key in ["train", "weight"] {
        if object.contains_key(key) {
            return Err(SampleError::SampleKey { key });
        }
    }
    if shape != Shape::Messages && object.get("tools").is_some_and(|tools| !tools.is_null()) {
        return Err(SampleError::ToolsWithoutMessages);
    }
    if let Some(messages) = object.remove("messages") {
        let tools = object.remove("tools").filter(|tools| !tools.is_null());
        let messages = check_messages(messages)?;
        return Ok(Content::Messages { messages, tools });
    }
    if object.contains_key("text") {
        return Ok(Content::Text(string(object, "text")?));
    }
    Ok(Content::Completion {
        prompt: string(object, "prompt")?,
        completion: string(object, "completion")?,
    })
}

/// The shape of an object that has the keys of exactly one.
fn one_shape(object: &Map<String, Value>) -> Result<Shape, SampleError> {
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
    Ok(shape)
}

pub(crate) fn check_messages(value: Value) -> Result<Vec<Value>, SampleError> {
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
    if message.contains_key("weight") {
        return Err(SampleError::MessageWeight { index });
    }
    match message.get("train").unwrap_or(&Value::Null) {
        Value::Bool(true) if role != "assistant" => {
            return Err(SampleError::TrainRole { index, role: role.to_owned() });
        }
        Value::Null | Value::Bool(_) => {}
        other => return Err(wrong_type(&key("train"), "true or false", other)),
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

pub(crate) fn wrong_type(key: &str, needed: &'static str, found: &Value) -> SampleError {
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

    fn parse(line: &str) -> Result<Content, SampleError> {
        Content::from_json(line)
    }

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
    fn messages_may_say_whether_they_are_learnt_and_nothing_else_of_the_kind() {
        let line = |role: &str, key: &str| {
            format!(r#"{{"messages": [{{"role": "{role}", "content": "a", {key}}}]}}"#)
        };
        for (role, key) in [
            ("assistant", r#""train": false"#),
            ("assistant", r#""train": true"#),
            ("assistant", r#""train": null"#),
            ("user", r#""train": false"#),
        ] {
            parse(&line(role, key)).unwrap();
        }
        for (role, key, said) in [
            ("user", r#""train": true"#, "message 0 (user) has `train: true`"),
            ("assistant", r#""train": 0"#, "`messages[0].train` is a number"),
            ("assistant", r#""weight": 0"#, "message 0 has `weight`"),
        ] {
            let error = parse(&line(role, key)).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn a_whole_sample_is_not_switched_off_by_a_key_that_is_not_read() {
        for (line, said) in [
            (r#"{"messages": [], "train": false}"#, "`train` beside"),
            (r#"{"text": "a", "weight": 0}"#, "`weight` beside"),
            (r#"{"text": "a", "tools": [{}]}"#, "`tools` without `messages`"),
            (r#"{"prompt": "a", "completion": "b", "tools": []}"#, "`tools` without `messages`"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
        parse(r#"{"text": "a", "tools": null, "note": {"train": false}}"#).unwrap();
    }

    #[test]
    fn ids_are_strings_or_integers() {
        for (id, found) in [
            (r#""a""#, Some("\"a\"")),
            ("7", Some("7")),
            ("-7", Some("-7")),
            ("1.5", None),
            ("null", None),
            ("[1]", None),
        ] {
            let line = format!(r#"{{"text": "t", "id": {id}}}"#);
            assert_eq!(from_line(line.as_bytes()).unwrap().1.as_deref(), found, "{id}");
        }
        assert_eq!(from_line(br#"{"text": "t"}"#).unwrap().1, None);
    }

    #[test]
    fn text_of_another_encoding_is_refused_at_its_byte() {
        let latin1 = b"{\"text\": \"caf\xe9\"}";
        assert!(matches!(from_line(latin1), Err(SampleError::NotUtf8 { byte: 13 })));
    }
}
