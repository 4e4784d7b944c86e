//! What a conversation must look like before a template sees it.

use serde_json::{Map, Value};

use crate::TemplateError;

/// The roles that a message may have.
pub const ROLES: &[&str] = &["system", "user", "assistant", "tool"];

/// The names under which a message may carry the model's reasoning; templates read the first.
const REASONING: &[&str] = &["reasoning_content", "thinking", "reasoning"];

/// The key that says whether an assistant's message is learnt. It is ours: no template sees it.
const TRAIN: &str = "train";

/// Checks messages and brings them to the form in which transformers hands them to templates.
///
/// As there: keys whose value is null are dropped, and reasoning given under one name is readable under
/// `reasoning_content` and `thinking`. The key `train` is taken out.
pub(crate) fn normalize(messages: &[Value]) -> Result<Vec<Value>, TemplateError> {
    if messages.is_empty() {
        return Err(TemplateError::Empty);
    }
    messages
        .iter()
        .enumerate()
        .map(|(index, message)| {
            let message = message.as_object().ok_or(TemplateError::NotAnObject { index })?;
            check_role(index, message)?;
            check_train(index, message)?;
            Ok(Value::Object(alias_reasoning(message)))
        })
        .collect()
}

/// Whether a message is an assistant's.
pub(crate) fn is_assistant(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

/// Whether a message is learnt: an assistant's, unless it has `train: false`.
pub(crate) fn is_learnt(message: &Value) -> bool {
    is_assistant(message) && message.get(TRAIN).and_then(Value::as_bool) != Some(false)
}

fn check_train(index: usize, message: &Map<String, Value>) -> Result<(), TemplateError> {
    let assistant = message.get("role").and_then(Value::as_str) == Some("assistant");
    match message.get(TRAIN) {
        None | Some(Value::Null | Value::Bool(false)) => Ok(()),
        Some(Value::Bool(true)) if assistant => Ok(()),
        Some(Value::Bool(true)) => Err(TemplateError::TrainRole { index }),
        Some(_) => Err(TemplateError::TrainType { index }),
    }
}

fn check_role(index: usize, message: &Map<String, Value>) -> Result<(), TemplateError> {
    match message.get("role") {
        None | Some(Value::Null) => Err(TemplateError::MissingRole { index }),
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => Ok(()),
        Some(Value::String(role)) => Err(TemplateError::UnknownRole { index, role: role.clone() }),
        Some(other) => Err(TemplateError::UnknownRole { index, role: other.to_string() }),
    }
}

/// As Python's `{"thinking": r, **message, "reasoning_content": r}`, whose order of keys templates can print.
fn alias_reasoning(message: &Map<String, Value>) -> Map<String, Value> {
    let present = message.iter().filter(|(key, value)| !value.is_null() && *key != TRAIN);
    let reasoning = REASONING.iter().find_map(|name| message.get(*name).filter(|r| !r.is_null()));
    let mut normal = Map::new();
    if let Some(reasoning) = reasoning {
        normal.insert("thinking".to_owned(), reasoning.clone());
    }
    normal.extend(present.map(|(key, value)| (key.clone(), value.clone())));
    if let Some(reasoning) = reasoning {
        normal.insert("reasoning_content".to_owned(), reasoning.clone());
    }
    normal
}

/// Checks that tools are a list of objects.
pub(crate) fn check_tools(tools: Option<&Value>) -> Result<(), TemplateError> {
    match tools {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Array(list)) if list.iter().all(Value::is_object) => Ok(()),
        Some(_) => Err(TemplateError::Tools),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_shape_of_a_bad_message_has_its_error() {
        let good = json!({"role": "user", "content": "a"});
        assert!(matches!(normalize(&[]), Err(TemplateError::Empty)));
        assert!(matches!(
            normalize(&[good.clone(), json!("text")]),
            Err(TemplateError::NotAnObject { index: 1 })
        ));
        assert!(matches!(
            normalize(&[json!({"content": "a"})]),
            Err(TemplateError::MissingRole { index: 0 })
        ));
        assert!(matches!(
            normalize(&[json!({"role": null, "content": "a"})]),
            Err(TemplateError::MissingRole { index: 0 })
        ));
        let error = normalize(&[good, json!({"role": "bot", "content": "a"})]).unwrap_err();
        assert!(
            matches!(&error, TemplateError::UnknownRole { index: 1, role } if role == "bot"),
            "{error}"
        );
        assert!(matches!(normalize(&[json!({"role": 7})]), Err(TemplateError::UnknownRole { .. })));
    }

    #[test]
    fn nulls_go_and_reasoning_is_known_by_all_its_names() {
        let message = json!({"role": "assistant", "reasoning": "r", "tool_calls": null});
        let normal = normalize(&[message]).unwrap();
        assert_eq!(
            normal[0],
            json!({"role": "assistant", "reasoning": "r", "thinking": "r", "reasoning_content": "r"})
        );
    }

    #[test]
    fn only_an_assistants_words_are_learnt_and_no_template_sees_the_key() {
        let message =
            |role: &str, train: Value| json!({"role": role, "content": "a", "train": train});
        for (role, train, learnt) in [
            ("assistant", json!(true), true),
            ("assistant", json!(null), true),
            ("assistant", json!(false), false),
            ("user", json!(false), false),
        ] {
            let message = message(role, train);
            assert_eq!(is_learnt(&message), learnt, "{message}");
            let normal = normalize(&[message]).unwrap();
            assert_eq!(normal[0], json!({"role": role, "content": "a"}));
        }
        let error = normalize(&[message("user", json!(true))]).unwrap_err();
        assert!(matches!(error, TemplateError::TrainRole { index: 0 }), "{error}");
        let error = normalize(&[message("assistant", json!(0))]).unwrap_err();
        assert!(matches!(error, TemplateError::TrainType { index: 0 }), "{error}");
    }

    #[test]
    fn tools_are_a_list_of_objects() {
        assert!(check_tools(Some(&json!([{"type": "function"}]))).is_ok());
        assert!(check_tools(Some(&json!({"type": "function"}))).is_err());
        assert!(check_tools(Some(&json!(["f"]))).is_err());
    }
}
