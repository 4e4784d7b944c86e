//! Why an adapter does not go with a base.

use thiserror::Error;

/// What of an adapter the base cannot take. The base's path is added by [`crate::FormatError::Merge`].
#[derive(Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum MergeError {
    /// A module that the base does not have.
    #[error(
        "the adapter changes \"{module}\", which this model does not have: the adapter was made for another model"
    )]
    NoSuchModule {
        /// The module.
        module: String,
    },
    /// A module of another shape.
    #[error(
        "the adapter changes \"{module}\" as a matrix of {adapter:?} and this model has {base:?}: \
         the adapter was made for another model"
    )]
    WrongShape {
        /// The module.
        module: String,
        /// Its shape in the adapter, `[out, in]`.
        adapter: [usize; 2],
        /// Its shape in the base.
        base: Vec<usize>,
    },
    /// The head of a tied model.
    #[error(
        "the adapter changes \"lm_head\", which this model ties to its input embedding: merging would change the input \
         too; keep base and adapter apart, or untie them (tie_word_embeddings false, and a lm_head.weight) first"
    )]
    TiedHead,
    /// The adapter names another base.
    #[error(
        "the adapter was trained on a base with the weights {trained_on}{} and these have {found}; give that base, or \
         --allow-other-base to take this one all the same", reference.as_ref().map_or(String::new(), |r| format!(" ({r})"))
    )]
    OtherBase {
        /// The fingerprint that the adapter names.
        trained_on: String,
        /// The model reference that the adapter names.
        reference: Option<String>,
        /// This base's fingerprint.
        found: String,
    },
}
