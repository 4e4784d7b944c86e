//! The balanced mid-split tree: the only order in which partial sums are added.
//!
//! A node over leaves `lo..hi` with more than one leaf splits at
//! `lo + (hi - lo) / 2` (division rounding down) and is `left + right`. Eight
//! leaves give `((0+1)+(2+3))+((4+5)+(6+7))`, five give `(0+1)+(2+(3+4))`.
//! Nothing else about the machine enters: ranks own subtrees ([`owned`]), the
//! rest of the tree is finished from their sums ([`finish`]), and leaves that
//! arrive one after another are added as soon as the tree allows ([`Stream`]).

mod owners;
mod stream;

use std::ops::Range;

pub use owners::{Addition, Owner, OwnerError, finish, owned, owners};
pub use stream::{Stream, StreamError, merges_after, partials};

/// Where a node over `range` splits: `start + len / 2`.
#[inline]
#[must_use]
pub fn middle(range: &Range<usize>) -> usize {
    range.start + range.len() / 2
}

/// The mid-split tree sum of `values`, one `f32` addition a node.
///
/// One value is returned as it is (`-0` and NaN payloads included); no value at
/// all is `+0`.
#[must_use]
pub fn sum(values: &[f32]) -> f32 {
    match values {
        [] => 0.0,
        [one] => *one,
        _ => {
            let (left, right) = values.split_at(values.len() / 2);
            sum(left) + sum(right)
        }
    }
}

/// Evaluates the tree over `leaves` leaves with any values and any addition.
///
/// `leaf(i)` is called once for each `i`, ascending; `add(left, right)` once a
/// node, after both of its children. `None` if `leaves` is 0.
pub fn fold<T>(
    leaves: usize,
    mut leaf: impl FnMut(usize) -> T,
    mut add: impl FnMut(T, T) -> T,
) -> Option<T> {
    (leaves > 0).then(|| fold_node(0..leaves, &mut leaf, &mut add))
}

fn fold_node<T>(
    range: Range<usize>,
    leaf: &mut impl FnMut(usize) -> T,
    add: &mut impl FnMut(T, T) -> T,
) -> T {
    if range.len() == 1 {
        return leaf(range.start);
    }
    let middle = middle(&range);
    let left = fold_node(range.start..middle, leaf, add);
    let right = fold_node(middle..range.end, leaf, add);
    add(left, right)
}
