//! Every linear product: forward, input gradient, weight gradient, LoRA branch.
//!
//! # What is computed
//! ```text
//! sum[i,j] = tree(leaf_0[i,j], …, leaf_{n-1}[i,j])  [ + tail[i,j] ]
//! val[i,j] = alpha == 1 ? sum : alpha * sum
//! out[i,j] = init(val[i,j])                          rounded once to the storage type
//! ```
//! - A *leaf* is one chain over its terms in order and each term's `k` ascending,
//!   from `+0`: `acc = fma(a[i,k], b[j,k], acc)` in profile `cpu-f32`, one
//!   [`dot_bf16_pair`](crate::bf16_dot::dot_bf16_pair) for each pair
//!   `(k, k + 1)` counted from the term's own `k = 0` in profile `cpu-bf16` (an
//!   odd last `k` is paired with zeros; operands rounded by
//!   [`round_operand`](crate::bf16_dot::round_operand)), one
//!   [`add_run`](canon::tile_dot::add_run) for each run of 32 `k`, counted likewise, in
//!   profile `cpu-bf16-tiles` (operands rounded likewise).
//! - `tree` adds leaves in f32 by the mid-split: a node over `[lo, hi)` is the node
//!   over `[lo, mid)` plus the node over `[mid, hi)`, `mid = lo + (hi - lo) / 2`.
//! - The *tail* is one more chain of its own, from `+0`, added once.
//! - `init`: nothing; `val + bias[j]`; `out_old + val`; or [`Init::Chain`], where
//!   the chain of the only leaf starts from `out_old` in place of `+0`.
//!
//! An element depends on its own row of A and its own row of B only: not on the
//! other rows, the shape, the threads or the instruction set.
//!
//! # How
//! Panels of A and B are packed as `[k][rows]` words and multiplied in register
//! tiles (14 x 32 on AVX-512), lanes across outputs, never across `k`. Leaf sums
//! are kept on a small stack beside the tile in L1. A long `k` is cut in blocks; a
//! chain's accumulator then rests in scratch memory between blocks, unrounded.

mod bf16_path;
mod error;
mod few_on_tiles;
mod finish;
mod operand;
mod pack;
mod pieces;
mod problem;
pub mod reference;
mod skinny;
mod steps;
mod task;
mod thin;
mod tile;
mod tiles;
mod words;
mod workspace;

pub use bf16_path::Bf16Path;
pub use error::MatmulError;
pub use operand::{Elems, ElemsMut, Operand, OutView};
pub use problem::{Init, Product, Term};
pub use workspace::{Shape, workspace_bytes};

use crate::context::{Arithmetic, Context, Shared};
use crate::isa::{Isa, has_native_bf16_dot};
use crate::scratch;
use crate::simd::dispatch;
use crate::tiles::has_native_tiles;
use task::{Job, Way};
use words::{Bf16, F32, Flushed, Runs, Tiles, Words};
use workspace::{HEADER, Split};

/// Most terms of a product, leaves and tail together.
pub const MAX_TERMS: usize = 128;

/// Computes `product` into `out`.
///
/// `workspace` holds at least [`workspace_bytes`] of the product's [`Shape`] and
/// the context's threads; nothing is allocated.
///
/// # Errors
/// [`MatmulError`]; `out` is then untouched.
pub fn matmul(
    context: &Context,
    product: &Product<'_>,
    out: OutView<'_>,
    workspace: &mut [u8],
) -> Result<(), MatmulError> {
    let path = match context.arithmetic() {
        Arithmetic::F32 | Arithmetic::Bf16Tiles => Bf16Path::Native,
        Arithmetic::Bf16 => Bf16Path::fastest(),
    };
    matmul_by(context, product, out, workspace, path)
}

/// [`matmul`] on a given path of the bf16 profiles: the same bits.
///
/// # Errors
/// As [`matmul`].
pub fn matmul_by(
    context: &Context,
    product: &Product<'_>,
    out: OutView<'_>,
    workspace: &mut [u8],
    path: Bf16Path,
) -> Result<(), MatmulError> {
    problem::check(product, &out)?;
    let shape = Shape::of(product, context.arithmetic());
    let needed = workspace_bytes(&shape, context.threads());
    if workspace.len() < needed {
        return Err(MatmulError::Workspace { needed, given: workspace.len() });
    }
    if product.m == 0 || product.n == 0 {
        return Ok(());
    }
    match context.arithmetic() {
        Arithmetic::F32 => run::<F32>(context, product, out, workspace),
        Arithmetic::Bf16 if flushes(context, product, path) => {
            run::<Flushed>(context, product, out, workspace);
        }
        Arithmetic::Bf16 => run::<Bf16>(context, product, out, workspace),
        Arithmetic::Bf16Tiles => match (context.isa(), path) {
            (Isa::Avx512, Bf16Path::Native) if has_native_tiles() => {
                run::<Tiles>(context, product, out, workspace);
            }
            (Isa::Avx512 | Isa::Avx2, _) => run::<Runs<true>>(context, product, out, workspace),
            (Isa::Portable, _) => run::<Runs<false>>(context, product, out, workspace),
        },
    }
    Ok(())
}

/// Whether a product of profile `cpu-bf16` runs on flushed multiply-adds.
fn flushes(context: &Context, product: &Product<'_>, path: Bf16Path) -> bool {
    let native = context.isa() == Isa::Avx512 && has_native_bf16_dot();
    if context.isa() == Isa::Portable || native && path == Bf16Path::Native {
        return false;
    }
    // Few rows are bound by memory, and pairs are half of it.
    !(native && skinny::serves(product))
}

fn run<W: Words>(
    context: &Context,
    product: &Product<'_>,
    mut out: OutView<'_>,
    workspace: &mut [u8],
) {
    let split = Split::of(&Shape::of(product, context.arithmetic()), context.threads());
    // Dots without the instruction for them are emulated by portable code.
    let native = !W::NATIVE || context.isa() == Isa::Avx512 && has_native_bf16_dot();
    let isa = if native { context.isa() } else { Isa::Portable };
    let few_rows = if W::RUNS {
        W::TILES && few_on_tiles::serves(product)
    } else {
        skinny::serves(product) && !W::FLUSHES && isa.serves_few_rows()
    };
    let (way, tasks) = if few_rows {
        (Way::FewRows, split.skinny_ranges())
    } else if isa == Isa::Avx512 && thin::serves::<W>(product) {
        (Way::Thin, thin::tasks(product))
    } else {
        (Way::Packed, split.tasks())
    };
    context.note(isa, W::NAME, way as u8);
    let raw = out.raw();
    let parts = Shared(scratch::align(workspace));
    for thread in 0..context.threads() {
        // SAFETY: the workspace holds one aligned part for each thread.
        let part = unsafe { parts.get().add(thread * split.floats_per_thread()) };
        // SAFETY: a part is longer than its header. Zeros say that it holds no block and
        // that nothing of its thread's range has been taken.
        unsafe { part.write_bytes(0, HEADER) };
    }
    context.for_each(tasks, |thread, task| {
        // SAFETY: the workspace holds one aligned part for each thread.
        let scratch = unsafe { parts.get().add(thread * split.floats_per_thread()) };
        let job = Job::<W>::new(product, raw, split, (parts.get(), scratch), task, way);
        // SAFETY: operands, output and scratch were checked against the shape by
        // `matmul`; tasks write disjoint outputs, threads use their own scratch.
        unsafe { dispatch(isa, job) };
    });
}
