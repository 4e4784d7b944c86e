//! Copy of a buffer.

use crate::buffer::BufferId;

/// `out = x`, every live row.
#[derive(Clone, Debug, PartialEq)]
pub struct Copy {
    /// Input.
    pub x: BufferId,
    /// Output, of the same shape.
    pub out: BufferId,
}
