//! The average of replicas.

use std::fmt;

use crate::tree;

/// The greatest count whose `f32` is exact.
pub const MAX_VALUES: usize = 1 << 24;

/// Why values have no mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeanError {
    /// There are no values.
    Empty,
    /// There are more than [`MAX_VALUES`].
    TooMany {
        /// How many there are.
        values: usize,
    },
}

impl fmt::Display for MeanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => write!(f, "no values have no mean; give at least one"),
            Self::TooMany { values } => write!(
                f,
                "the mean of {values} values is not defined above {MAX_VALUES}, where an f32 no longer counts exactly"
            ),
        }
    }
}

impl std::error::Error for MeanError {}

/// The mid-split tree sum of `values`, then one division by their number.
///
/// A power of two of equal values gives the value itself (short of overflow): each
/// addition doubles and the division halves back, exactly.
///
/// # Errors
/// [`MeanError`] when there is nothing to average, or more than can be counted.
pub fn mean(values: &[f32]) -> Result<f32, MeanError> {
    match values.len() {
        0 => Err(MeanError::Empty),
        n if n > MAX_VALUES => Err(MeanError::TooMany { values: n }),
        n => Ok(tree::sum(values) / n as f32),
    }
}
