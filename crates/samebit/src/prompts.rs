//! Prompts of `samebit generate`: one from the command line, or a file of them.

use crate::model::Model;
use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use text::{ChatTemplate, Tokenizer};

/// Where prompts come from, and how they become tokens.
#[derive(clap::Args)]
pub(crate) struct Prompts {
    /// The prompt
    #[arg(required_unless_present = "prompts", conflicts_with = "prompts")]
    prompt: Option<String>,
    /// JSON Lines of prompts, each {"prompt": TEXT} or {"messages": [...]}; completions come as JSON Lines with --json
    #[arg(long, value_name = "FILE")]
    prompts: Option<PathBuf>,
    /// Give prompts as they are, not as a user's turn in the model's chat template
    #[arg(long)]
    raw: bool,
    /// System message
    #[arg(long, conflicts_with = "raw")]
    system: Option<String>,
}

impl Prompts {
    /// Whether they are a file's.
    pub(crate) fn are_many(&self) -> bool {
        self.prompts.is_some()
    }

    /// Tokens of every prompt, each of at least one and less than `context`.
    pub(crate) fn read(&self, model: &Model, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
        let template = if self.raw { None } else { Some(model.template()?) };
        let encode = |prompt: &Value| -> Result<Vec<u32>> {
            let ids = self.encode(prompt, template.as_ref(), tokenizer)?;
            let context = model.checkpoint.config().max_position_embeddings;
            if ids.is_empty() {
                bail!("the prompt has no tokens");
            }
            if ids.len() >= context {
                bail!(
                    "the prompt has {} tokens and the model's context is {context}: shorten it",
                    ids.len()
                );
            }
            Ok(ids)
        };
        if let Some(prompt) = &self.prompt {
            return Ok(vec![encode(&json!({"prompt": prompt}))?]);
        }
        let Some(file) = &self.prompts else { unreachable!("a prompt or a file is required") };
        lines(file)?
            .into_iter()
            .map(|(number, line)| {
                encode(&line).with_context(|| format!("{}, line {number}", file.display()))
            })
            .collect()
    }

    fn encode(
        &self,
        line: &Value,
        template: Option<&ChatTemplate>,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>> {
        let turns = match (line.get("prompt"), line.get("messages")) {
            (Some(Value::String(prompt)), None) => {
                let Some(_) = template else { return Ok(tokenizer.encode(prompt, true)?) };
                vec![json!({"role": "user", "content": prompt})]
            }
            (None, Some(Value::Array(turns))) => {
                if template.is_none() {
                    bail!("--raw takes prompts, and this is a list of messages");
                }
                turns.clone()
            }
            _ => bail!("a line holds either a text `prompt` or a list `messages`"),
        };
        let system = self.system.iter().map(|s| json!({"role": "system", "content": s}));
        let messages: Vec<Value> = system.chain(turns).collect();
        let Some(template) = template else { unreachable!("messages are refused without one") };
        Ok(tokenizer.encode(&template.render(&messages, None, true, &Map::new())?, false)?)
    }
}

/// Most bytes of a file of prompts.
const FILE_LIMIT: u64 = 1 << 30;

/// The values of a file's lines that are not blank, with their numbers.
fn lines(file: &Path) -> Result<Vec<(usize, Value)>> {
    let name = || file.display().to_string();
    let bytes = std::fs::metadata(file).with_context(name)?.len();
    if bytes > FILE_LIMIT {
        bail!("{}: {bytes} bytes of prompts: the most is {FILE_LIMIT}", name());
    }
    let text = std::fs::read_to_string(file).with_context(name)?;
    let numbered = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let values: Vec<_> = numbered
        .map(|(index, line)| {
            let value = serde_json::from_str(line);
            Ok((index + 1, value.with_context(|| format!("{}, line {}", name(), index + 1))?))
        })
        .collect::<Result<_>>()?;
    if values.is_empty() {
        bail!("{}: no prompts: give one JSON object a line", name());
    }
    Ok(values)
}
