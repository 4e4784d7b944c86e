//! Which tokenizers are byte-level BPE of a kind known here, part by part.

use std::collections::HashMap;

use serde::Deserialize;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::processors::PostProcessorWrapper;

use super::cut::Cutter;
use super::merge::Merges;
use super::whole::WholeTokens;
use super::{ByteLevel, Mutex};
use crate::pre_tokenizer::PreTokenizer;

/// A text for which both ways must agree before the fast one is taken. It has every class of character that patterns ask
/// for, and is composed.
const PROBE: &str = "It's  a tEST: they'LL pay $1,234.50 (½ off) on 2024-05-06!\r\n\n\t Ça va? Привет, мир. \
    日本語のテキスト 안녕하세요 نص عربي ١٢٣ नमक 😀👩‍🚀… \u{a0}\u{3000}'ſ <|im_start|> end \n ";

/// What the crate writes of a model's vocabulary.
#[derive(Deserialize)]
struct Written {
    vocab: HashMap<String, u32>,
    merges: Vec<(String, String)>,
}

impl ByteLevel {
    /// The same tokenizer, where it is of a known kind; otherwise what keeps it from being one.
    pub(crate) fn of(inner: &tokenizers::Tokenizer) -> Result<ByteLevel, String> {
        let ModelWrapper::BPE(model) = inner.get_model() else {
            return Err("its model is not BPE".into());
        };
        plain_rules(model)?;
        let composes = match inner.get_normalizer() {
            None => false,
            Some(NormalizerWrapper::NFC(_)) => true,
            Some(_) => return Err("it normalizes text in another way than to NFC".into()),
        };
        if !inner.get_post_processor().is_none_or(keeps_ids) {
            return Err("its post-processor is of another kind".into());
        }
        let stage = serde_json::to_value(inner.get_pre_tokenizer())
            .map_err(|error| format!("its pre-tokenizer cannot be written: {error}"))?;
        let kind = PreTokenizer::of(&stage)
            .ok_or("it cuts text in a way that is not known here".to_owned())?;
        let whole = WholeTokens::new(inner.get_added_tokens_decoder())?;
        let Vocabulary { bytes, rules, lengths, pieces } = Vocabulary::of(model)?;
        let built = ByteLevel {
            kind,
            cutter: Cutter::new(kind),
            whole,
            merges: Merges::new(bytes, &rules),
            lengths,
            pieces: model.ignore_merges.then_some(pieces),
            composes,
            desks: Mutex::default(),
        };
        built.agrees(inner)?;
        Ok(built)
    }

    /// Both ways on [`PROBE`]: whatever a part does that is not looked at above.
    fn agrees(&self, inner: &tokenizers::Tokenizer) -> Result<(), String> {
        let reference = inner.encode(PROBE, false).map_err(|error| error.to_string())?;
        match self.encode(PROBE) {
            Ok(ids) if ids == reference.get_ids() => Ok(()),
            _ => Err("it encodes a text in another way than its parts say".into()),
        }
    }
}

/// Refuses rules that byte-level BPE has no need of.
fn plain_rules(model: &BPE) -> Result<(), String> {
    let affix = |affix: &Option<String>| affix.as_ref().is_some_and(|text| !text.is_empty());
    let others = [
        (model.dropout.is_some_and(|rate| rate != 0.0), "leaves out merges at random"),
        (affix(&model.continuing_subword_prefix), "puts a prefix before parts of words"),
        (affix(&model.end_of_word_suffix), "puts a suffix after words"),
        (model.byte_fallback, "is SentencePiece's, not byte-level"),
    ];
    match others.iter().find(|(found, _)| *found) {
        None => Ok(()),
        Some((_, what)) => Err(format!("its model {what}")),
    }
}

/// Whether a post-processor, told to add nothing, leaves ids and offsets alone.
fn keeps_ids(processor: &PostProcessorWrapper) -> bool {
    match processor {
        PostProcessorWrapper::ByteLevel(bytes) => !bytes.trim_offsets,
        PostProcessorWrapper::Template(_) => true,
        PostProcessorWrapper::Sequence(stages) => stages.as_ref().iter().all(keeps_ids),
        _ => false,
    }
}

/// A model's vocabulary over bytes.
struct Vocabulary {
    /// The token of each byte, if it has one.
    bytes: [Option<u32>; 256],
    /// Left part, right part and result of each rule, by rank.
    rules: Vec<(u32, u32, u32)>,
    /// Bytes of each token.
    lengths: Vec<u32>,
    /// Tokens by their bytes.
    pieces: HashMap<Vec<u8>, u32>,
}

impl Vocabulary {
    fn of(model: &BPE) -> Result<Vocabulary, String> {
        // Its rules can be had in no other way.
        let written = serde_json::to_vec(model)
            .and_then(|json| serde_json::from_slice::<Written>(&json))
            .map_err(|error| format!("its vocabulary cannot be read: {error}"))?;
        let Written { vocab, merges } = written;
        if vocab.len() != tokenizers::Model::get_vocab_size(model) {
            return Err("two of its tokens share an id".into());
        }
        let id = |token: &str| vocab.get(token).copied();
        let characters = byte_characters();
        let bytes = characters.map(|character| id(character.encode_utf8(&mut [0; 4])));
        let rules = merges
            .iter()
            .map(|(left, right)| Some((id(left)?, id(right)?, id(&format!("{left}{right}"))?)));
        let rules = rules.collect::<Option<_>>().ok_or("a merge makes no token")?;
        let of_character: HashMap<char, u8> = characters.into_iter().zip(0..=u8::MAX).collect();
        let most = vocab.values().max().map_or(0, |&id| id as usize + 1);
        let (mut lengths, mut pieces) = (vec![0; most], HashMap::with_capacity(vocab.len()));
        for (token, &id) in &vocab {
            let piece = token.chars().map(|character| of_character.get(&character).copied());
            // Other tokens hold characters that no byte is spelled with: no text gives them.
            if let Some(piece) = piece.collect::<Option<Vec<u8>>>() {
                lengths[id as usize] = piece.len() as u32;
                pieces.insert(piece, id);
            }
        }
        Ok(Vocabulary { bytes, rules, lengths, pieces })
    }
}

/// The character that spells each byte in byte-level vocabularies: printable ones of Latin-1 themselves, the others in
/// order from U+0100 on (`bytes_to_unicode` of GPT-2's `encoder.py`).
fn byte_characters() -> [char; 256] {
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        byte @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..) => char::from(byte),
        _ => others.next().expect("characters go on"),
    })
}
