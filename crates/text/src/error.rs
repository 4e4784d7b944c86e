//! What can be wrong with a tokenizer, a chat template or a conversation.

use std::ops::Range;
use std::path::PathBuf;

/// A tokenizer that cannot be read, or text or ids that it cannot translate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is larger than any tokenizer is.
    #[error("{} has {bytes} bytes; a tokenizer file may have at most {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// `tokenizer.json` is not one.
    #[error("{} is not a tokenizer.json that can be used: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What the parser said.
        reason: String,
    },
    /// `tokenizer_config.json` is not JSON, or one of its keys has the wrong type.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A metadata key of a GGUF file has the wrong type.
    #[error(transparent)]
    Metadata(#[from] formats::gguf::Error),
    /// A GGUF file lacks a metadata key that a tokenizer needs.
    #[error("the GGUF metadata has no `{key}`; convert the model again with its tokenizer")]
    MissingKey {
        /// The metadata key.
        key: &'static str,
    },
    /// A GGUF tokenizer of a kind that is not implemented.
    #[error("the GGUF tokenizer model `{model}` is not supported (supported: gpt2, llama)")]
    UnknownModel {
        /// The value of `tokenizer.ggml.model`.
        model: String,
    },
    /// A GGUF byte-level tokenizer that splits text in a way that is not implemented.
    #[error(
        "the GGUF pre-tokenizer `{pre}` is not supported (supported: {supported}); use the model's tokenizer.json"
    )]
    UnknownPreTokenizer {
        /// The value of `tokenizer.ggml.pre`.
        pre: String,
        /// The names that are.
        supported: String,
    },
    /// The vocabulary has no tokens, or more than any model has.
    #[error("the vocabulary has {tokens} tokens; it must have between 1 and {limit}")]
    VocabularySize {
        /// How many tokens there are.
        tokens: usize,
        /// The most there may be.
        limit: usize,
    },
    /// Two ids have the same text.
    #[error("token {token:?} stands at both id {first} and id {second} of the vocabulary")]
    DuplicateToken {
        /// The token.
        token: String,
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
    },
    /// An array of the metadata has not one entry per token.
    #[error("`{key}` has {entries} entries for {tokens} tokens")]
    ArrayLength {
        /// The metadata key.
        key: &'static str,
        /// The entries it has.
        entries: usize,
        /// The entries it should have.
        tokens: usize,
    },
    /// A merge rule is not two tokens whose concatenation is a token.
    #[error("merge {index} ({merge:?}): {reason}")]
    Merge {
        /// Its position in the list.
        index: usize,
        /// The rule as written.
        merge: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A special token's id lies outside the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {tokens} tokens")]
    SpecialId {
        /// The metadata key.
        key: &'static str,
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        tokens: usize,
    },
    /// A score is not a number, so the order of merges is undefined.
    #[error("the score of token {id} is {score}")]
    Score {
        /// The token.
        id: usize,
        /// Its score.
        score: f32,
    },
    /// The parts could not be put together.
    #[error("cannot build the tokenizer: {reason}")]
    Build {
        /// What the library said.
        reason: String,
    },
    /// Text could not be encoded.
    #[error("cannot encode the text: {reason}")]
    Encode {
        /// What the library said.
        reason: String,
    },
    /// Ids could not be decoded.
    #[error("cannot decode the ids: {reason}")]
    Decode {
        /// What the library said.
        reason: String,
    },
    /// The library could not write the tokenizer.
    #[error("cannot write the tokenizer as JSON: {reason}")]
    Serialize {
        /// What the library said.
        reason: String,
    },
    /// A tokenizer that GGUF's metadata cannot describe.
    #[error(
        "the tokenizer cannot be written to a GGUF file: {reason}; convert the model with llama.cpp's convert_hf_to_gguf.py"
    )]
    NotInGguf {
        /// Why.
        reason: String,
    },
    /// An id that stands for no token.
    #[error("id {id} (position {position}) stands for no token; ids go from 0 to {}", vocab_size - 1)]
    UnknownId {
        /// The id.
        id: u32,
        /// Its position among the ids given.
        position: usize,
        /// One more than the largest id.
        vocab_size: usize,
    },
}

/// A chat template that cannot be read, or messages that it cannot render.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `tokenizer_config.json` is not JSON, or `chat_template` has neither of its two forms.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The metadata of a GGUF file has a key of the wrong type, or special tokens outside its vocabulary.
    #[error(transparent)]
    Metadata(#[from] Box<TokenizerError>),
    /// The model comes without a chat template.
    #[error(
        "no chat template in {place}; put the model's own beside its weights as chat_template.jinja, or go without: \
         `text` or `prompt`/`completion` data in training, --raw in generating"
    )]
    Missing {
        /// Where it was looked for.
        place: String,
    },
    /// There are several templates and none is the default.
    #[error("there is no chat template named `default` (there are: {names})")]
    NoDefault {
        /// The names there are.
        names: String,
    },
    /// The template is larger than any is.
    #[error("the chat template has {bytes} bytes; at most {limit} are accepted")]
    TooLarge {
        /// Its size in bytes.
        bytes: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// The template is not Jinja.
    #[error("chat template `{name}`, line {line}: {reason}")]
    Syntax {
        /// Which template.
        name: String,
        /// The line, from 1; 0 when the parser did not say.
        line: usize,
        /// What the parser said.
        reason: String,
    },
    /// The template failed while it ran.
    #[error("chat template `{name}` failed at line {line}: {reason}")]
    Render {
        /// Which template.
        name: String,
        /// The line, from 1; 0 when the engine did not say.
        line: usize,
        /// What the engine said.
        reason: String,
    },
    /// The template itself refused the conversation (`raise_exception`).
    #[error("chat template `{name}`, line {line}, refuses the conversation: {message}")]
    Raised {
        /// Which template.
        name: String,
        /// The line, from 1; 0 when the engine did not say.
        line: usize,
        /// The template's own words.
        message: String,
    },
    /// There is nothing to render.
    #[error("the conversation has no messages")]
    Empty,
    /// A message is not an object.
    #[error("message {index} is not an object with `role` and `content`")]
    NotAnObject {
        /// Its position, from 0.
        index: usize,
    },
    /// A message has no role.
    #[error("message {index} has no `role` (one of: system, user, assistant, tool)")]
    MissingRole {
        /// Its position, from 0.
        index: usize,
    },
    /// A message has a role that no template knows.
    #[error("message {index} has the unknown role {role:?} (known: system, user, assistant, tool)")]
    UnknownRole {
        /// Its position, from 0.
        index: usize,
        /// The role.
        role: String,
    },
    /// A message that is not an assistant's is to be learnt.
    #[error("message {index} has `train: true` and is not the assistant's; only those are learnt")]
    TrainRole {
        /// Its position, from 0.
        index: usize,
    },
    /// `train` is neither true nor false.
    #[error("message {index}: `train` must be true or false")]
    TrainType {
        /// Its position, from 0.
        index: usize,
    },
    /// The tools are not a list of objects.
    #[error("`tools` must be a list of JSON objects")]
    Tools,
    /// An extra variable has a name that the renderer sets.
    #[error("the template variable `{name}` is set by the renderer and cannot be passed")]
    ReservedVariable {
        /// The variable.
        name: String,
    },
    /// A message contains a character that marks `{% generation %}` blocks while rendering.
    #[error("the text contains U+{code:04X}, a code point that Unicode reserves; remove it")]
    ReservedCharacter {
        /// The code point.
        code: u32,
    },
}

/// A conversation whose assistant turns cannot be told apart from the rest.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaskError {
    /// The template failed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The tokenizer failed.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Nothing would be learnt from it.
    #[error("the conversation has no assistant message, so nothing of it can be trained on")]
    NoAssistant,
    /// Every assistant message is marked `train: false`.
    #[error("every assistant message has `train: false`, so nothing of the conversation is learnt")]
    NoneTrained,
    /// A generation block begins elsewhere than where generation would.
    #[error(
        "the generation block of assistant message {index} begins at byte {block}, and generation would begin at byte \
         {prompt}, so the prompt in training would not be the prompt in use; move the block's tag in the template, or what \
         it adds with add_generation_prompt"
    )]
    BlockStart {
        /// The assistant message, from 0.
        index: usize,
        /// Where the block begins, in bytes.
        block: usize,
        /// Where the rendering for generation ends, in bytes.
        prompt: usize,
    },
    /// The template has `{% generation %}` blocks, but none of them was rendered.
    #[error("the template's generation blocks rendered no text for this conversation")]
    NoGeneration,
    /// Nothing comes before the assistant's words.
    #[error(
        "the conversation begins with an assistant message; put a system or user message before it"
    )]
    AssistantFirst,
    /// What comes before an assistant's turn reads otherwise once the turn is there.
    #[error(
        "the template rewrites what comes before assistant message {index} once its turn is known (first difference at \
         byte {byte}), so the prompt in training would not be the prompt in use; use a template that \
         does not"
    )]
    RewritesPrompt {
        /// The assistant message, from 0.
        index: usize,
        /// Where the two renderings part, in bytes.
        byte: usize,
    },
    /// An assistant's turn reads otherwise once later messages follow it.
    #[error(
        "the template rewrites assistant message {index} when messages follow it (first difference at byte {byte}); \
         give it `train: false`, end the conversation with it, or use a template that does not"
    )]
    RewritesTurn {
        /// The assistant message, from 0.
        index: usize,
        /// Where the two renderings part, in bytes.
        byte: usize,
    },
    /// What stands before an assistant's turn has other ids alone than with the turn after it.
    #[error(
        "the text before the assistant's turn at byte {byte} has other token ids alone than with the turn after it, so \
         training would see another prompt than generation; remove white space at the start of that message"
    )]
    PromptIds {
        /// Where the turn begins, in bytes.
        byte: usize,
    },
    /// One token holds bytes of the assistant and of something else.
    #[error(
        "token {token:?} covers bytes {}..{} across the edge of an assistant turn at byte {edge}; \
         remove the white space at that end of the message",
        range.start, range.end
    )]
    TokenAcrossEdge {
        /// The token's text.
        token: String,
        /// The bytes it covers.
        range: Range<usize>,
        /// The edge, in bytes.
        edge: usize,
    },
}

impl From<TokenizerError> for TemplateError {
    fn from(error: TokenizerError) -> Self {
        Self::Metadata(Box::new(error))
    }
}
