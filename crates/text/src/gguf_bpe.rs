//! GGUF `gpt2` vocabularies: byte-level byte-pair encoding.

use formats::gguf::Metadata;
use tokenizers::Tokenizer;
use tokenizers::decoders::byte_level::ByteLevel;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;

use crate::TokenizerError;
use crate::gguf::{self, Built};
use crate::pre_tokenizer::PreTokenizer;

pub(crate) fn build(metadata: &Metadata) -> Result<Built, TokenizerError> {
    let kind = PreTokenizer::named(metadata.str(gguf::KEY_PRE)?)?;
    let gguf::Vocabulary { tokens, kinds } = gguf::vocabulary(metadata)?;
    let ids = gguf::index(tokens)?;
    let merges = merges(metadata, &ids)?;

    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .ignore_merges(kind.ignores_merges())
        .build()
        .map_err(|error| TokenizerError::Build { reason: error.to_string() })?;
    let mut inner = Tokenizer::new(model);
    if kind.composes() {
        inner
            .with_normalizer(Some(NFC))
            .map_err(|error| TokenizerError::Build { reason: error.to_string() })?;
    }
    inner.with_pre_tokenizer(Some(kind.stage()?));
    inner.with_decoder(Some(ByteLevel::default()));
    gguf::add_whole_tokens(&mut inner, tokens, &kinds)?;
    Ok(Built { inner, add_bos: metadata.bool(gguf::KEY_ADD_BOS)?.unwrap_or(kind.adds_bos()) })
}

/// Reads the merge rules. All three tokens of a rule must exist: the library indexes by them unchecked.
fn merges(metadata: &Metadata, ids: &Vocab) -> Result<Vec<(String, String)>, TokenizerError> {
    let rules = metadata
        .strings(gguf::KEY_MERGES)?
        .ok_or(TokenizerError::MissingKey { key: gguf::KEY_MERGES })?;
    rules
        .iter()
        .enumerate()
        .map(|(index, rule)| {
            let bad = |reason| TokenizerError::Merge { index, merge: rule.clone(), reason };
            let (left, right) = rule
                .split_once(' ')
                .ok_or_else(|| bad("a rule is two tokens separated by a space"))?;
            if !ids.contains_key(left) || !ids.contains_key(right) {
                return Err(bad("one of its two parts is not in the vocabulary"));
            }
            if !ids.contains_key(&format!("{left}{right}")) {
                return Err(bad("its result is not in the vocabulary"));
            }
            Ok((left.to_owned(), right.to_owned()))
        })
        .collect()
}
