//! One task of a product: a block of columns times a block of rows.

use super::finish::Finish;
use super::operand::Target;
use super::pack::{Packing, pack, panel_width};
use super::pieces::{Piece, Pieces};
use super::tile::Tile;
use super::words::Words;
use super::workspace::{A_PANELS, Split};
use super::{Product, few_on_tiles, skinny, thin, tiles};
use crate::simd::{Kernel, LANES, Vector};

/// The path that a product takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// Panels of both operands are packed.
    Packed,
    /// [`skinny`], or [`few_on_tiles`].
    FewRows,
    /// [`thin`].
    Thin,
}

/// One task.
pub(super) struct Job<'a, W> {
    pub(super) product: &'a Product<'a>,
    pub(super) finish: Finish<'a>,
    pub(super) split: Split,
    /// The thread's own scratch memory.
    pub(super) scratch: *mut f32,
    /// The scratch memory of thread 0; those of the others follow.
    pub(super) parts: *mut f32,
    pub(super) task: usize,
    way: Way,
    words: std::marker::PhantomData<W>,
}

impl<'a, W: Words> Job<'a, W> {
    pub(super) fn new(
        product: &'a Product<'a>,
        out: Target,
        split: Split,
        (parts, scratch): (*mut f32, *mut f32),
        task: usize,
        way: Way,
    ) -> Self {
        let finish = Finish { out, alpha: product.alpha, init: product.init };
        Self { product, finish, split, scratch, parts, task, way, words: std::marker::PhantomData }
    }
}

impl<W: Words> Kernel for Job<'_, W> {
    const BF16_DOT: bool = W::NATIVE;
    const FLUSHES: bool = W::FLUSHES;
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // SAFETY: as `matmul` checked.
        unsafe {
            // Constants first: what cannot be is not compiled.
            if W::TILES && self.way == Way::FewRows {
                few_on_tiles::run::<V, W>(&self);
            } else if V::FEW_ROWS && !W::FLUSHES && !W::RUNS && self.way == Way::FewRows {
                skinny::run::<V, W>(&self);
            } else if V::WIDE && !W::PAIRS && self.way == Way::Thin {
                thin::run::<V, W>(&self);
            } else {
                self.packed::<V>();
            }
        }
    }
}

impl<W: Words> Job<'_, W> {
    #[inline(always)]
    unsafe fn packed<V: Vector>(&self) {
        let split = &self.split;
        let (block, row, rows) = split.task(self.task);
        let col = block * split.col_block;
        let cols = split.col_block.min(self.product.n - col);
        let units: usize = self.product.terms().map(|term| W::units(term.k)).sum();
        if W::TILES {
            // SAFETY: `matmul` asked whether there are tiles.
            unsafe { crate::tiles::configure() };
        }
        let mut from = 0;
        while from < units {
            let to = units.min(from + split.k_block);
            let pieces = Pieces::of::<W>(self.product, from, to);
            // SAFETY: the scratch memory was sized by `split`.
            unsafe {
                self.pack_b::<V>(pieces.as_slice(), to - from, (block, from), (col, cols));
                let ends = (from == 0, to == units);
                let (pieces, units) = (pieces.as_slice(), to - from);
                if W::TILES {
                    self.rows_of_tiles::<V>(pieces, units, (row, rows), (col, cols), ends);
                } else {
                    self.rows::<V>(pieces, units, (row, rows), (col, cols), ends);
                }
            }
            from = to;
        }
        if W::TILES {
            // SAFETY: as above.
            unsafe { crate::tiles::release() };
        }
    }

    /// Packs a block of B, unless the thread's scratch memory holds it already.
    #[inline(always)]
    unsafe fn pack_b<V: Vector>(
        &self,
        pieces: &[Piece],
        units: usize,
        (block, from): (usize, usize),
        (col, cols): (usize, usize),
    ) {
        let width = if V::WIDE { 2 * LANES } else { LANES };
        // SAFETY: as the caller's.
        unsafe {
            // 0 is an empty scratch memory: `matmul` clears it before the first task.
            let held = self.scratch.cast::<[usize; 2]>();
            if held.read_unaligned() == [block + 1, from] {
                return;
            }
            held.write_unaligned([block + 1, from]);
            let to = self.scratch.add(self.split.b_at());
            let mut at = 0;
            for p in pieces {
                let packing = Packing {
                    source: p.b,
                    k: p.k,
                    row: col,
                    rows: cols,
                    available: self.product.n,
                    unit: p.unit,
                    units: p.units,
                    at,
                    width,
                    panel_stride: width * units,
                };
                pack::<V, W>(&packing, to);
                at += p.units;
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<V: Vector>(
        &self,
        pieces: &[Piece],
        units: usize,
        (row, rows): (usize, usize),
        (col, cols): (usize, usize),
        ends: (bool, bool),
    ) {
        let split = &self.split;
        let wide = if V::WIDE { 2 * LANES } else { LANES };
        // SAFETY: as the caller's.
        unsafe {
            let (a, b) = (self.scratch.add(split.a_at()), self.scratch.add(split.b_at()));
            let mut state = self.scratch.add(split.state_at());
            let mut done = 0;
            while done < rows {
                // Full panels, then what is left in the lowest that holds it.
                let full = ((rows - done) / V::TILE_ROWS).min(A_PANELS);
                let end = if full > 0 { done + full * V::TILE_ROWS } else { rows };
                let height = height_for::<V>(end - done);
                let a_stride = height * units + LANES;
                self.pack_a::<V>(pieces, (row + done, end - done), (height, a_stride), a);
                let mut left = a;
                while done < end {
                    let i = (row + done, height.min(end - done));
                    self.tiles::<V>(
                        pieces,
                        units,
                        (left, height),
                        (b, wide),
                        i,
                        (col, cols),
                        &mut state,
                        ends,
                    );
                    left = left.add(a_stride);
                    done += i.1;
                }
            }
        }
    }

    /// A panel of A times every panel of the block of B.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    pub(super) unsafe fn tiles<V: Vector>(
        &self,
        pieces: &[Piece],
        units: usize,
        (left, height): (*const f32, usize),
        (mut right, wide): (*const f32, usize),
        i: (usize, usize),
        (col, cols): (usize, usize),
        state: &mut *mut f32,
        (first, last): (bool, bool),
    ) {
        let mut c = 0;
        while c < cols {
            let width = panel_width(wide, cols - c);
            let size = height * width;
            let j = (col + c, width.min(cols - c));
            // SAFETY: as the caller's.
            unsafe {
                if first {
                    self.finish.preload::<V>(*state, width, i, j);
                }
                if W::TILES {
                    let panels = (left, right);
                    tiles::run::<V>((height, width), pieces, units, panels, *state);
                } else {
                    run_tile::<V, W>(height, width == 2 * LANES, pieces, left, right, *state);
                }
                if last {
                    self.finish.store::<V>(state.add(size), width, i, j);
                }
                if self.split.is_cut() {
                    *state = state.add(self.split.slots() * size);
                }
                right = right.add(width * units);
            }
            c += width;
        }
    }

    #[inline(always)]
    unsafe fn pack_a<V: Vector>(
        &self,
        pieces: &[Piece],
        (row, rows): (usize, usize),
        (width, panel_stride): (usize, usize),
        to: *mut f32,
    ) {
        let mut at = 0;
        for p in pieces {
            let packing = Packing {
                source: p.a,
                k: p.k,
                row,
                rows,
                available: self.product.m,
                unit: p.unit,
                units: p.units,
                at,
                width,
                panel_stride,
            };
            // SAFETY: as the caller's.
            unsafe { pack::<V, W>(&packing, to) };
            at += p.units;
        }
    }
}

/// The lowest tile that holds `rows` rows, or the highest.
#[inline(always)]
fn height_for<V: Vector>(rows: usize) -> usize {
    let holds = V::TILE_HEIGHTS.iter().rev().find(|height| **height >= rows);
    holds.copied().unwrap_or(V::TILE_ROWS)
}

/// The tile of `height` rows.
#[inline(always)]
unsafe fn run_tile<V: Vector, W: Words>(
    height: usize,
    wide: bool,
    pieces: &[Piece],
    a: *const f32,
    b: *const f32,
    state: *mut f32,
) {
    macro_rules! heights {
        ($($h:literal)*) => {
            $(
                if const { is_compiled($h, V::TILE_HEIGHTS) } && height == $h {
                    // SAFETY: as the caller's.
                    unsafe {
                        if V::WIDE && wide {
                            V::outlined(Tile::<W, $h, 2>::new(pieces, a, b, state));
                        } else {
                            V::outlined(Tile::<W, $h, 1>::new(pieces, a, b, state));
                        }
                    }
                    return;
                }
            )*
        };
    }
    heights!(14 8 6 4 2);
    unreachable!("a tile of {height} rows");
}

const fn is_compiled(height: usize, heights: &[usize]) -> bool {
    let mut i = 0;
    while i < heights.len() {
        if heights[i] == height {
            return true;
        }
        i += 1;
    }
    false
}
