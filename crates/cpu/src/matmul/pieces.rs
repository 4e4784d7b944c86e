//! The terms of a product cut at block boundaries of `k`: what a tile does, in order.

use super::operand::Source;
use super::words::Words;
use super::{Init, MAX_TERMS, Product};

/// Where the accumulator of a piece starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begin {
    /// From `+0`: a new chain.
    Zero,
    /// From the registers: the chain of the piece before.
    Continue,
    /// From the saved accumulator.
    Resume,
}

/// What becomes of the accumulator after a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The next piece goes on with it.
    Keep,
    /// Saved until the next block of `k`.
    Save,
    /// A leaf is done: add the top `merges` stack slots on its left, then put it in
    /// `slot`.
    Leaf {
        /// Nodes of the tree that this leaf completes.
        merges: usize,
        /// Stack slot of the result.
        slot: usize,
    },
    /// The tail is done: slot 0 plus it, into slot 0.
    Tail,
}

/// Part of one term inside one block of `k`. A unit is one word: one `k`, or a pair
/// of them in bf16 arithmetic.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub(super) a: Source,
    pub(super) b: Source,
    /// `k` of the whole term.
    pub(super) k: usize,
    /// First unit, counted in the term.
    pub(super) unit: usize,
    pub(super) units: usize,
    pub(super) begin: Begin,
    pub(super) end: End,
}

/// Nodes of the mid-split tree over `n` leaves that are complete once leaf `i` is.
pub(super) fn merges_after(n: usize, i: usize) -> usize {
    let (mut lo, mut hi, mut merges) = (0, n, 0);
    while hi - lo > 1 {
        let mid = lo + (hi - lo) / 2;
        if i < mid {
            hi = mid;
            merges = 0;
        } else {
            lo = mid;
            merges += 1;
        }
    }
    merges
}

/// Most stack slots in use at once for `n` leaves.
pub(super) fn stack_slots(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize + 1
}

/// Calls `visit` with each piece of the units `[from, to)` of the product, counted
/// over all terms.
pub(super) fn for_each<W: Words>(
    product: &Product<'_>,
    from: usize,
    to: usize,
    mut visit: impl FnMut(Piece),
) {
    let leaves = product.leaves.len();
    let mut at = 0;
    let mut first_of_block = true;
    let mut depth = 0;
    for group in 0..=leaves {
        let (terms, is_tail) = match product.leaves.get(group) {
            Some(leaf) => (*leaf, false),
            None => (product.tail, true),
        };
        let merges = if is_tail { 0 } else { merges_after(leaves, group) };
        for (index, term) in terms.iter().enumerate() {
            let units = W::units(term.k);
            let (lo, hi) = (from.max(at), to.min(at + units));
            let start = at;
            at += units;
            if lo >= hi {
                continue;
            }
            let chain_start = index == 0 && lo == start;
            let begin = match (chain_start, first_of_block) {
                (true, _) if group == 0 && matches!(product.init, Init::Chain) => Begin::Resume,
                (true, _) => Begin::Zero,
                (false, true) => Begin::Resume,
                (false, false) => Begin::Continue,
            };
            let chain_end = index + 1 == terms.len() && hi == at;
            let end = match (chain_end, is_tail) {
                (true, true) => End::Tail,
                (true, false) => End::Leaf { merges, slot: depth - merges },
                (false, _) if hi == to => End::Save,
                (false, _) => End::Keep,
            };
            first_of_block = false;
            let (a, b) = (term.a.raw(), term.b.raw());
            visit(Piece { a, b, k: term.k, unit: lo - start, units: hi - lo, begin, end });
        }
        if !is_tail {
            depth = depth + 1 - merges;
        }
    }
}

/// The pieces of one block, on the stack of the task.
pub(super) struct Pieces {
    list: [std::mem::MaybeUninit<Piece>; MAX_TERMS],
    len: usize,
}

impl Pieces {
    pub(super) fn of<W: Words>(product: &Product<'_>, from: usize, to: usize) -> Self {
        let mut pieces =
            Self { list: [const { std::mem::MaybeUninit::uninit() }; MAX_TERMS], len: 0 };
        for_each::<W>(product, from, to, |piece| {
            pieces.list[pieces.len].write(piece);
            pieces.len += 1;
        });
        pieces
    }

    pub(super) fn as_slice(&self) -> &[Piece] {
        // SAFETY: the first `len` were written.
        unsafe { std::slice::from_raw_parts(self.list.as_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stack machine adds in the order of the recursive definition.
    #[test]
    fn merges_follow_the_mid_split_tree() {
        fn text(lo: usize, hi: usize) -> String {
            if hi - lo == 1 {
                return lo.to_string();
            }
            let mid = lo + (hi - lo) / 2;
            format!("({}+{})", text(lo, mid), text(mid, hi))
        }
        for n in 1..=40 {
            let mut stack: Vec<String> = Vec::new();
            for i in 0..n {
                let mut acc = i.to_string();
                for _ in 0..merges_after(n, i) {
                    acc = format!("({}+{acc})", stack.pop().unwrap());
                }
                stack.push(acc);
                assert!(stack.len() <= stack_slots(n), "{n} leaves use {} slots", stack.len());
            }
            assert_eq!(stack, [text(0, n)]);
        }
    }
}
