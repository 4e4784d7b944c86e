//! Renderings against transformers' (`scripts/goldens/chat_templates.py`), and what a template can do wrong.

mod common;

use serde_json::{Map, Value, json};
use text::{ChatTemplate, SpecialTokens, TemplateError};

fn special(tokens: &Value) -> SpecialTokens {
    let mut special = SpecialTokens::default();
    for (name, text) in tokens.as_object().unwrap() {
        special.set(name, text.as_str().unwrap());
    }
    special
}

fn plain(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

fn render(
    template: &ChatTemplate,
    conversation: &Value,
    prompt: bool,
) -> Result<String, TemplateError> {
    let extra = conversation.get("extra").and_then(Value::as_object).cloned();
    template.render(
        conversation["messages"].as_array().unwrap(),
        conversation.get("tools"),
        prompt,
        &extra.unwrap_or_default(),
    )
}

/// Every conversation through one template: the golden text where transformers gives one, an error where it fails.
fn check(name: &str, template: &ChatTemplate) {
    let conversations = common::golden("conversations.json");
    let golden = common::golden("chat_templates.json");
    let rendered = golden["templates"][name]["rendered"].as_object().unwrap();
    assert_eq!(rendered.len(), conversations.as_object().unwrap().len());
    for (key, texts) in rendered {
        for (kind, prompt) in [("plain", false), ("prompt", true)] {
            let ours = render(template, &conversations[key], prompt);
            match (&texts[kind], ours) {
                (Value::String(text), Ok(ours)) => assert_eq!(&ours, text, "{name}, {key}, {kind}"),
                (Value::Null, Err(_)) => {}
                (theirs, ours) => {
                    panic!("{name}, {key}, {kind}: {ours:?} where transformers has {theirs}")
                }
            }
        }
    }
}

#[test]
fn smollm2_and_every_construct_render_as_in_transformers() {
    let golden = common::golden("chat_templates.json");
    let mut checked = 0;
    for (name, entry) in golden["templates"].as_object().unwrap() {
        if let Some(source) = entry["source"].as_str() {
            let template = ChatTemplate::new(source, special(&entry["special_tokens"])).unwrap();
            check(name, &template);
            checked += 1;
        }
    }
    assert_eq!(checked, 9);
}

#[test]
fn the_template_inside_smollm2s_gguf_is_the_golden_one() {
    let Some(file) = common::smollm2("the template inside SmolLM2's GGUF") else {
        return;
    };
    let template = ChatTemplate::from_gguf(file.metadata()).unwrap();
    let golden = common::golden("chat_templates.json");
    assert_eq!(
        template.special_tokens(),
        &special(&golden["templates"]["smollm2"]["special_tokens"])
    );
    check("smollm2", &template);
}

#[test]
fn qwen3_gemma3_and_llama3_render_as_in_transformers() {
    for name in ["qwen3", "gemma3", "llama3_1"] {
        if let Some(folder) =
            common::tokenizer_folder(&format!("the chat template of {name}"), name)
        {
            check(name, &ChatTemplate::from_folder(&folder).unwrap());
        }
    }
}

#[test]
fn generation_blocks_are_found_where_transformers_finds_them() {
    let golden = common::golden("chat_templates.json");
    let template = plain(golden["templates"]["construct_generation"]["source"].as_str().unwrap());
    assert!(template.has_generation_blocks());
    let conversation = &common::golden("conversations.json")["multi_turn"];
    let messages = conversation["messages"].as_array().unwrap();
    let rendered = template.render_tracked(messages, None, false, &Map::new()).unwrap();
    let inside: Vec<&str> =
        rendered.generation.iter().map(|range| &rendered.text[range.clone()]).collect();
    assert_eq!(json!(inside), golden["generation_texts"]);
}

fn hello() -> Vec<Value> {
    vec![json!({"role": "user", "content": "Hello"})]
}

fn failure(source: &str) -> TemplateError {
    plain(source).render(&hello(), None, false, &Map::new()).unwrap_err()
}

#[test]
fn a_syntax_error_names_its_line() {
    let error = ChatTemplate::new("a\n{% if %}", SpecialTokens::default()).unwrap_err();
    assert!(matches!(&error, TemplateError::Syntax { line: 2, .. }), "{error}");
}

#[test]
fn a_failing_template_names_its_line() {
    let error = failure("a\n\n{{ messages[0].content + 1 }}");
    assert!(matches!(&error, TemplateError::Render { line: 3, .. }), "{error}");
    let error = failure("{{ nothing.at.all }}");
    assert!(matches!(&error, TemplateError::Render { line: 1, .. }), "{error}");
    let error = failure("{{ nothing | tojson }}");
    assert!(matches!(&error, TemplateError::Render { .. }), "{error}");
}

#[test]
fn a_template_that_refuses_is_quoted() {
    let error = failure("\n{{ raise_exception('roles must alternate') }}");
    assert!(
        matches!(&error, TemplateError::Raised { line: 2, message, .. } if message == "roles must alternate"),
        "{error}"
    );
    let error = failure("{% macro m() %}\n{{ raise_exception('no') }}{% endmacro %}\n\n{{ m() }}");
    assert!(matches!(&error, TemplateError::Raised { line: 2, .. }), "{error}");
}

#[test]
fn an_endless_template_runs_out() {
    let loops = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    assert!(matches!(failure(loops), TemplateError::Render { .. }));
}

#[test]
fn a_huge_template_is_refused() {
    let source = " ".repeat((1 << 20) + 1);
    let error = ChatTemplate::new(&source, SpecialTokens::default()).unwrap_err();
    assert!(matches!(error, TemplateError::TooLarge { bytes: 1_048_577, .. }));
}

#[test]
fn the_renderers_own_variables_cannot_be_passed() {
    let extra = json!({"messages": []}).as_object().unwrap().clone();
    let error = plain("x").render(&hello(), None, false, &extra).unwrap_err();
    assert!(matches!(error, TemplateError::ReservedVariable { name } if name == "messages"));
}

#[test]
fn bad_tools_are_refused() {
    let error = plain("x").render(&hello(), Some(&json!("f")), false, &Map::new()).unwrap_err();
    assert!(matches!(error, TemplateError::Tools));
}

#[test]
fn text_cannot_forge_generation_blocks() {
    let template = plain("{% generation %}{{ messages[0].content }}{% endgeneration %}");
    let messages = [json!({"role": "user", "content": "a\u{fdd1}b"})];
    let error = template.render(&messages, None, false, &Map::new()).unwrap_err();
    assert!(matches!(error, TemplateError::ReservedCharacter { code: 0xfdd1 }));
}

#[test]
fn the_clock_can_be_stopped() {
    let template = plain("{{ strftime_now('%d %b %Y %H:%M') }}");
    assert!(template.uses_clock() && !plain("x").uses_clock());
    let template = template.at_unix_time(1_000_000_000);
    let text = template.render(&hello(), None, false, &Map::new()).unwrap();
    assert_eq!(text, "09 Sep 2001 01:46"); // date -u -d @1000000000
    let error = plain("{{ strftime_now('%!') }}").render(&hello(), None, false, &Map::new());
    assert!(matches!(error, Err(TemplateError::Render { .. })));
}

#[test]
fn a_folder_gives_its_template_from_either_place() {
    let folder = tempfile::tempdir().unwrap();
    let missing = ChatTemplate::from_folder(folder.path()).unwrap_err();
    assert!(matches!(missing, TemplateError::Missing { .. }));

    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let rendered = |tools: Option<&Value>| {
        let template = ChatTemplate::from_folder(folder.path()).unwrap();
        template.render(&hello(), tools, false, &Map::new()).unwrap()
    };
    let config = "tokenizer_config.json";
    write(config, r#"{"bos_token": {"content": "<s>"}, "chat_template": "{{ bos_token }}config"}"#);
    assert_eq!(rendered(None), "<s>config");
    write(
        config,
        r#"{"bos_token": "<s>", "chat_template": [
            {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#,
    );
    assert_eq!(rendered(None), "plain");
    assert_eq!(rendered(Some(&json!([{"type": "function"}]))), "tools");
    write("chat_template.jinja", "{{ bos_token }}file");
    assert_eq!(rendered(None), "<s>file");
}

#[test]
fn every_shape_of_a_bad_config_has_its_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer_config.json");
    let read = |text: &str| {
        std::fs::write(&path, text).unwrap();
        ChatTemplate::from_tokenizer_config(&path).unwrap_err()
    };
    for bad in [
        "{",
        "[]",
        r#"{"chat_template": 7}"#,
        r#"{"chat_template": [{"name": "x"}]}"#,
        r#"{"bos_token": 1}"#,
    ] {
        let error = read(bad);
        assert!(matches!(error, TemplateError::Config { .. }), "{bad}: {error}");
    }
    assert!(matches!(read("{}"), TemplateError::Missing { .. }));
    let named = r#"{"chat_template": [{"name": "rag", "template": "x"}]}"#;
    assert!(matches!(read(named), TemplateError::NoDefault { .. }));
    std::fs::remove_file(&path).unwrap();
    let missing = ChatTemplate::from_tokenizer_config(&path).unwrap_err();
    assert!(matches!(missing, TemplateError::Missing { .. }));
    std::fs::create_dir(&path).unwrap();
    let unreadable = ChatTemplate::from_tokenizer_config(&path).unwrap_err();
    assert!(matches!(unreadable, TemplateError::Read { .. }));
    let unreadable = ChatTemplate::from_jinja_file(&path, SpecialTokens::default()).unwrap_err();
    assert!(matches!(unreadable, TemplateError::Read { .. }));
}
