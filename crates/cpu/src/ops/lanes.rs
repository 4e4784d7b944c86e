//! Kernels over flat elements and over rows: how they are shared among threads, and
//! the pieces they are made of.
//!
//! Work is cut at multiples of a vector, and a kernel's result for one element (or
//! one row) depends on nothing else, so the cut cannot be seen in it.

use std::ops::Range;

use crate::context::{Context, Shared};
use crate::simd::{Kernel, LANES, Vector, dispatch};

/// Elements below which handing work to other threads costs more than it saves.
const SERIAL_ELEMENTS: usize = 1 << 15;
/// Elements of a task.
const TASK_ELEMENTS: usize = 1 << 14;

/// A kernel over a range of independent units (rows, columns, vectors).
pub(super) trait Units: Copy + Sync {
    /// Computes the units of `range`.
    ///
    /// # Safety
    /// The instruction set of `V` is enabled and what the kernel points to is there.
    unsafe fn run<V: Vector>(self, range: Range<usize>);
}

/// Runs a kernel over `count` units of about `elements` elements each.
///
/// # Safety
/// The kernel's pointers are valid for all units; units write disjoint memory.
pub(super) unsafe fn for_units(
    context: &Context,
    count: usize,
    elements: usize,
    kernel: impl Units,
) {
    struct Part<U>(U, Range<usize>);
    impl<U: Units> Kernel for Part<U> {
        type Output = ();
        #[inline(always)]
        unsafe fn run<V: Vector>(self) {
            // SAFETY: as the caller's.
            unsafe { self.0.run::<V>(self.1) };
        }
    }
    let isa = context.isa();
    let elements = elements.max(1);
    if context.threads() == 1 || count.saturating_mul(elements) < SERIAL_ELEMENTS {
        // SAFETY: the caller's word.
        unsafe { dispatch(isa, Part(kernel, 0..count)) };
        return;
    }
    // Few large units (columns of a long sum) still make a task for every thread.
    let size = (TASK_ELEMENTS / elements).clamp(1, count.div_ceil(context.threads()).max(1));
    context.for_each(count.div_ceil(size), |_, task| {
        let start = task * size;
        // SAFETY: the caller's word; tasks are disjoint.
        unsafe { dispatch(isa, Part(kernel, start..count.min(start + size))) };
    });
}

/// A kernel that treats every element alike.
pub(super) trait Elementwise: Copy + Sync {
    /// Computes elements `at .. at + n`, `n <= 16`.
    ///
    /// # Safety
    /// As [`Units::run`].
    unsafe fn at<V: Vector>(self, at: usize, n: usize);
}

/// Runs an element-wise kernel over `len` elements.
///
/// # Safety
/// The kernel's pointers are valid for `len` elements.
pub(super) unsafe fn for_elements(context: &Context, len: usize, kernel: impl Elementwise) {
    #[derive(Clone, Copy)]
    struct Flat<E>(E, usize);
    impl<E: Elementwise> Units for Flat<E> {
        #[inline(always)]
        unsafe fn run<V: Vector>(self, range: Range<usize>) {
            let end = self.1.min(range.end * LANES);
            // SAFETY: as the caller's.
            unsafe { sweep::<V>(range.start * LANES, end, self.0) };
        }
    }
    // SAFETY: the caller's word; vectors are disjoint.
    unsafe { for_units(context, len.div_ceil(LANES), LANES, Flat(kernel, len)) };
}

/// Calls `kernel` for every vector of `from .. to`, the last one partial.
///
/// # Safety
/// As [`Elementwise::at`].
#[inline(always)]
pub(super) unsafe fn sweep<V: Vector>(from: usize, to: usize, kernel: impl Elementwise) {
    let mut at = from;
    // SAFETY: as the caller's.
    unsafe {
        while at + LANES <= to {
            kernel.at::<V>(at, LANES);
            at += LANES;
        }
        if at < to {
            kernel.at::<V>(at, to - at);
        }
    }
}

/// The address `elements` further on.
#[inline(always)]
pub(super) fn shifted<T>(from: Shared<T>, elements: usize) -> Shared<T> {
    Shared(from.get().wrapping_add(elements))
}

/// Loads `n` lanes from element `at`, the others `+0`.
///
/// # Safety
/// They are readable.
#[inline(always)]
pub(super) unsafe fn load<V: Vector>(from: Shared<f32>, at: usize, n: usize) -> V {
    // SAFETY: the caller's word.
    unsafe {
        let from = from.get().add(at);
        if n == LANES { V::load(from) } else { V::load_first(from, n) }
    }
}

/// Stores `n` lanes at element `at`.
///
/// # Safety
/// They are writable.
#[inline(always)]
pub(super) unsafe fn store<V: Vector>(value: V, to: Shared<f32>, at: usize, n: usize) {
    // SAFETY: the caller's word.
    unsafe {
        let to = to.get().add(at);
        if n == LANES { value.store(to) } else { value.store_first(to, n) }
    }
}

/// The lanes with their sign bits turned.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
pub(super) unsafe fn negate<V: Vector>(x: V) -> V {
    // SAFETY: as the caller's. The sum of sign bits drops its carry.
    unsafe { x.add_bits(V::splat(-0.0)) }
}

/// The mid-split tree over sixteen lanes.
#[inline(always)]
pub(super) fn fold(lanes: [f32; LANES]) -> f32 {
    let mut sums = lanes;
    let mut n = LANES / 2;
    while n > 0 {
        for i in 0..n {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
        }
        n /= 2;
    }
    sums[0]
}

/// The two factors of a sum of products. A trait and no closure: only what is inlined
/// for certain is compiled for the instruction set.
pub(super) trait Factors: Copy {
    /// The factors of elements `at .. at + n`, `n <= 16`.
    ///
    /// # Safety
    /// As [`Units::run`].
    unsafe fn at<V: Vector>(self, at: usize, n: usize) -> (V, V);
}

/// `Σ a_i · b_i` over `len` elements in the canon's order: element `i` continues the
/// fused multiply-add chain of lane `i mod 16`, lanes folded by the mid-split tree.
///
/// # Safety
/// As [`Units::run`], for `len` elements.
#[inline(always)]
pub(super) unsafe fn dot<V: Vector>(len: usize, factors: impl Factors) -> f32 {
    // SAFETY: as the caller's.
    unsafe {
        let mut sums = V::zero();
        let mut at = 0;
        while at + LANES <= len {
            let (a, b) = factors.at::<V>(at, LANES);
            sums = a.fma(b, sums);
            at += LANES;
        }
        let mut lanes = sums.to_array();
        if at < len {
            // Lanes past the end take no step: a step of zeros would turn -0 to +0.
            let (a, b) = factors.at::<V>(at, len - at);
            let next = a.fma(b, sums).to_array();
            lanes[..len - at].copy_from_slice(&next[..len - at]);
        }
        fold(lanes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Arithmetic;
    use crate::isa::Isa;

    #[derive(Clone, Copy)]
    struct Count(Shared<f32>);

    impl Elementwise for Count {
        #[inline(always)]
        unsafe fn at<V: Vector>(self, at: usize, n: usize) {
            // SAFETY: the caller's word.
            unsafe { store(load::<V>(self.0, at, n).add(V::splat(1.0)), self.0, at, n) };
        }
    }

    #[test]
    fn every_element_is_visited_once() {
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let context = Context::new(isa, Arithmetic::F32, threads).unwrap();
                for len in [0, 1, 15, 16, 17, 1000, SERIAL_ELEMENTS + 5, 5 * TASK_ELEMENTS + 1] {
                    let mut x = vec![0.0; len];
                    // SAFETY: `len` elements are there.
                    unsafe { for_elements(&context, len, Count(Shared(x.as_mut_ptr()))) };
                    assert!(x.iter().all(|&x| x == 1.0), "{isa}, {threads} threads, {len}");
                }
            }
        }
    }

    #[test]
    fn lanes_fold_in_the_mid_split_tree() {
        let lanes = std::array::from_fn(|i| (1.1_f32).powi(7 * i as i32 % 11) * 1e3 + i as f32);
        assert_eq!(fold(lanes).to_bits(), canon::tree::sum(&lanes).to_bits());
    }
}
