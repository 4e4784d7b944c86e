//! Prompts of `samebit generate`: one from the command line, or a file of them.

use crate::model::Model;
use anyhow::{Context, Result, bail};
use data::{Asked, Corpus, PromptEncoder, Source};
use std::path::PathBuf;
use text::Tokenizer;

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

    /// Tokens of every prompt, each of at least one and less than the model's context.
    pub(crate) fn read(&self, model: &Model, tokenizer: &Tokenizer) -> Result<Vec<Vec<u32>>> {
        let template = if self.raw { None } else { Some(model.template()?) };
        let encoder = PromptEncoder {
            tokenizer,
            template: template.as_ref(),
            system: self.system.as_deref(),
        };
        let context = model.checkpoint.config().max_position_embeddings;
        let fits = |ids: &[u32]| match ids.len() {
            tokens if tokens < context => Ok(()),
            tokens => bail!(
                "the prompt has {tokens} tokens and the model's context is {context}: shorten it"
            ),
        };
        if let Some(prompt) = &self.prompt {
            let (_, ids) = encoder.encode(&Asked::Text(prompt.clone()))?;
            fits(&ids)?;
            return Ok(vec![ids]);
        }
        let Some(file) = &self.prompts else { unreachable!("a prompt or a file is required") };
        let rows = Corpus::open(&[Source::new(file)])?.prompts()?;
        rows.iter()
            .map(|row| {
                let (_, ids) = encoder.encode(&row.asked).map_err(|error| error.at(&row.origin))?;
                fits(&ids).with_context(|| row.origin.to_string())?;
                Ok(ids)
            })
            .collect()
    }
}
