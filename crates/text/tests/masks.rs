//! Which tokens of a conversation an assistant said.

mod common;

use serde_json::{Map, Value, json};
use text::{ChatTemplate, Encoded, MaskError, SpecialTokens, Supervised, Tokenizer};

/// A byte-level tokenizer that knows SmolLM2's markers, and one merge of two line feeds.
fn byte_tokenizer() -> Tokenizer {
    let special = ["<|im_start|>", "<|im_end|>"];
    Tokenizer::from_gguf(&common::metadata(common::byte_level("gpt-2", &special, &["Ċ Ċ"])))
        .unwrap()
}

fn smollm2_template() -> ChatTemplate {
    let golden = common::golden("chat_templates.json");
    plain(golden["templates"]["smollm2"]["source"].as_str().unwrap())
}

fn plain(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, SpecialTokens::default()).unwrap()
}

fn messages(name: &str) -> Vec<Value> {
    common::golden("conversations.json")[name]["messages"].as_array().unwrap().clone()
}

fn mask(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[Value],
) -> Result<Supervised, MaskError> {
    template.render_with_mask(tokenizer, messages, None, &Map::new())
}

fn spans(supervised: &Supervised) -> Vec<&str> {
    supervised.spans.iter().map(|span| &supervised.text[span.clone()]).collect()
}

/// The supervised ids, decoded run by run.
fn learnt(tokenizer: &Tokenizer, encoded: &Encoded) -> Vec<String> {
    assert_eq!(encoded.ids.len(), encoded.supervised.len());
    let flagged: Vec<(u32, bool)> =
        encoded.ids.iter().copied().zip(encoded.supervised.iter().copied()).collect();
    flagged
        .chunk_by(|a, b| a.1 == b.1)
        .filter(|run| run[0].1)
        .map(|run| {
            let ids: Vec<u32> = run.iter().map(|(id, _)| *id).collect();
            tokenizer.decode(&ids, false).unwrap()
        })
        .collect()
}

#[test]
fn a_turn_is_its_words_and_its_end_marker() {
    let tokenizer = byte_tokenizer();
    for (name, expected) in [
        ("answered", vec!["4<|im_end|>"]),
        ("system", vec!["Paris<|im_end|>"]),
        ("multi_turn", vec!["Hello!<|im_end|>", "Goodbye.<|im_end|>"]),
        ("unicode", vec!["नमस्ते\tدنیا — \\n ok<|im_end|>"]),
    ] {
        let template = smollm2_template();
        let supervised = mask(&template, &tokenizer, &messages(name)).unwrap();
        assert_eq!(spans(&supervised), expected, "{name}");
        let encoded = supervised.encode(&tokenizer).unwrap();
        assert_eq!(learnt(&tokenizer, &encoded), expected, "{name}");
        assert_eq!(tokenizer.decode(&encoded.ids, false).unwrap(), supervised.text);
        let at_once = template.encode_with_mask(&tokenizer, &messages(name), None, &Map::new());
        assert_eq!(at_once.unwrap(), encoded);
    }
}

#[test]
fn smollm2s_own_tokenizer_gives_the_ids_of_the_whole_text() {
    let Some(file) = common::smollm2("the mask on SmolLM2's tokenizer") else {
        return;
    };
    let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
    let template = ChatTemplate::from_gguf(file.metadata()).unwrap();
    let encoded =
        template.encode_with_mask(&tokenizer, &messages("multi_turn"), None, &Map::new()).unwrap();
    assert_eq!(learnt(&tokenizer, &encoded), ["Hello!<|im_end|>", "Goodbye.<|im_end|>"]);
    let text = template.render(&messages("multi_turn"), None, false, &Map::new()).unwrap();
    assert_eq!(encoded.ids, tokenizer.encode(&text, false).unwrap());
}

#[test]
fn other_models_turns_end_at_their_own_markers() {
    for (name, expected) in [
        ("gemma3", ["Hello!<end_of_turn>", "Goodbye.<end_of_turn>"]),
        ("llama3_1", ["Hello!<|eot_id|>", "Goodbye.<|eot_id|>"]),
    ] {
        if let Some(folder) = common::tokenizer_folder(&format!("the mask of {name}"), name) {
            let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
            let template = ChatTemplate::from_folder(&folder).unwrap();
            let encoded = template
                .encode_with_mask(&tokenizer, &messages("multi_turn"), None, &Map::new())
                .unwrap();
            assert_eq!(learnt(&tokenizer, &encoded), expected, "{name}");
        }
    }
}

#[test]
fn qwen3_learns_a_last_turn_and_refuses_turns_that_it_rewrites() {
    let Some(folder) = common::tokenizer_folder("the mask of qwen3", "qwen3") else {
        return;
    };
    let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
    let template = ChatTemplate::from_folder(&folder).unwrap();
    let encoded =
        template.encode_with_mask(&tokenizer, &messages("answered"), None, &Map::new()).unwrap();
    assert_eq!(learnt(&tokenizer, &encoded), ["<think>\n\n</think>\n\n4<|im_end|>"]);
    let error = mask(&template, &tokenizer, &messages("multi_turn")).unwrap_err();
    assert!(matches!(error, MaskError::RewritesTurn { index: 2, .. }), "{error}");
}

#[test]
fn generation_blocks_say_what_is_learnt() {
    let golden = common::golden("chat_templates.json");
    let template = plain(golden["templates"]["construct_generation"]["source"].as_str().unwrap());
    let tokenizer = byte_tokenizer();
    let supervised = mask(&template, &tokenizer, &messages("multi_turn")).unwrap();
    assert_eq!(json!(spans(&supervised)), golden["generation_texts"]);
    let encoded = supervised.encode(&tokenizer).unwrap();
    assert_eq!(json!(learnt(&tokenizer, &encoded)), golden["generation_texts"]);

    let silent = plain("{% if false %}{% generation %}x{% endgeneration %}{% endif %}");
    let error = mask(&silent, &tokenizer, &messages("answered")).unwrap_err();
    assert!(matches!(error, MaskError::NoGeneration), "{error}");
}

#[test]
fn conversations_without_something_to_learn_are_refused() {
    let (template, tokenizer) = (smollm2_template(), byte_tokenizer());
    let error = mask(&template, &tokenizer, &messages("single")).unwrap_err();
    assert!(matches!(error, MaskError::NoAssistant), "{error}");
    let first = [json!({"role": "assistant", "content": "hi"})];
    let error = mask(&template, &tokenizer, &first).unwrap_err();
    assert!(matches!(error, MaskError::AssistantFirst), "{error}");
    let error = mask(&template, &tokenizer, &[json!({"role": "bot"})]).unwrap_err();
    assert!(matches!(error, MaskError::Template(_)), "{error}");
}

#[test]
fn templates_that_rewrite_are_refused() {
    let tokenizer = byte_tokenizer();
    let counting = plain(
        "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}{% endif %}",
    );
    let error = mask(&counting, &tokenizer, &messages("answered")).unwrap_err();
    assert!(matches!(error, MaskError::RewritesPrompt { index: 1, byte: 0 }), "{error}");

    let last = plain(
        "{% for m in messages %}{{ m.content }}{% if loop.last and m.role == 'assistant' %}!{% endif %}{% endfor %}",
    );
    let error = mask(&last, &tokenizer, &messages("multi_turn")).unwrap_err();
    assert!(matches!(error, MaskError::RewritesTurn { index: 2, .. }), "{error}");
}

#[test]
fn a_token_across_the_edge_of_a_turn_is_refused() {
    // The template ends the prompt with a line feed; with two more the tokenizer joins the first two.
    let messages =
        [json!({"role": "user", "content": "a"}), json!({"role": "assistant", "content": "\n\nb"})];
    let (template, tokenizer) = (smollm2_template(), byte_tokenizer());
    let error = template.encode_with_mask(&tokenizer, &messages, None, &Map::new()).unwrap_err();
    assert!(
        matches!(&error, MaskError::TokenAcrossEdge { token, .. } if token == "\n\n"),
        "{error}"
    );
}

#[test]
fn a_turn_without_an_end_marker_is_kept_whole() {
    let template = plain(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}",
    );
    let tokenizer = byte_tokenizer();
    let supervised = mask(&template, &tokenizer, &messages("answered")).unwrap();
    assert_eq!(spans(&supervised), ["4\n\n"]);
}

/// `messages` with `train: false` at some of them.
fn untrained(mut messages: Vec<Value>, at: &[usize]) -> Vec<Value> {
    for &index in at {
        messages[index]["train"] = json!(false);
    }
    messages
}

#[test]
fn a_turn_marked_untrained_is_rendered_and_not_learnt() {
    let (template, tokenizer) = (smollm2_template(), byte_tokenizer());
    let marked = untrained(messages("multi_turn"), &[1]);
    let assistants: Vec<usize> =
        (0..marked.len()).filter(|&i| marked[i]["role"] == "assistant").collect();
    let first = untrained(messages("multi_turn"), &assistants[..1]);
    let supervised = mask(&template, &tokenizer, &first).unwrap();
    assert_eq!(spans(&supervised), ["Goodbye.<|im_end|>"]);
    let all = mask(&template, &tokenizer, &messages("multi_turn")).unwrap();
    assert_eq!(supervised.text, all.text, "the template does not see the key");
    let error = mask(&template, &tokenizer, &untrained(messages("multi_turn"), &assistants));
    assert!(matches!(error, Err(MaskError::NoneTrained)), "{error:?}");
}

#[test]
fn generation_blocks_are_told_apart_by_their_turns() {
    let golden = common::golden("chat_templates.json");
    let source = golden["templates"]["construct_generation"]["source"].as_str().unwrap();
    let tokenizer = byte_tokenizer();
    let conversation = messages("multi_turn");
    let first = conversation.iter().position(|m| m["role"] == "assistant").unwrap();
    let marked = untrained(conversation, &[first]);
    let supervised = mask(&plain(source), &tokenizer, &marked).unwrap();
    assert_eq!(json!(spans(&supervised)[0]), golden["generation_texts"][1]);
    assert_eq!(supervised.spans.len(), 1);
    let twice = source
        .replace("{% endgeneration %}", "{% endgeneration %}{% generation %}!{% endgeneration %}");
    assert_ne!(twice, source);
    let supervised = mask(&plain(&twice), &tokenizer, &marked).unwrap();
    assert_eq!(spans(&supervised), ["Goodbye.</s>!"]);
}

/// A template whose blocks hold the assistant's words between `before` and `after`, and whose prompt for generation ends
/// with `prompt`.
fn with_blocks(before: &str, after: &str, prompt: &str) -> ChatTemplate {
    plain(&format!(
        "{{% for m in messages %}}<|im_start|>{{{{ m.role }}}}:{{% if m.role == 'assistant' %}}{before}\
         {{% generation %}}{{{{ m.content }}}}{{% endgeneration %}}{{% else %}}{{{{ m.content }}}}{{% endif %}}{after}\
         {{% endfor %}}{{% if add_generation_prompt %}}<|im_start|>assistant:{prompt}{{% endif %}}"
    ))
}

#[test]
fn the_marker_after_a_block_is_learnt_and_the_next_turns_is_not() {
    let tokenizer = byte_tokenizer();
    let learnt = |after: &str| {
        let supervised = mask(&with_blocks("", after, ""), &tokenizer, &messages("multi_turn"));
        spans(&supervised.unwrap()).join("|")
    };
    assert_eq!(learnt("<|im_end|>"), "Hello!<|im_end|>|Goodbye.<|im_end|>");
    assert_eq!(learnt(" <|im_end|>\n"), "Hello! <|im_end|>|Goodbye. <|im_end|>");
    assert_eq!(learnt(" "), "Hello!|Goodbye.");
    assert_eq!(learnt(""), "Hello!|Goodbye.");
    assert_eq!(learnt(" end<|im_end|>"), "Hello!|Goodbye.");
}

#[test]
fn a_block_begins_where_generation_would() {
    let tokenizer = byte_tokenizer();
    let refusal = |before: &str, prompt: &str| {
        let template = with_blocks(before, "<|im_end|>", prompt);
        mask(&template, &tokenizer, &messages("answered")).unwrap_err()
    };
    let error = refusal("", "<think>");
    assert!(matches!(error, MaskError::RewritesPrompt { index: 1, .. }), "{error}");
    let error = refusal("[", "");
    assert!(
        matches!(error, MaskError::BlockStart { index: 1, block, prompt } if block == prompt + 1),
        "{error}"
    );
    let template = with_blocks("<think>", "<|im_end|>", "<think>");
    let supervised = mask(&template, &tokenizer, &messages("answered")).unwrap();
    assert_eq!(spans(&supervised), ["4<|im_end|>"]);
}

#[test]
fn qwen3_learns_the_last_of_several_turns_when_the_earlier_are_marked() {
    let Some(folder) = common::tokenizer_folder("the marked turns of qwen3", "qwen3") else {
        return;
    };
    let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
    let template = ChatTemplate::from_folder(&folder).unwrap();
    let error = mask(&template, &tokenizer, &messages("multi_turn")).unwrap_err().to_string();
    assert!(error.contains("`train: false`"), "{error}");
    let conversation = messages("multi_turn");
    let first = conversation.iter().position(|m| m["role"] == "assistant").unwrap();
    let encoded = template
        .encode_with_mask(&tokenizer, &untrained(conversation, &[first]), None, &Map::new())
        .unwrap();
    assert_eq!(learnt(&tokenizer, &encoded), ["<think>\n\n</think>\n\nGoodbye.<|im_end|>"]);
}

/// The ids before every learnt turn are those that generation makes of the conversation up to it.
fn assert_prompts_are_generations(
    name: &str,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Value],
) {
    let encoded = template.encode_with_mask(tokenizer, messages, None, &Map::new()).unwrap();
    let starts =
        (1..encoded.ids.len()).filter(|&i| encoded.supervised[i] && !encoded.supervised[i - 1]);
    let starts: Vec<usize> = starts.collect();
    let learnt = (0..messages.len())
        .filter(|&i| messages[i]["role"] == "assistant" && messages[i]["train"] != false);
    let learnt: Vec<usize> = learnt.collect();
    assert_eq!(starts.len(), learnt.len(), "{name}");
    for (start, index) in starts.into_iter().zip(learnt) {
        let prompt = template.render(&messages[..index], None, true, &Map::new()).unwrap();
        let ids = tokenizer.encode(&prompt, false).unwrap();
        assert_eq!(encoded.ids[..start], ids, "{name}: message {index}");
        let turn = &encoded.ids[start..];
        let end = encoded.supervised[start..].iter().position(|&flag| !flag).unwrap_or(turn.len());
        assert!(tokenizer.is_special(turn[end - 1]), "{name}: the end marker is learnt");
        assert!(ids.len() < 2 || ids[0] != ids[1], "{name}: one BOS");
    }
}

#[test]
fn training_and_generation_see_the_same_prompt_on_every_real_tokenizer() {
    for name in ["qwen3", "gemma3", "llama3_1"] {
        let Some(folder) = common::tokenizer_folder(&format!("the prompts of {name}"), name) else {
            continue;
        };
        let tokenizer = Tokenizer::from_tokenizer_json(&folder.join("tokenizer.json")).unwrap();
        let template = ChatTemplate::from_folder(&folder).unwrap();
        for conversation in ["answered", "system", "unicode"] {
            let messages = messages(conversation);
            assert_prompts_are_generations(name, &tokenizer, &template, &messages);
        }
        let several = messages("multi_turn");
        let first = several.iter().position(|m| m["role"] == "assistant").unwrap();
        let marked = if name == "qwen3" { vec![first] } else { vec![] };
        let several = untrained(several, &marked);
        assert_prompts_are_generations(name, &tokenizer, &template, &several);
    }
    if let Some(file) = common::smollm2("the prompts of SmolLM2") {
        let tokenizer = Tokenizer::from_gguf(file.metadata()).unwrap();
        let template = ChatTemplate::from_gguf(file.metadata()).unwrap();
        for conversation in ["answered", "system", "unicode", "multi_turn"] {
            let messages = messages(conversation);
            assert_prompts_are_generations("smollm2", &tokenizer, &template, &messages);
        }
    }
}

/// GPT-2's pieces hold two line feeds together only where no word follows them, so a prompt that ends with two is one
/// token in generation and two in training.
#[test]
fn a_prompt_with_other_ids_alone_is_refused() {
    let template = plain(
        "{% for m in messages %}{{ m.role }}:\n\n{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:\n\n{% endif %}",
    );
    let tokenizer = byte_tokenizer();
    let error = template
        .encode_with_mask(&tokenizer, &messages("answered"), None, &Map::new())
        .unwrap_err();
    assert!(matches!(error, MaskError::PromptIds { .. }), "{error}");
    let one = plain(
        "{% for m in messages %}{{ m.role }}:\n{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}",
    );
    one.encode_with_mask(&tokenizer, &messages("answered"), None, &Map::new()).unwrap();
}
