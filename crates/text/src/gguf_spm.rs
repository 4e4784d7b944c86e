//! GGUF `llama` vocabularies: SentencePiece byte-pair encoding with scores and byte fallback.
//!
//! Such a file lists no merges; they follow from the vocabulary and its scores, as transformers recovers them
//! (`generate_merges` in `tokenization_utils_base.py`).

use std::cmp::Ordering;

use formats::gguf::Metadata;
use tokenizers::Tokenizer;
use tokenizers::decoders::DecoderWrapper;
use tokenizers::decoders::byte_fallback::ByteFallback;
use tokenizers::decoders::fuse::Fuse;
use tokenizers::decoders::sequence::Sequence;
use tokenizers::decoders::strip::Strip;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::Replace;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};

use crate::TokenizerError;
use crate::gguf::{self, Built};

/// How SentencePiece spells a space.
const SPACE: char = '\u{2581}';

pub(crate) fn build(metadata: &Metadata) -> Result<Built, TokenizerError> {
    let gguf::Vocabulary { tokens, kinds } = gguf::vocabulary(metadata)?;
    let ids = gguf::index(tokens)?;
    let scores = scores(metadata, tokens.len())?;
    let merges = merges(tokens, &ids, scores);
    let failed = |error: tokenizers::Error| TokenizerError::Build { reason: error.to_string() };

    let model = BPE::builder()
        .vocab_and_merges(ids, merges)
        .fuse_unk(true)
        .byte_fallback(true)
        .build()
        .map_err(failed)?;
    let mut inner = Tokenizer::new(model);
    // llama.cpp's default, for files that do not say.
    let add_prefix = metadata.bool(gguf::KEY_ADD_PREFIX)?.unwrap_or(true);
    let prepend = if add_prefix { PrependScheme::First } else { PrependScheme::Never };
    inner.with_pre_tokenizer(Some(Metaspace::new(SPACE, prepend, false)));
    inner.with_decoder(Some(decoder(add_prefix).map_err(failed)?));
    gguf::add_whole_tokens(&mut inner, tokens, &kinds)?;
    Ok(Built { inner, add_bos: metadata.bool(gguf::KEY_ADD_BOS)?.unwrap_or(true) })
}

fn decoder(strip_prefix: bool) -> tokenizers::Result<Sequence> {
    let mut stages: Vec<DecoderWrapper> = vec![
        Replace::new(SPACE.to_string(), " ")?.into(),
        ByteFallback::new().into(),
        Fuse::new().into(),
    ];
    if strip_prefix {
        stages.push(Strip::new(' ', 1, 0).into());
    }
    Ok(Sequence::new(stages))
}

fn scores(metadata: &Metadata, tokens: usize) -> Result<&[f32], TokenizerError> {
    let scores = metadata
        .f32s(gguf::KEY_SCORES)?
        .ok_or(TokenizerError::MissingKey { key: gguf::KEY_SCORES })?;
    if scores.len() != tokens {
        return Err(TokenizerError::ArrayLength {
            key: gguf::KEY_SCORES,
            entries: scores.len(),
            tokens,
        });
    }
    match scores.iter().position(|score| score.is_nan()) {
        Some(id) => Err(TokenizerError::Score { id, score: scores[id] }),
        None => Ok(scores),
    }
}

/// Every way of making a token from two others, the best-scored token first.
fn merges(tokens: &[String], ids: &Vocab, scores: &[f32]) -> Vec<(String, String)> {
    struct Rule<'a> {
        left: &'a str,
        right: &'a str,
        score: f32,
        chars: (usize, usize),
    }
    let mut rules: Vec<Rule<'_>> = Vec::new();
    for (token, &score) in tokens.iter().zip(scores) {
        let chars = token.chars().count();
        let mut cuts: Vec<(u32, u32, Rule<'_>)> = token
            .char_indices()
            .enumerate()
            .skip(1)
            .filter_map(|(count, (at, _))| {
                let (left, right) = token.split_at(at);
                let rule = Rule { left, right, score, chars: (count, chars - count) };
                Some((*ids.get(left)?, *ids.get(right)?, rule))
            })
            .collect();
        cuts.sort_by_key(|(left, right, _)| (*left, *right));
        rules.extend(cuts.into_iter().map(|(_, _, rule)| rule));
    }
    // Stable and descending in all three keys, as Python's `sorted(reverse=True)` is.
    rules.sort_by(|a, b| {
        b.score
            .partial_cmp(&a.score)
            .unwrap_or(Ordering::Equal) // scores are never NaN here
            .then(b.chars.cmp(&a.chars))
    });
    rules.into_iter().map(|rule| (rule.left.to_owned(), rule.right.to_owned())).collect()
}
