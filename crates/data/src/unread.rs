//! What a conversation holds and a chat template does not render: it would be learnt, or answered, as if nobody had said it.

use serde_json::{Map, Value};
use text::ChatTemplate;

use crate::error::SampleError;

/// Refuses tools, and calls of tools, that make no difference to the text.
///
/// # Errors
/// [`SampleError::Unread`]; [`SampleError::Template`] where the conversation cannot be rendered at all.
pub(crate) fn refuse(
    template: &ChatTemplate,
    messages: &[Value],
    tools: Option<&Value>,
) -> Result<(), SampleError> {
    let is_some = |value: &Value| match value {
        Value::Null => false,
        Value::Array(list) => !list.is_empty(),
        _ => true,
    };
    let tools = tools.filter(|tools| is_some(tools));
    let calls = |message: &Value| message.get("tool_calls").is_some_and(is_some);
    if tools.is_none() && !messages.iter().any(calls) {
        return Ok(());
    }
    let render = |messages: &[Value], tools| template.render(messages, tools, false, &Map::new());
    let whole = render(messages, tools)?;
    // Where a template refuses what is left, it has read what was taken away.
    let same = |messages: &[Value], tools| render(messages, tools).is_ok_and(|text| text == whole);
    if tools.is_some() && same(messages, None) {
        return Err(SampleError::Unread { what: "`tools`".to_owned() });
    }
    for index in (0..messages.len()).filter(|&index| calls(&messages[index])) {
        let mut without = messages.to_vec();
        without[index].as_object_mut().map(|message| message.remove("tool_calls"));
        if same(&without, tools) {
            return Err(SampleError::Unread { what: format!("`tool_calls` of message {index}") });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use text::SpecialTokens;

    const READS: &str = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }} {{ m.content }} \
                         {{ m.tool_calls | tojson if m.tool_calls }}\n{% endfor %}";
    const READS_NEITHER: &str = "{% for m in messages %}{{ m.role }} {{ m.content }}\n{% endfor %}";

    fn refused(template: &str, tools: Value, calls: Value) -> Option<String> {
        let template = ChatTemplate::new(template, SpecialTokens::default()).unwrap();
        let messages = [
            json!({"role": "user", "content": "u"}),
            json!({"role": "assistant", "content": "", "tool_calls": calls}),
        ];
        match refuse(&template, &messages, Some(&tools)) {
            Err(SampleError::Unread { what }) => Some(what),
            other => {
                other.unwrap();
                None
            }
        }
    }

    #[test]
    fn what_a_template_reads_passes_and_what_it_does_not_is_named() {
        let (tool, call) = (json!([{"type": "function"}]), json!([{"function": {"name": "f"}}]));
        assert_eq!(refused(READS, tool.clone(), call.clone()), None);
        for nothing in [json!([]), Value::Null] {
            assert_eq!(refused(READS_NEITHER, nothing.clone(), nothing), None);
        }
        assert_eq!(refused(READS_NEITHER, tool, json!([])).as_deref(), Some("`tools`"));
        let calls = refused(READS_NEITHER, json!([]), call);
        assert_eq!(calls.as_deref(), Some("`tool_calls` of message 1"));
    }
}
