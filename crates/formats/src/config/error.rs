//! Every way a model's configuration can be wrong or unsupported.

use thiserror::Error;

use crate::gguf;

/// What is wrong with a configuration. The file's path is added by [`crate::FormatError::Config`].
///
/// Keys are those of `config.json`; for a GGUF file they are its metadata keys.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is too large to be a configuration.
    #[error("the file is {found} bytes, over the limit of {limit} for a JSON configuration")]
    TooLarge {
        /// Its size, bytes.
        found: u64,
        /// The largest size allowed, bytes.
        limit: u64,
    },
    /// The file is not a JSON object.
    #[error("not a JSON object: {0}")]
    NotJson(#[source] serde_json::Error),
    /// A key that is required is absent.
    #[error("\"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value of another type than its key needs.
    #[error("\"{key}\" is {found} where {expected} is expected")]
    WrongType {
        /// The key.
        key: String,
        /// What is needed.
        expected: &'static str,
        /// The value found, as JSON.
        found: String,
    },
    /// A model family that is not known.
    #[error("\"{key}\" is \"{found}\", which is not supported: llama, qwen2 and qwen3 models are")]
    UnknownArchitecture {
        /// `model_type`, `architectures` or `general.architecture`.
        key: &'static str,
        /// The family found.
        found: String,
    },
    /// A feature that changes the model's arithmetic and is not supported.
    #[error("\"{key}\" is {found}, which is not supported: only {supported} is")]
    Unsupported {
        /// The key.
        key: String,
        /// The value found.
        found: String,
        /// What is supported.
        supported: &'static str,
    },
    /// A number outside its named limits.
    #[error("\"{key}\" is {found}: it must be from {least} to {most}")]
    OutOfRange {
        /// The key.
        key: String,
        /// The value found.
        found: String,
        /// The least value allowed.
        least: String,
        /// The largest value allowed.
        most: String,
    },
    /// A size that must be a multiple of another and is not.
    #[error("\"{key}\" is {found}, no multiple of \"{divisor_key}\", which is {divisor}")]
    NotAMultiple {
        /// The key.
        key: &'static str,
        /// Its value.
        found: usize,
        /// The other key.
        divisor_key: &'static str,
        /// The other value.
        divisor: usize,
    },
    /// Rotary divisors of a GGUF that no known scaling explains.
    #[error(
        "the divisors in \"rope_freqs.weight\" are not those of a known rope scaling (at frequency {at}: {found}, expected {expected})"
    )]
    UnknownRopeFreqs {
        /// Index of the first frequency that differs.
        at: usize,
        /// The divisor in the file.
        found: f32,
        /// The divisor that Llama 3's scaling gives.
        expected: f32,
    },
    /// The metadata of a GGUF file is wrong.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}
