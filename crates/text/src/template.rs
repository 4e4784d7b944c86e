//! Chat templates: messages to text, byte-equal to transformers' `apply_chat_template`.

use std::ops::Range;

use jiff::{Timestamp, Zoned, tz::TimeZone};
use minijinja::value::{Value as Jinja, ValueKind};
use minijinja::{Environment, Error, ErrorKind};
use serde_json::{Map, Value};

use crate::messages;
use crate::template_source::{DEFAULT, TOOL_USE};
use crate::{SpecialTokens, TemplateError, generation, python};

/// The most bytes that a template may have (the longest in use have some 20 kB).
pub(crate) const SOURCE_LIMIT: usize = 1 << 20;

/// The most engine instructions that one rendering may take: some 10,000 messages; a template that loops ends here.
const FUEL: u64 = 20_000_000;

/// The variables that the renderer sets itself.
const RESERVED: &[&str] = &["messages", "tools", "documents", "add_generation_prompt"];

/// A model's chat template, ready to render.
///
/// Rendering is transformers' (5.24): blocks trimmed, `tojson` without escapes, `raise_exception`, `strftime_now`,
/// `{% generation %}`, `{% break %}` and `{% continue %}`, values printed as Python prints them, and the special tokens
/// as variables.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    names: Vec<String>,
    sources: Vec<(String, String)>,
    special: SpecialTokens,
    has_generation: bool,
    uses_clock: bool,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// The bytes of it that the template itself put into `{% generation %}` blocks, in order.
    pub generation: Vec<Range<usize>>,
}

impl ChatTemplate {
    /// A template from its source. `special` gives it the variables `bos_token`, `eos_token` and the like.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`] with the line, or [`TemplateError::TooLarge`].
    pub fn new(source: &str, special: SpecialTokens) -> Result<Self, TemplateError> {
        Self::with_named(vec![(DEFAULT.to_owned(), source.to_owned())], special)
    }

    /// Several templates by name: `tool_use` is taken when there are tools, `default` otherwise.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`TemplateError::NoDefault`].
    pub fn with_named(
        sources: Vec<(String, String)>,
        special: SpecialTokens,
    ) -> Result<Self, TemplateError> {
        let names: Vec<String> = sources.iter().map(|(name, _)| name.clone()).collect();
        if !names.iter().any(|name| name == DEFAULT) {
            return Err(TemplateError::NoDefault { names: names.join(", ") });
        }
        let mut environment = environment();
        let (mut has_generation, mut uses_clock) = (false, false);
        for (name, source) in sources.clone() {
            if source.len() > SOURCE_LIMIT {
                return Err(TemplateError::TooLarge { bytes: source.len(), limit: SOURCE_LIMIT });
            }
            uses_clock |= source.contains("strftime_now");
            let (source, tagged) = generation::rewrite(&source);
            has_generation |= tagged;
            environment.add_template_owned(name.clone(), source).map_err(|error| {
                TemplateError::Syntax {
                    name,
                    line: error.line().unwrap_or(0),
                    reason: reason(&error),
                }
            })?;
        }
        Ok(Self { environment, names, sources, special, has_generation, uses_clock })
    }

    /// Whether the rendering may depend on the date (`strftime_now`). Training on such a template repeats exactly only
    /// [at a fixed time](Self::at_unix_time).
    pub fn uses_clock(&self) -> bool {
        self.uses_clock
    }

    /// Whether the template marks the assistant's text itself, with `{% generation %}` blocks.
    pub fn has_generation_blocks(&self) -> bool {
        self.has_generation
    }

    /// Names and sources, as they were given.
    pub fn sources(&self) -> &[(String, String)] {
        &self.sources
    }

    /// The special tokens that the template reads.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Makes `strftime_now` tell one fixed time: `seconds` since 1970-01-01T00:00Z, in UTC.
    #[must_use]
    pub fn at_unix_time(mut self, seconds: i64) -> Self {
        self.environment.add_function("strftime_now", move |format: &str| {
            let moment = Timestamp::from_second(seconds).map_err(clock_error)?;
            strftime(format, &moment.to_zoned(TimeZone::UTC))
        });
        self
    }

    /// The text of a conversation. `tools` is a list of JSON schemas; `add_generation_prompt` ends the text where an
    /// assistant would go on; `extra` are further variables, such as `enable_thinking`.
    ///
    /// # Errors
    /// A message that is none, or has an unknown role; a template that fails or refuses; see [`TemplateError`].
    pub fn render(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TemplateError> {
        self.render_tracked(messages, tools, add_generation_prompt, extra)
            .map(|rendered| rendered.text)
    }

    /// As [`render`](Self::render), with the bytes inside `{% generation %}` blocks.
    ///
    /// # Errors
    /// As [`render`](Self::render), and [`TemplateError::ReservedCharacter`] where the template has such blocks.
    pub fn render_tracked(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<Rendered, TemplateError> {
        self.prepare(messages, tools, extra)?.render(messages.len(), add_generation_prompt)
    }

    /// Takes a conversation to the form that the engine reads, once for all its renderings.
    pub(crate) fn prepare(
        &self,
        messages: &[Value],
        tools: Option<&Value>,
        extra: &Map<String, Value>,
    ) -> Result<Prepared<'_>, TemplateError> {
        let messages = messages::normalize(messages)?;
        messages::check_tools(tools)?;
        let tools = tools.filter(|tools| !tools.is_null());
        if let Some(name) = extra.keys().find(|key| RESERVED.contains(&key.as_str())) {
            return Err(TemplateError::ReservedVariable { name: name.clone() });
        }
        if self.has_generation {
            let input = serde_json::json!([messages, tools, extra]).to_string();
            generation::refuse_markers(&input)?;
        }
        let special = self.special.iter().map(|(name, text)| (name.to_owned(), text.into()));
        let extra = extra.iter().map(|(name, value)| (name.clone(), Jinja::from_serialize(value)));
        let mut variables: Vec<(String, Jinja)> = special.chain(extra).collect();
        variables.push(("tools".to_owned(), Jinja::from_serialize(tools)));
        variables.push(("documents".to_owned(), Jinja::from(())));
        let tool_use = tools.is_some() && self.names.iter().any(|name| name == TOOL_USE);
        Ok(Prepared {
            template: self,
            name: if tool_use { TOOL_USE } else { DEFAULT },
            messages: messages.iter().map(Jinja::from_serialize).collect(),
            variables,
        })
    }
}

/// A conversation in the form that the engine reads.
pub(crate) struct Prepared<'a> {
    template: &'a ChatTemplate,
    /// Which of the templates.
    name: &'static str,
    messages: Vec<Jinja>,
    /// Everything but the messages and what differs between renderings.
    variables: Vec<(String, Jinja)>,
}

impl Prepared<'_> {
    /// Whether the template marks the assistant's text itself.
    pub(crate) fn has_blocks(&self) -> bool {
        self.template.has_generation
    }

    /// Renders the first `count` messages, which are at least one.
    pub(crate) fn render(
        &self,
        count: usize,
        add_generation_prompt: bool,
    ) -> Result<Rendered, TemplateError> {
        let messages = Jinja::from(self.messages[..count].to_vec());
        let own = [
            ("messages".to_owned(), messages),
            ("add_generation_prompt".to_owned(), add_generation_prompt.into()),
        ];
        let text = self
            .template
            .environment
            .get_template(self.name)
            .and_then(|template| {
                template.render(Jinja::from_iter(self.variables.iter().cloned().chain(own)))
            })
            .map_err(|error| render_error(self.name, &error))?;
        if !self.template.has_generation {
            return Ok(Rendered { text, generation: Vec::new() });
        }
        let (text, generation) = generation::take_markers(&text)?;
        Ok(Rendered { text, generation })
    }
}

/// The engine, set up as transformers sets up Jinja2.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(|out, _, value| {
        out.write_str(&python::display(value)).map_err(|_| Error::from(ErrorKind::WriteFailure))
    });
    environment.set_fuel(Some(FUEL));
    environment.add_filter("tojson", python::tojson);
    // The engine's own refuse what is not a string; Jinja2's take any value as it prints.
    environment.add_filter("trim", python::trim);
    environment.add_filter("string", python::display);
    // In Python a string and a mapping are sequences too, and templates ask in that order.
    environment.add_test("sequence", |value: &Jinja| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    environment.add_test("iterable", |value: &Jinja| {
        matches!(
            value.kind(),
            ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Iterable
        )
    });
    environment.add_function("raise_exception", |message: String| -> Result<(), Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.add_function("strftime_now", |format: &str| strftime(format, &Zoned::now()));
    environment.add_function(generation::FUNCTION, generation::block);
    environment
}

/// What a template said through `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn strftime(format: &str, moment: &Zoned) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, moment).map_err(clock_error)
}

fn clock_error(error: jiff::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"))
}

fn render_error(name: &str, error: &Error) -> TemplateError {
    let name = name.to_owned();
    let mut line = error.line();
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = cause {
        // An error inside a macro or call block knows its own, more precise line.
        line = current.downcast_ref::<Error>().and_then(Error::line).or(line);
        if let Some(Raised(message)) = current.downcast_ref::<Raised>() {
            return TemplateError::Raised {
                name,
                line: line.unwrap_or(0),
                message: message.clone(),
            };
        }
        cause = current.source();
    }
    TemplateError::Render { name, line: line.unwrap_or(0), reason: reason(error) }
}

/// The engine's words without the position, which the error has in a field of its own.
fn reason(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}
