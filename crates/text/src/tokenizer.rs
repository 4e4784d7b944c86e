//! Text to token ids and back.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use formats::gguf::Metadata;
use serde_json::{Map, Value};
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::processors::sequence::Sequence;
use tokenizers::processors::template::TemplateProcessing;

use crate::byte_level::ByteLevel;
use crate::gguf;
use crate::merge_check;
use crate::special_tokens::{ReadConfig, SpecialTokens, read_config};
use crate::{StreamDecoder, TokenizerError};

/// The most bytes that a `tokenizer.json` may have (Gemma 3's has 33 MB).
const FILE_LIMIT: u64 = 512 << 20;

/// A model's tokenizer: byte-level or SentencePiece BPE, whatever its `tokenizer.json` or GGUF file says.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// The fast way, or why there is none; made when text is first encoded, since it takes its time (some 0.2 s for
    /// 280,000 merges).
    byte_level: OnceLock<Result<ByteLevel, String>>,
    special: SpecialTokens,
    special_texts: Vec<String>,
    /// Ids of all special tokens, sorted.
    special_ids: Vec<u32>,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    vocab_size: usize,
}

/// Which code turns text into ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeWay<'a> {
    /// This crate's own, for byte-level BPE. Text that is not composed (NFC) where it must be, that has a run of
    /// white space beyond 64 KiB or a byte without a token, or that [`Tokenizer::encode`] adds tokens to goes through
    /// the library all the same.
    ByteLevel {
        /// How text is cut to pieces, as GGUF names it.
        pieces: &'static str,
    },
    /// The `tokenizers` crate's.
    Library {
        /// What of the tokenizer is not known here.
        reason: &'a str,
    },
}

impl fmt::Display for EncodeWay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByteLevel { pieces } => write!(f, "samebit, pieces as {pieces}"),
            Self::Library { reason } => write!(f, "the tokenizers crate: {reason}"),
        }
    }
}

/// Ids of a text and the bytes of it that each stands for.
pub(crate) struct Spelled {
    pub(crate) ids: Vec<u32>,
    pub(crate) ranges: Vec<Range<usize>>,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, and the `tokenizer_config.json` beside it where there is one (for the names of the
    /// special tokens, and `add_bos_token`, which outranks `tokenizer.json` as it does in transformers).
    ///
    /// # Errors
    /// [`TokenizerError::Read`], [`TokenizerError::TooLarge`], [`TokenizerError::Malformed`] or
    /// [`TokenizerError::Config`].
    pub fn from_tokenizer_json(path: &Path) -> Result<Self, TokenizerError> {
        let inner = read_inner(path)?;
        let config_path = path.with_file_name("tokenizer_config.json");
        let config = read_config(&config_path).map_err(|error| match error {
            ReadConfig::Read(source) => TokenizerError::Read { path: config_path.clone(), source },
            ReadConfig::Shape(reason) => {
                TokenizerError::Config { path: config_path.clone(), reason }
            }
        })?;
        let config = config.unwrap_or_default();
        let in_config = |reason| TokenizerError::Config { path: config_path.clone(), reason };
        let special = SpecialTokens::from_config(&config).map_err(in_config)?;
        let add_bos = optional_bool(&config, "add_bos_token").map_err(in_config)?;
        Self::assemble(inner, special, add_bos)
    }

    /// Builds the tokenizer that a GGUF file's metadata describes: the `gpt2` (byte-level BPE) and `llama`
    /// (SentencePiece BPE) kinds.
    ///
    /// The pieces are those of the model's own `tokenizer.json`, as `tokenizer.ggml.pre` names them. transformers 5.24
    /// ignores that key for SmolLM (`smollm`) and so splits runs of white space before a digit in another way than the
    /// model was trained on.
    ///
    /// # Errors
    /// A missing key, an unknown model or pre-tokenizer, or a vocabulary that contradicts itself; see
    /// [`TokenizerError`].
    pub fn from_gguf(metadata: &Metadata) -> Result<Self, TokenizerError> {
        let special = gguf_special_tokens(metadata)?;
        let built = gguf::build(metadata)?;
        Self::assemble(built.inner, special, Some(built.add_bos))
    }

    fn assemble(
        mut inner: tokenizers::Tokenizer,
        special: SpecialTokens,
        add_bos: Option<bool>,
    ) -> Result<Self, TokenizerError> {
        let build = |reason: String| TokenizerError::Build { reason };
        // What a file says of length is a matter of its last training run, not of the text.
        inner.with_truncation(None).map_err(|error| build(error.to_string()))?.with_padding(None);
        let id_of = |name: &str| special.get(name).and_then(|text| inner.token_to_id(text));
        let (bos, eos) = (id_of("bos_token"), id_of("eos_token"));
        match (add_bos, bos) {
            (Some(true), Some(id)) => {
                let text = special.get("bos_token").unwrap_or_default().to_owned();
                let processor = prepend(&text, id).map_err(build)?;
                inner.with_post_processor(Some(processor));
            }
            // Asked for a token that the vocabulary does not name: as in transformers, none is added.
            (Some(_), _) => {
                inner.with_post_processor(None::<PostProcessorWrapper>);
            }
            (None, _) => {
                let untrimmed = inner.get_post_processor().cloned().map(keep_offsets);
                inner.with_post_processor(untrimmed);
            }
        }
        let first = inner
            .encode("", true)
            .map_err(|error| build(error.to_string()))?
            .get_ids()
            .first()
            .copied();
        let added = inner.get_added_tokens_decoder().into_iter();
        let (mut special_ids, mut special_texts): (Vec<u32>, Vec<String>) =
            added.filter(|(_, token)| token.special).map(|(id, token)| (id, token.content)).unzip();
        special_ids.sort_unstable();
        special_texts.sort();
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Self {
            special,
            special_texts,
            special_ids,
            bos,
            eos,
            adds_bos: bos.is_some() && first == bos,
            vocab_size,
            inner,
            byte_level: OnceLock::new(),
        })
    }

    /// The ids of `text`. Special tokens written in it are read as such. `add_special` adds what the model wants around
    /// a text (BOS, for most that want anything), but never a second BOS before one that the text already begins with.
    ///
    /// For text from a chat template, which writes its own BOS, pass `false`, as transformers does.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        if !add_special
            && let Ok(byte_level) = self.byte_level()
            && let Ok(ids) = byte_level.encode(text)
        {
            return Ok(ids);
        }
        self.encode_by_library(text, add_special)
    }

    fn encode_by_library(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        let ids = encoding.get_ids();
        let doubled = self.adds_bos
            && add_special
            && ids.len() > 1
            && Some(ids[0]) == self.bos
            && Some(ids[1]) == self.bos;
        Ok(ids[usize::from(doubled)..].to_vec())
    }

    /// The ids of `text` without additions, and the bytes of `text` behind each.
    ///
    /// Tokens of one character (a byte-level vocabulary may need several for it) all have that character's bytes.
    pub(crate) fn encode_with_ranges(&self, text: &str) -> Result<Spelled, TokenizerError> {
        match self.byte_level().map(|byte_level| byte_level.encode_with_ranges(text)) {
            Ok(Ok(spelled)) => Ok(spelled),
            _ => self.spell_by_library(text),
        }
    }

    pub(crate) fn spell_by_library(&self, text: &str) -> Result<Spelled, TokenizerError> {
        let encoding = self
            .inner
            .encode(text, false)
            .map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        Ok(Spelled {
            ids: encoding.get_ids().to_vec(),
            ranges: encoding.get_offsets().iter().map(|(start, end)| *start..*end).collect(),
        })
    }

    pub(crate) fn byte_level(&self) -> Result<&ByteLevel, &str> {
        self.byte_level.get_or_init(|| ByteLevel::of(&self.inner)).as_ref().map_err(String::as_str)
    }

    /// Which code turns text into ids. Both ways give the same ones.
    pub fn way(&self) -> EncodeWay<'_> {
        match self.byte_level() {
            Ok(byte_level) => EncodeWay::ByteLevel { pieces: byte_level.name() },
            Err(reason) => EncodeWay::Library { reason },
        }
    }

    /// The text of `ids`; `skip_special` leaves special tokens out. Bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownId`] for an id outside the vocabulary, which the library would drop silently.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        for (position, &id) in ids.iter().enumerate() {
            if !self.has(id) {
                return Err(TokenizerError::UnknownId {
                    id,
                    position,
                    vocab_size: self.vocab_size,
                });
            }
        }
        self.inner
            .decode(ids, skip_special)
            .map_err(|error| TokenizerError::Decode { reason: error.to_string() })
    }

    /// Decodes ids as they come.
    pub fn stream(&self, skip_special: bool) -> StreamDecoder<'_> {
        StreamDecoder::new(self, skip_special)
    }

    /// One more than the largest id. A model's embedding may have more rows (padding), never fewer.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether `id` stands for a token.
    pub(crate) fn has(&self, id: u32) -> bool {
        self.inner.id_to_token(id).is_some()
    }

    /// The token of `id` as the vocabulary spells it (byte-level vocabularies spell a space `Ġ`).
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of `token`, spelled as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The id of the token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The id of the token that ends a text or turn. A model's `generation_config.json` may name more.
    pub fn eos(&self) -> Option<u32> {
        self.eos
    }

    /// Whether [`encode`](Self::encode) with `add_special` puts BOS first.
    pub fn adds_bos(&self) -> bool {
        self.adds_bos
    }

    /// The tokenizer as a `tokenizer.json`, which transformers and this crate read.
    ///
    /// # Errors
    /// [`TokenizerError::Serialize`] where the library cannot write it.
    pub fn to_json(&self) -> Result<String, TokenizerError> {
        self.inner
            .to_string(true)
            .map_err(|error| TokenizerError::Serialize { reason: error.to_string() })
    }

    /// The special tokens that have a name, such as `eos_token`.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Whether an id is a special token's.
    pub fn is_special(&self, id: u32) -> bool {
        self.special_ids.binary_search(&id).is_ok()
    }

    /// Tokens that are matched whole in text, by id, and whether each is special.
    pub(crate) fn added_tokens(&self) -> HashMap<u32, bool> {
        let added = self.inner.get_added_tokens_decoder();
        added.into_iter().map(|(id, token)| (id, token.special)).collect()
    }

    /// The texts of all special tokens, sorted.
    pub(crate) fn special_texts(&self) -> &[String] {
        &self.special_texts
    }
}

fn read_inner(path: &Path) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let read = |source| TokenizerError::Read { path: path.to_owned(), source };
    let bytes = std::fs::metadata(path).map_err(read)?.len();
    if bytes > FILE_LIMIT {
        return Err(TokenizerError::TooLarge { path: path.to_owned(), bytes, limit: FILE_LIMIT });
    }
    let content = std::fs::read(path).map_err(read)?;
    let malformed = |reason: String| TokenizerError::Malformed { path: path.to_owned(), reason };
    merge_check::check(&content).map_err(malformed)?;
    tokenizers::Tokenizer::from_bytes(&content).map_err(|error| malformed(error.to_string()))
}

fn optional_bool(config: &Map<String, Value>, key: &str) -> Result<Option<bool>, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(format!("`{key}` must be true or false")),
    }
}

/// The post-processor that puts one token before a text.
fn prepend(token: &str, id: u32) -> Result<TemplateProcessing, String> {
    // Built from parts: a token that contains a space would break the template's own notation.
    let value = serde_json::json!({
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                 {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [id], "tokens": [token]}},
    });
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// The same post-processor without trimming white space off offsets: masks need the bytes a token stands for.
fn keep_offsets(processor: PostProcessorWrapper) -> PostProcessorWrapper {
    match processor {
        PostProcessorWrapper::ByteLevel(bytes) => bytes.trim_offsets(false).into(),
        PostProcessorWrapper::Sequence(stages) => {
            Sequence::new(stages.into_iter().map(keep_offsets).collect()).into()
        }
        other => other,
    }
}

/// The special tokens that a GGUF file names by id.
pub(crate) fn gguf_special_tokens(metadata: &Metadata) -> Result<SpecialTokens, TokenizerError> {
    const IDS: &[(&str, &str)] = &[
        ("bos_token", "tokenizer.ggml.bos_token_id"),
        ("eos_token", "tokenizer.ggml.eos_token_id"),
        ("unk_token", "tokenizer.ggml.unknown_token_id"),
        ("pad_token", "tokenizer.ggml.padding_token_id"),
    ];
    let tokens = gguf::vocabulary(metadata)?.tokens;
    let mut special = SpecialTokens::default();
    for &(name, key) in IDS {
        let Some(id) = metadata.u32(key)? else {
            continue;
        };
        let text = tokens.get(id as usize).ok_or(TokenizerError::SpecialId {
            key,
            id,
            tokens: tokens.len(),
        })?;
        special.set(name, text);
    }
    Ok(special)
}
