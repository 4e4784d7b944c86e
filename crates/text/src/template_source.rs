//! Where a model keeps its chat template.

use std::path::{Path, PathBuf};

use formats::gguf::Metadata;
use serde_json::{Map, Value};

use crate::gguf;
use crate::special_tokens::{ReadConfig, SpecialTokens, read_config};
use crate::tokenizer::gguf_special_tokens;
use crate::{ChatTemplate, TemplateError, TokenizerError};

/// The template that is used unless another fits better.
pub(crate) const DEFAULT: &str = "default";
/// The template that is used when there are tools, where a model has one.
pub(crate) const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// The template of a model folder: `chat_template.jinja`, or else `chat_template` in `tokenizer_config.json` (a
    /// string, or a list of named templates). Special tokens come from `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`TemplateError::Missing`] when there is neither; [`TemplateError::Read`] and [`TemplateError::Config`] for
    /// files that cannot be read; [`TemplateError::Syntax`] for a template that is not Jinja.
    pub fn from_folder(folder: &Path) -> Result<Self, TemplateError> {
        let config = config_of(&folder.join("tokenizer_config.json"))?;
        let jinja = folder.join("chat_template.jinja");
        if jinja.is_file() {
            let source = read(&jinja)?;
            return Self::new(&source, special_tokens(config.as_ref(), folder)?);
        }
        match config {
            Some(config) => from_config(&config, &folder.join("tokenizer_config.json")),
            None => Err(TemplateError::Missing { place: folder.display().to_string() }),
        }
    }

    /// The template inside one `tokenizer_config.json`.
    ///
    /// # Errors
    /// As [`from_folder`](Self::from_folder).
    pub fn from_tokenizer_config(path: &Path) -> Result<Self, TemplateError> {
        let config = config_of(path)?
            .ok_or_else(|| TemplateError::Missing { place: path.display().to_string() })?;
        from_config(&config, path)
    }

    /// A template in a file of its own. `special` gives it `bos_token` and the like.
    ///
    /// # Errors
    /// [`TemplateError::Read`] or [`TemplateError::Syntax`].
    pub fn from_jinja_file(path: &Path, special: SpecialTokens) -> Result<Self, TemplateError> {
        Self::new(&read(path)?, special)
    }

    /// The template inside a GGUF file: `tokenizer.chat_template`, and `tokenizer.chat_template.tool_use` where a file
    /// has it.
    ///
    /// # Errors
    /// [`TemplateError::Missing`] when there is none; [`TemplateError::Metadata`] when the special tokens cannot be
    /// read; [`TemplateError::Syntax`].
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TemplateError> {
        let text = |key: &str| metadata.str(key).map_err(TokenizerError::from);
        let source = text(gguf::KEY_TEMPLATE)?
            .ok_or_else(|| TemplateError::Missing { place: "the GGUF file".to_owned() })?;
        let mut sources = vec![(DEFAULT.to_owned(), source.to_owned())];
        if let Some(tools) = text(gguf::KEY_TEMPLATE_TOOLS)? {
            sources.push((TOOL_USE.to_owned(), tools.to_owned()));
        }
        Self::with_named(sources, gguf_special_tokens(metadata)?)
    }
}

fn from_config(config: &Map<String, Value>, path: &Path) -> Result<ChatTemplate, TemplateError> {
    let special = special_tokens(Some(config), path)?;
    let wrong =
        |reason: &str| TemplateError::Config { path: path.to_owned(), reason: reason.to_owned() };
    match config.get("chat_template") {
        None | Some(Value::Null) => {
            Err(TemplateError::Missing { place: path.display().to_string() })
        }
        Some(Value::String(source)) => ChatTemplate::new(source, special),
        Some(Value::Array(list)) => {
            let field = |entry: &Value, key: &str| {
                entry.get(key).and_then(Value::as_str).map(str::to_owned)
            };
            let sources = list
                .iter()
                .map(|entry| field(entry, "name").zip(field(entry, "template")))
                .collect::<Option<Vec<_>>>()
                .ok_or_else(|| {
                    wrong("every entry of `chat_template` needs the strings `name` and `template`")
                })?;
            ChatTemplate::with_named(sources, special)
        }
        Some(_) => Err(wrong("`chat_template` must be a string or a list")),
    }
}

fn read(path: &Path) -> Result<String, TemplateError> {
    std::fs::read_to_string(path)
        .map_err(|source| TemplateError::Read { path: path.to_owned(), source })
}

fn config_of(path: &Path) -> Result<Option<Map<String, Value>>, TemplateError> {
    read_config(path).map_err(|error| match error {
        ReadConfig::Read(source) => TemplateError::Read { path: path.to_owned(), source },
        ReadConfig::Shape(reason) => TemplateError::Config { path: path.to_owned(), reason },
    })
}

fn special_tokens(
    config: Option<&Map<String, Value>>,
    place: &Path,
) -> Result<SpecialTokens, TemplateError> {
    match config {
        None => Ok(SpecialTokens::default()),
        Some(config) => SpecialTokens::from_config(config)
            .map_err(|reason| TemplateError::Config { path: PathBuf::from(place), reason }),
    }
}
