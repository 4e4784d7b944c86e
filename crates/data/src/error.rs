//! What can be wrong with training data.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use text::{MaskError, TemplateError, TokenizerError};

/// Where a sample comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin {
    /// The file.
    pub file: Arc<Path>,
    /// The line in it, or the row of a table, from 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Data that cannot be trained on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No file was given.
    #[error("no data file was given; name at least one JSON Lines or Parquet file")]
    NoFile,
    /// A file without samples.
    #[error("{} has no samples; it needs one JSON object a line, or one row a sample", path.display())]
    EmptyFile {
        /// The file.
        path: PathBuf,
    },
    /// A weight that is no positive number.
    #[error("{}: its weight is {weight}; it must be over 0 and at most {limit}", path.display())]
    Weight {
        /// The source's file.
        path: PathBuf,
        /// Its weight.
        weight: f64,
        /// The largest.
        limit: f64,
    },
    /// One file, or one name, given twice.
    #[error(
        "the sources {first} and {second} have the same file or name; give a file once, with weight = 2 if its samples \
         are to come twice"
    )]
    SourceTwice {
        /// One.
        first: String,
        /// The other.
        second: String,
    },
    /// A text file of another encoding.
    #[error("{} is {encoding}, not UTF-8; convert it (iconv -f {encoding} -t UTF-8)", path.display())]
    Encoding {
        /// The file.
        path: PathBuf,
        /// What it is.
        encoding: &'static str,
    },
    /// A file whose name says Parquet and whose bytes do not.
    #[error("{} does not begin as Parquet files do (PAR1); is it another format?", path.display())]
    NotParquet {
        /// The file.
        path: PathBuf,
    },
    /// Prompts in a table.
    #[error("{}: prompts are read from JSON Lines; convert the table (one JSON object a row)", path.display())]
    PromptTable {
        /// The file.
        path: PathBuf,
    },
    /// A Parquet file that is damaged or has other columns.
    #[error("{}: {source}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: ColumnError,
    },
    /// Two samples of one file have one `id`.
    #[error(
        "{origin}: the id {id} is that of line {first} too; ids are given to tell samples apart"
    )]
    DuplicateId {
        /// Where the second is.
        origin: Origin,
        /// The id, as JSON.
        id: String,
        /// The line of the first.
        first: usize,
    },
    /// No epoch has a sample: weights are too small for so few.
    #[error("the weights of the sources leave no sample in any of {epochs} epochs; raise them")]
    NoSample {
        /// Epochs that were asked for.
        epochs: usize,
    },
    /// A line, or the sample on it, is wrong.
    #[error("{origin}: {source}")]
    Sample {
        /// The file and line.
        origin: Origin,
        /// What is wrong.
        source: SampleError,
    },
    /// More samples than a data set may have.
    #[error("{origin}: more than {limit} samples; split the data over several runs")]
    TooManySamples {
        /// Where the limit was passed.
        origin: Origin,
        /// The limit.
        limit: usize,
    },
    /// Every sample was dropped.
    #[error(
        "all {dropped} samples are longer than max_length = {max_length} tokens and were dropped; raise max_length, or \
         shorten them (too_long = \"left\" or \"middle\")"
    )]
    AllDropped {
        /// Samples dropped.
        dropped: usize,
        /// The limit that they exceed, tokens.
        max_length: usize,
    },
    /// A sample does not fit a micro-batch.
    #[error(
        "{origin}: a sample of {length} tokens does not fit micro-batches of {budget} tokens; raise micro_tokens or \
         lower max_length"
    )]
    OverBudget {
        /// Where the sample is.
        origin: Origin,
        /// Its tokens.
        length: usize,
        /// Tokens of a micro-batch.
        budget: usize,
    },
    /// A packing or extent with a zero, or beyond a limit.
    #[error("{what} is {value}; it must be between 1 and {limit}")]
    OutOfRange {
        /// Which.
        what: &'static str,
        /// The value.
        value: usize,
        /// The largest possible.
        limit: usize,
    },
    /// Reaching the number of steps would take too many passes over the data.
    #[error(
        "{steps} steps take more than {limit} passes over this data; lower max_steps, accumulation or micro_tokens"
    )]
    TooManyEpochs {
        /// Steps asked for.
        steps: usize,
        /// The limit on passes.
        limit: usize,
    },
}

/// What can be wrong with one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The line is longer than any sample is.
    #[error("the line has more than {limit} bytes; is the file JSON Lines?")]
    LineTooLong {
        /// The limit, bytes.
        limit: usize,
    },
    /// The line is not UTF-8.
    #[error("byte {byte} of the line is not UTF-8; convert the file to UTF-8")]
    NotUtf8 {
        /// The first wrong byte, from 0.
        byte: usize,
    },
    /// The file begins with a byte order mark.
    #[error("the file begins with a byte order mark; save it as UTF-8 without one")]
    ByteOrderMark,
    /// An empty line before the last sample.
    #[error("the line is blank; blank lines may stand only at the end of the file")]
    BlankLine,
    /// Not JSON.
    #[error("not JSON: {}", in_line(.source))]
    Json {
        /// What the parser says; its line is always 1, its column is in this line.
        source: serde_json::Error,
    },
    /// JSON, but no object.
    #[error("{found} where an object is needed, such as {{\"messages\": [...]}}")]
    NotAnObject {
        /// What there is.
        found: &'static str,
    },
    /// No known shape.
    #[error(
        "the object has none of `messages`, `prompt` with `completion`, or `text` (it has: {keys})"
    )]
    NoShape {
        /// The keys there are.
        keys: String,
    },
    /// Two shapes at once.
    #[error("the object has both `{first}` and `{second}`; a sample has one shape")]
    TwoShapes {
        /// A key of one shape.
        first: &'static str,
        /// A key of another.
        second: &'static str,
    },
    /// Half of a shape.
    #[error("the object has `{found}` without `{missing}`")]
    HalfShape {
        /// The key there is.
        found: &'static str,
        /// The key that belongs to it.
        missing: &'static str,
    },
    /// A key with a value of another type.
    #[error("`{key}` is {found}, not {needed}")]
    WrongType {
        /// The key, with its message where it is in one: `messages[2].content`.
        key: String,
        /// What it must be.
        needed: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A message with a role that no template knows.
    #[error("message {index} has the role {role:?}; known are {}", text::ROLES.join(", "))]
    UnknownRole {
        /// The message, from 0.
        index: usize,
        /// Its role.
        role: String,
    },
    /// A message without content and without tool calls.
    #[error("message {index} ({role}) has no `content`")]
    NoContent {
        /// The message, from 0.
        index: usize,
        /// Its role.
        role: String,
    },
    /// A message that says how much it counts, otherwise than by `train`.
    #[error(
        "message {index} has `weight`, which is not read; write `train: false` where it is not to be learnt"
    )]
    MessageWeight {
        /// The message, from 0.
        index: usize,
    },
    /// A key beside the sample's text that asks for something that is not done there.
    #[error(
        "the sample has `{key}` beside its text, which is not read; leave the sample out, write `train: false` in its \
         messages, or give its file a weight"
    )]
    SampleKey {
        /// `train` or `weight`.
        key: &'static str,
    },
    /// Tools for a sample that no chat template renders.
    #[error(
        "the sample has `tools` without `messages`: only a chat template says what tools look like"
    )]
    ToolsWithoutMessages,
    /// A message that is not the assistant's and is to be learnt.
    #[error("message {index} ({role}) has `train: true`; only what the assistant says is learnt")]
    TrainRole {
        /// The message, from 0.
        index: usize,
        /// Its role.
        role: String,
    },
    /// Something that the chat template does not render.
    #[error(
        "the model's chat template does not render {what}, so that it would be learnt or answered as if it were not \
         there; remove it, or give the model a template that renders it"
    )]
    Unread {
        /// What.
        what: String,
    },
    /// Two BOS before a sample.
    #[error(
        "the sample begins with two BOS tokens: the template writes two, or one, and the first message another; remove \
         one of them"
    )]
    TwoBos,
    /// A conversation, and a model without a chat template.
    #[error(
        "the sample has `messages` and the model has no chat template; pass one, or use `prompt` with `completion`"
    )]
    NoTemplate,
    /// A sample that ends with the end-of-text token, and a tokenizer without one.
    #[error(
        "the tokenizer names no end-of-text token, which a `{shape}` sample ends with; use `messages`, or name \
         `eos_token` in tokenizer_config.json"
    )]
    NoEndOfText {
        /// The sample's shape.
        shape: &'static str,
    },
    /// An object that asks nothing, or two things.
    #[error(
        "a prompt is a text `prompt` or a list `messages`, and not both (the object has: {keys})"
    )]
    NoPrompt {
        /// The keys there are.
        keys: String,
    },
    /// A conversation without messages.
    #[error("`messages` is empty: there is nothing to go on from")]
    NoMessages,
    /// A conversation that the model is to go on with and that has its answer in it.
    #[error(
        "the last message is the assistant's, so the answer is part of the prompt: leave it out (is this training data?)"
    )]
    Answered,
    /// Messages where prompts are to be given as they are.
    #[error("`messages` need the chat template: leave `raw` out, or give a text `prompt`")]
    RawMessages,
    /// A prompt that the tokenizer makes nothing of.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// The chat template refuses the messages.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The conversation could not be rendered or masked.
    #[error(transparent)]
    Mask(#[from] MaskError),
    /// The text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A token holds the prompt's last and the completion's first characters.
    #[error(
        "the prompt's last token changes when the completion follows it (token {index}), so training would see \
         another prompt than generation; move the white space at the prompt's end to the completion's start"
    )]
    TokenAcrossPrompt {
        /// The token of the prompt, from 0.
        index: usize,
    },
    /// No token is learnt.
    #[error("the sample has nothing to learn: {why}")]
    NothingToLearn {
        /// Why.
        why: &'static str,
    },
    /// The sample is longer than it may be.
    #[error(
        "the sample has {length} tokens and max_length is {limit}; raise max_length, shorten the sample, or set \
         too_long to drop, left or middle"
    )]
    TooLong {
        /// Its tokens.
        length: usize,
        /// Most tokens.
        limit: usize,
    },
    /// A token that the model has no embedding for.
    #[error(
        "token {position} is id {id} and the model has {vocab} words; the tokenizer is another model's"
    )]
    OutsideVocabulary {
        /// Its place in the sample, from 0.
        position: usize,
        /// The id.
        id: u32,
        /// Rows of the model's embedding.
        vocab: usize,
    },
}

impl SampleError {
    /// The error with the line that it is of.
    pub fn at(self, origin: &Origin) -> DataError {
        DataError::Sample { origin: origin.clone(), source: self }
    }
}

/// What can be wrong with a Parquet file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// The library cannot read it.
    #[error("not readable as Parquet: {reason}")]
    Malformed {
        /// What it says.
        reason: String,
    },
    /// More rows than a data set may have.
    #[error("{rows} rows are more than a data set may have, {limit}")]
    TooManyRows {
        /// Its rows.
        rows: i64,
        /// The limit.
        limit: usize,
    },
    /// None of the columns of a sample.
    #[error(
        "the table has no column `messages`, `text`, or `prompt` with `completion` (it has: {columns})"
    )]
    Missing {
        /// The columns there are.
        columns: String,
    },
    /// A column of another type.
    #[error("the column `{column}` holds {found}, not {needed}")]
    Type {
        /// The column.
        column: String,
        /// What it must hold.
        needed: &'static str,
        /// What it holds.
        found: String,
    },
    /// A column of JSON with something else in it.
    #[error("row {row}: the column `{column}` is not JSON: {reason}")]
    Json {
        /// The column.
        column: String,
        /// The row, from 1.
        row: usize,
        /// What the parser says.
        reason: String,
    },
}

/// What the parser says of one line of a file, whose number stands before it: without its own, which is always 1.
fn in_line(error: &serde_json::Error) -> String {
    let (text, column) = (error.to_string(), error.column());
    match text.strip_suffix(&format!(" at line 1 column {column}")) {
        Some(what) => format!("{what}, at its byte {column}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_line_is_told_by_its_byte() {
        let of =
            |text: &str| in_line(&serde_json::from_str::<serde_json::Value>(text).unwrap_err());
        assert_eq!(of("{\"a\": x}"), "expected value, at its byte 7");
        assert_eq!(of("{\"a\":\n x}"), "expected value at line 2 column 2");
    }
}
