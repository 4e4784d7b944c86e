//! Tokenizers and chat templates.
//!
//! - [`Tokenizer`]: text to token ids and back, from a `tokenizer.json` or from the vocabulary inside a GGUF file.
//! - [`StreamDecoder`]: ids to text one at a time, never cutting a character.
//! - [`ChatTemplate`]: messages to text through the model's own Jinja template, byte-equal to transformers.
//! - [`ChatTemplate::encode_with_mask`]: messages to ids, and which of them an assistant said.
//! - [`TextIdentity`]: hashes of all that decides how a model encodes text.
//!
//! Text is UTF-8 and ranges are in bytes; token ids are `u32`.

mod byte_level;
mod encoding_mask;
mod error;
mod generation;
mod gguf;
mod gguf_bpe;
mod gguf_spm;
mod identity;
mod merge_check;
mod messages;
mod pre_tokenizer;
mod python;
mod special_tokens;
mod stream;
mod supervised;
mod template;
mod template_source;
mod to_gguf;
mod tokenizer;

pub use encoding_mask::Encoded;
pub use error::{MaskError, TemplateError, TokenizerError};
pub use identity::TextIdentity;
pub use messages::ROLES;
pub use special_tokens::SpecialTokens;
pub use stream::StreamDecoder;
pub use supervised::Supervised;
pub use template::{ChatTemplate, Rendered};
pub use tokenizer::{EncodeWay, Tokenizer};
