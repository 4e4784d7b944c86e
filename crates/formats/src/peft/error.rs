//! Every way an adapter can be wrong or unsupported.

use thiserror::Error;

/// What is wrong with an adapter. The file's path is added by [`crate::FormatError::Adapter`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// A key that is required is absent.
    #[error("\"{key}\" is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
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
    /// A kind of adapter, or an option of LoRA, that is not supported.
    #[error(
        "\"{key}\" is {found}, which is not supported: only plain LoRA (A and B of linear layers) is"
    )]
    Unsupported {
        /// The key.
        key: String,
        /// The value found, as JSON.
        found: String,
    },
    /// A rank that is zero or over the limit.
    #[error("rank {found} of \"{module}\" must be from 1 to {limit}")]
    BadRank {
        /// The module, or `r` for the adapter's own.
        module: String,
        /// The rank found.
        found: usize,
        /// The largest rank allowed.
        limit: usize,
    },
    /// An alpha that is not a positive number.
    #[error("alpha {found} of \"{module}\" must be a positive number")]
    BadAlpha {
        /// The module, or `lora_alpha` for the adapter's own.
        module: String,
        /// The alpha found.
        found: f64,
    },
    /// A key of `rank_pattern` or `alpha_pattern` that is a true regular expression.
    #[error(
        "\"{key}\" has the pattern \"{pattern}\": only plain module names are supported, no regular expressions"
    )]
    PatternNotPlain {
        /// `rank_pattern` or `alpha_pattern`.
        key: &'static str,
        /// The pattern.
        pattern: String,
    },
    /// A tensor that is neither A nor B of a LoRA layer.
    #[error("tensor \"{name}\" is not the lora_A or lora_B of a linear layer")]
    UnknownTensor {
        /// The tensor's name.
        name: String,
    },
    /// One of A and B without the other.
    #[error("module \"{module}\" lacks its {missing}")]
    HalfModule {
        /// The module.
        module: String,
        /// `lora_A` or `lora_B`.
        missing: &'static str,
    },
    /// A and B do not fit each other or the configured rank.
    #[error(
        "module \"{module}\": lora_A {a:?} and lora_B {b:?} do not fit rank {rank}: they must be [rank, in] and [out, rank]"
    )]
    WrongShape {
        /// The module.
        module: String,
        /// Shape of A.
        a: Vec<usize>,
        /// Shape of B.
        b: Vec<usize>,
        /// The rank that the configuration gives the module.
        rank: usize,
    },
    /// A factor whose storage format holds no numbers that can be read.
    #[error("tensor \"{name}\" is stored as {dtype}: only F32, F16 and BF16 are read")]
    UnreadableDtype {
        /// The tensor's name.
        name: String,
        /// Its storage format.
        dtype: crate::Dtype,
    },
    /// A factor that holds an infinity or no number at all.
    #[error(
        "tensor \"{name}\" holds {found} at element {index}: its file was damaged, or the training diverged"
    )]
    NotFinite {
        /// The tensor's name.
        name: String,
        /// The value found.
        found: f32,
        /// Its place in the tensor, row by row.
        index: usize,
    },
    /// A `samebit.json` that does not say what the adapter was trained on.
    #[error(
        "{reason}; the file says what the adapter was trained on: write it again, or remove it"
    )]
    BadOrigin {
        /// What is wrong with it.
        reason: String,
    },
    /// No LoRA layers at all.
    #[error("the adapter holds no LoRA layers")]
    Empty,
    /// The same module twice.
    #[error("module \"{module}\" appears twice")]
    DuplicateModule {
        /// The module.
        module: String,
    },
    /// A buffer for a factor has the wrong length.
    #[error("tensor \"{name}\" has {needed} numbers; the buffer has {found}")]
    WrongBufferLength {
        /// The tensor or module.
        name: String,
        /// Numbers in the tensor.
        needed: usize,
        /// Numbers in the buffer.
        found: usize,
    },
}
