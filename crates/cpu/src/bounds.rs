//! The most workspace that products need over every live size of a planned shape.
//!
//! A program is planned for a capacity and may run with fewer tokens. The kernel
//! cuts a smaller product otherwise, and a block of a smaller product may be larger;
//! so the plan takes the maximum over the sizes that may come.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::context::Arithmetic;
use crate::matmul::{Shape, workspace_bytes};

/// Rows for each thread from which on a product of more rows never needs less: the
/// kernel's number of row tasks is constant there, or their rows at most this. Held by
/// a test.
const SETTLED_ROWS_PER_THREAD: usize = 336;
/// `k` from which on a longer one never needs less: blocks of `k` have one length
/// there. Held by a test.
const SETTLED_K: usize = 6400;

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Varies {
    Rows,
    K,
}

/// Remembers what it has found: layers repeat their shapes.
pub(crate) struct Bounds {
    arithmetic: Arithmetic,
    threads: usize,
    found: Mutex<HashMap<(Shape, Varies), usize>>,
}

impl Bounds {
    pub(crate) fn new(arithmetic: Arithmetic, threads: usize) -> Self {
        Self { arithmetic, threads, found: Mutex::new(HashMap::new()) }
    }

    /// The arithmetic of the products.
    pub(crate) fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// Bytes of this very shape.
    pub(crate) fn fixed(&self, shape: Shape) -> usize {
        workspace_bytes(&shape, self.threads)
    }

    /// Most bytes over every `m` up to the shape's.
    pub(crate) fn any_m(&self, shape: Shape) -> usize {
        let settled = SETTLED_ROWS_PER_THREAD * self.threads;
        self.most(shape, Varies::Rows, settled, shape.m, |m| Shape { m, ..shape })
    }

    /// Most bytes over every `k` up to the shape's.
    pub(crate) fn any_k(&self, shape: Shape) -> usize {
        self.most(shape, Varies::K, SETTLED_K, shape.k, |k| Shape { k, ..shape })
    }

    fn most(
        &self,
        shape: Shape,
        varies: Varies,
        settled: usize,
        capacity: usize,
        with: impl Fn(usize) -> Shape,
    ) -> usize {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        *found.entry((shape, varies)).or_insert_with(|| {
            (1..=capacity.min(settled))
                .chain([capacity])
                .map(|size| workspace_bytes(&with(size), self.threads))
                .max()
                .unwrap_or(0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The short search finds the maximum of the full one.
    #[test]
    fn bounds_hold_for_every_live_size() {
        let arithmetics = [Arithmetic::F32, Arithmetic::Bf16Tiles];
        for (threads, arithmetic) in
            [1, 2, 3, 8].into_iter().flat_map(|t| arithmetics.map(|a| (t, a)))
        {
            let bounds = Bounds::new(arithmetic, threads);
            for (n, k, leaves) in
                [(576, 576, 1), (1536, 576, 8), (16, 1536, 8), (576, 12_288, 8), (4096, 4096, 1)]
            {
                let shape = Shape { arithmetic, m: 5000, n, k, leaves };
                let all = (1..=shape.m).map(|m| bounds.fixed(Shape { m, ..shape })).max();
                assert_eq!(Some(bounds.any_m(shape)), all, "{threads} threads, {shape:?}");
            }
            for (m, n) in [(576, 16), (16, 576), (1536, 576), (49_152, 576), (4096, 4096)] {
                let shape = Shape { arithmetic, m, n, k: 9000, leaves: 1 };
                let all = (1..=shape.k).map(|k| bounds.fixed(Shape { k, ..shape })).max();
                assert_eq!(Some(bounds.any_k(shape)), all, "{threads} threads, {shape:?}");
            }
        }
    }
}
