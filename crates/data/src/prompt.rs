//! Prompts: what a model is to go on from, a line each. One reader for everything that generates.

use serde_json::{Map, Value, json};
use text::{ChatTemplate, Tokenizer};

use crate::error::{DataError, Origin, SampleError};
use crate::sample::{check_messages, wrong_type};
use crate::unread;

/// What a prompt asks.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// `prompt`: a user's turn, or with no chat template the text itself.
    Text(String),
    /// `messages`, with `tools` if there are any: a conversation in which the assistant is next.
    Messages {
        /// The messages, at least one; the last is not the assistant's.
        messages: Vec<Value>,
        /// A list of JSON schemas.
        tools: Option<Value>,
    },
}

/// A prompt as its line has it.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptRow {
    /// The file and line.
    pub origin: Origin,
    /// What is asked.
    pub asked: Asked,
    /// Every other key of the line.
    pub fields: Map<String, Value>,
}

impl PromptRow {
    pub(crate) fn of(origin: Origin, mut fields: Map<String, Value>) -> Result<Self, DataError> {
        let asked = Asked::take(&mut fields).map_err(|error| error.at(&origin))?;
        Ok(PromptRow { origin, asked, fields })
    }
}

impl Asked {
    /// Takes `prompt`, or `messages` and `tools`, out of an object.
    fn take(object: &mut Map<String, Value>) -> Result<Asked, SampleError> {
        let keys = || object.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        if object.contains_key("prompt") == object.contains_key("messages") {
            return Err(SampleError::NoPrompt { keys: keys() });
        }
        if let Some(messages) = object.shift_remove("messages") {
            let tools = object.shift_remove("tools").filter(|tools| !tools.is_null());
            let messages = check_messages(messages)?;
            let Some(last) = messages.last() else { return Err(SampleError::NoMessages) };
            if last["role"] == "assistant" {
                return Err(SampleError::Answered);
            }
            return Ok(Asked::Messages { messages, tools });
        }
        match object.shift_remove("prompt") {
            Some(Value::String(prompt)) => Ok(Asked::Text(prompt)),
            other => Err(wrong_type("prompt", "a string", &other.unwrap_or(Value::Null))),
        }
    }
}

/// Makes prompts text and tokens for one model: the very bytes that training sees before the assistant's turn.
#[derive(Clone, Copy)]
pub struct PromptEncoder<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's chat template; `None` gives text prompts as they are.
    pub template: Option<&'a ChatTemplate>,
    /// A system message to put first; only with a template.
    pub system: Option<&'a str>,
}

impl PromptEncoder<'_> {
    /// The text of a prompt, up to where the assistant goes on, and its tokens, at least one.
    ///
    /// # Errors
    /// [`SampleError::RawMessages`], [`SampleError::Template`], [`SampleError::Tokenizer`], [`SampleError::EmptyPrompt`].
    pub fn encode(&self, asked: &Asked) -> Result<(String, Vec<u32>), SampleError> {
        let text = match (asked, self.template) {
            (Asked::Text(prompt), None) => prompt.clone(),
            (Asked::Text(prompt), Some(template)) => {
                self.render(template, &[json!({"role": "user", "content": prompt})], None)?
            }
            (Asked::Messages { .. }, None) => return Err(SampleError::RawMessages),
            (Asked::Messages { messages, tools }, Some(template)) => {
                unread::refuse(template, messages, tools.as_ref())?;
                self.render(template, messages, tools.as_ref())?
            }
        };
        // A template writes its own special tokens.
        let ids = self.tokenizer.encode(&text, self.template.is_none())?;
        if ids.is_empty() {
            return Err(SampleError::EmptyPrompt);
        }
        Ok((text, ids))
    }

    fn render(
        &self,
        template: &ChatTemplate,
        turns: &[Value],
        tools: Option<&Value>,
    ) -> Result<String, SampleError> {
        let system = self.system.map(|system| json!({"role": "system", "content": system}));
        let messages: Vec<Value> = system.into_iter().chain(turns.iter().cloned()).collect();
        Ok(template.render(&messages, tools, true, &Map::new())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::object_of;

    fn take(line: &str) -> Result<(Asked, Map<String, Value>), SampleError> {
        let mut object = object_of(line.as_bytes())?;
        Ok((Asked::take(&mut object)?, object))
    }

    #[test]
    fn a_prompt_is_rendered_to_where_the_assistant_goes_on_and_tokenized() {
        let folder = tempfile::tempdir().unwrap();
        let vocab = json!({"a": 0, "b": 1, "|": 2, "S": 3, "U": 4, "A": 5});
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": null,
            "model": {"type": "BPE", "vocab": vocab, "merges": []},
        });
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, tokenizer.to_string()).unwrap();
        let tokenizer = Tokenizer::from_tokenizer_json(&path).unwrap();
        let template = "{% for m in messages %}{{ m.role[0] | upper }}{{ m.content }}|{% endfor %}\
                        {{ 'A' if add_generation_prompt }}";
        let template = ChatTemplate::new(template, text::SpecialTokens::default()).unwrap();
        let with =
            PromptEncoder { tokenizer: &tokenizer, template: Some(&template), system: Some("b") };
        let text = Asked::Text("a".into());
        assert_eq!(with.encode(&text).unwrap(), ("Sb|Ua|A".into(), vec![3, 1, 2, 4, 0, 2, 5]));
        let turns = vec![json!({"role": "user", "content": "ab"})];
        let messages = Asked::Messages { messages: turns, tools: None };
        let plain = PromptEncoder { system: None, ..with };
        assert_eq!(plain.encode(&messages).unwrap(), ("Uab|A".into(), vec![4, 0, 1, 2, 5]));
        let raw = PromptEncoder { template: None, system: None, ..with };
        assert_eq!(raw.encode(&text).unwrap(), ("a".into(), vec![0]));
        assert!(matches!(raw.encode(&messages), Err(SampleError::RawMessages)));
        assert!(matches!(raw.encode(&Asked::Text(String::new())), Err(SampleError::EmptyPrompt)));
    }

    #[test]
    fn a_prompt_is_a_text_or_a_conversation_and_the_rest_is_kept() {
        let (asked, fields) = take(r#"{"id": 3, "prompt": "p", "answer": 7}"#).unwrap();
        assert_eq!(asked, Asked::Text("p".into()));
        assert_eq!(Value::Object(fields), json!({"id": 3, "answer": 7}));
        let line = r#"{"messages": [{"role": "user", "content": "a"}], "tools": [{}], "note": 1}"#;
        let (asked, fields) = take(line).unwrap();
        assert!(
            matches!(asked, Asked::Messages { messages, tools: Some(_) } if messages.len() == 1)
        );
        assert_eq!(Value::Object(fields), json!({"note": 1}));
    }

    /// Every way in which a prompt can be wrong, with a part of what is said.
    #[test]
    fn every_wrong_prompt_has_its_error() {
        for (line, said) in [
            ("{", "not JSON"),
            ("[]", "a list where an object is needed"),
            ("{}", "a text `prompt` or a list `messages`"),
            (r#"{"question": 1}"#, "the object has: question"),
            (r#"{"prompt": "a", "messages": []}"#, "and not both"),
            (r#"{"prompt": 3}"#, "`prompt` is a number, not a string"),
            (r#"{"messages": "a"}"#, "`messages` is a string"),
            (r#"{"messages": []}"#, "`messages` is empty"),
            (r#"{"messages": [{"role": "bot", "content": "a"}]}"#, "role \"bot\""),
            (
                r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
                "the last message is the assistant's",
            ),
        ] {
            let error = take(line).unwrap_err().to_string();
            assert!(error.contains(said), "{line}: {error}");
        }
    }
}
