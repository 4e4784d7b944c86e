//! What ranks give each other.

use crate::error::FabricError;
use arena::Published;
use std::ops::Deref;

/// What one rank gives in a round.
#[derive(Clone, Debug)]
pub(crate) enum Contribution {
    /// Live rows of a float buffer.
    Rows(Rows),
    /// Bytes for every rank of the group.
    Bytes(Vec<u8>),
    /// Bytes for each rank of the group, in its order.
    Parts(Vec<Vec<u8>>),
}

/// Rows of floats.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Values,
}

/// Where floats are.
#[derive(Clone, Debug)]
pub(crate) enum Values {
    /// In the planned block of a rank of this process.
    Published(Published),
    /// In the message of another process.
    #[cfg_attr(not(feature = "mpi"), expect(dead_code, reason = "ranks are threads"))]
    Received(Vec<f32>),
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Values::Published(values) => values,
            Values::Received(values) => values,
        }
    }
}

impl Rows {
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

impl Contribution {
    /// The rows, where the operation moves rows.
    ///
    /// # Errors
    /// [`FabricError::Contents`]: ranks called operations of one name with other contents.
    pub(crate) fn rows(&self, operation: &str, rank: usize) -> Result<&Rows, FabricError> {
        match self {
            Contribution::Rows(rows) => Ok(rows),
            _ => Err(contents(operation, rank)),
        }
    }

    /// The bytes, where the operation moves bytes.
    ///
    /// # Errors
    /// As [`Contribution::rows`].
    pub(crate) fn bytes(&self, operation: &str, rank: usize) -> Result<&[u8], FabricError> {
        match self {
            Contribution::Bytes(bytes) => Ok(bytes),
            _ => Err(contents(operation, rank)),
        }
    }

    /// What is for the rank at `place`.
    ///
    /// # Errors
    /// As [`Contribution::rows`].
    pub(crate) fn part(
        &self,
        operation: &str,
        rank: usize,
        place: usize,
    ) -> Result<&[u8], FabricError> {
        match self {
            Contribution::Parts(parts) => {
                parts.get(place).map(Vec::as_slice).ok_or_else(|| contents(operation, rank))
            }
            _ => Err(contents(operation, rank)),
        }
    }
}

fn contents(operation: &str, rank: usize) -> FabricError {
    FabricError::Contents { operation: operation.into(), rank }
}
