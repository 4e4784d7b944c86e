//! The vocabulary inside a GGUF file.

use formats::gguf::Metadata;

use crate::TokenizerError;
use crate::gguf_bpe;
use crate::gguf_spm;

/// The most tokens a vocabulary may have (the largest in use have 262,144).
pub(crate) const VOCAB_LIMIT: usize = 4 << 20;

pub(crate) const KEY_MODEL: &str = "tokenizer.ggml.model";
pub(crate) const KEY_PRE: &str = "tokenizer.ggml.pre";
pub(crate) const KEY_TOKENS: &str = "tokenizer.ggml.tokens";
pub(crate) const KEY_TYPES: &str = "tokenizer.ggml.token_type";
pub(crate) const KEY_MERGES: &str = "tokenizer.ggml.merges";
pub(crate) const KEY_SCORES: &str = "tokenizer.ggml.scores";
pub(crate) const KEY_ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(crate) const KEY_ADD_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(crate) const KEY_TEMPLATE: &str = "tokenizer.chat_template";
pub(crate) const KEY_TEMPLATE_TOOLS: &str = "tokenizer.chat_template.tool_use";

/// `tokenizer.ggml.token_type` as llama.cpp numbers it; only the kinds that change how text is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenKind {
    /// 3: special, hidden when decoding without specials.
    Control,
    /// 4: matched whole in text, but ordinary output.
    UserDefined,
    /// Every other: found by merges alone.
    Plain,
}

/// A vocabulary as the file spells it.
pub(crate) struct Vocabulary<'a> {
    pub(crate) tokens: &'a [String],
    pub(crate) kinds: Vec<TokenKind>,
}

/// What both kinds of GGUF tokenizer are built to.
pub(crate) struct Built {
    pub(crate) inner: tokenizers::Tokenizer,
    /// Whether the file (or, where it is silent, its kind) asks for a BOS token before the text.
    pub(crate) add_bos: bool,
}

/// Builds the tokenizer that `tokenizer.ggml.*` describes.
pub(crate) fn build(metadata: &Metadata) -> Result<Built, TokenizerError> {
    match required_string(metadata, KEY_MODEL)? {
        "gpt2" => gguf_bpe::build(metadata),
        "llama" => gguf_spm::build(metadata),
        other => Err(TokenizerError::UnknownModel { model: other.to_owned() }),
    }
}

pub(crate) fn required_string<'a>(
    metadata: &'a Metadata,
    key: &'static str,
) -> Result<&'a str, TokenizerError> {
    metadata.str(key)?.ok_or(TokenizerError::MissingKey { key })
}

/// Reads and checks the token list and its kinds.
pub(crate) fn vocabulary(metadata: &Metadata) -> Result<Vocabulary<'_>, TokenizerError> {
    let tokens =
        metadata.strings(KEY_TOKENS)?.ok_or(TokenizerError::MissingKey { key: KEY_TOKENS })?;
    if tokens.is_empty() || tokens.len() > VOCAB_LIMIT {
        return Err(TokenizerError::VocabularySize { tokens: tokens.len(), limit: VOCAB_LIMIT });
    }
    // A file without kinds has no token that text must match whole (llama.cpp reads it so too).
    let kinds = metadata
        .integers(KEY_TYPES)?
        .map(|types| types.into_iter().map(kind_of).collect())
        .unwrap_or_else(|| vec![TokenKind::Plain; tokens.len()]);
    if kinds.len() != tokens.len() {
        return Err(TokenizerError::ArrayLength {
            key: KEY_TYPES,
            entries: kinds.len(),
            tokens: tokens.len(),
        });
    }
    Ok(Vocabulary { tokens, kinds })
}

fn kind_of(number: i64) -> TokenKind {
    match number {
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        _ => TokenKind::Plain,
    }
}

/// Token text to id, refusing two ids of one text.
pub(crate) fn index(tokens: &[String]) -> Result<tokenizers::models::bpe::Vocab, TokenizerError> {
    let mut ids = tokenizers::models::bpe::Vocab::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        let id = id as u32; // at most VOCAB_LIMIT
        if let Some(first) = ids.insert(token.clone(), id) {
            return Err(TokenizerError::DuplicateToken { token: token.clone(), first, second: id });
        }
    }
    Ok(ids)
}

/// Registers control tokens as special and user-defined ones as plain added tokens, in id order.
pub(crate) fn add_whole_tokens(
    inner: &mut tokenizers::Tokenizer,
    tokens: &[String],
    kinds: &[TokenKind],
) -> Result<(), TokenizerError> {
    let of = |wanted: TokenKind| {
        tokens
            .iter()
            .zip(kinds)
            .filter(move |(token, kind)| **kind == wanted && !token.is_empty())
            .map(move |(token, _)| {
                tokenizers::AddedToken::from(token.as_str(), wanted == TokenKind::Control)
                    .normalized(false)
            })
    };
    inner
        .add_special_tokens(of(TokenKind::Control))
        .and_then(|_| inner.add_tokens(of(TokenKind::UserDefined)))
        .map_err(|error| TokenizerError::Build { reason: error.to_string() })?;
    Ok(())
}
