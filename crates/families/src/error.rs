//! Errors of building a model.

/// A model that cannot be built as asked.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FamilyError {
    /// A LoRA pattern matches no module.
    #[error(
        "target pattern `{pattern}` matches no linear module; {nearest}modules of a layer: {modules}"
    )]
    PatternMatchesNothing {
        /// The pattern.
        pattern: String,
        /// "did you mean …? ", or empty.
        nearest: String,
        /// What there is.
        modules: String,
    },
    /// No pattern at all.
    #[error("LoRA needs at least one target module, such as `all-linear` or `q_proj`")]
    NoPattern,
    /// A rank of zero or more than any matrix has.
    #[error("LoRA rank {r} is not between 1 and {limit}, the smallest side of `{module}`")]
    Rank {
        /// The rank.
        r: usize,
        /// Largest possible.
        limit: usize,
        /// The module with the smallest side.
        module: String,
    },
    /// An alpha that is not a positive number.
    #[error("LoRA alpha {alpha} is not a positive number")]
    Alpha {
        /// The value.
        alpha: f64,
    },
}
