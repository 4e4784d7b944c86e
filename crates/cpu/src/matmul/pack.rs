//! Packing: rows of an operand into panels of words, `[unit][row]`.

// Constant indices keep register tiles in registers.
#![allow(clippy::needless_range_loop)]

use super::operand::Source;
use super::words::Words;
use crate::simd::{Kernel, LANES, Vector};

/// Units that are packed for all panels before the next ones, so that a stretch of
/// memory is visited once.
const STRIP: usize = 64;

/// A stretch of an operand and where its words go.
#[derive(Clone, Copy)]
pub(super) struct Packing {
    pub(super) source: Source,
    /// `k` of the term: a pair that reaches past it is padded with zero.
    pub(super) k: usize,
    /// First row.
    pub(super) row: usize,
    /// Rows; lanes beyond them hold whatever is convenient.
    pub(super) rows: usize,
    /// Rows that the source has: whole vectors of them are read where they exist.
    pub(super) available: usize,
    /// First unit of the term.
    pub(super) unit: usize,
    pub(super) units: usize,
    /// Unit of the panel where they go.
    pub(super) at: usize,
    /// Rows of a panel; the last panel of a block may be half as wide.
    pub(super) width: usize,
    /// Words from a panel to the next.
    pub(super) panel_stride: usize,
}

/// Width of the panel whose first of `left` rows is its first: `width`, or 16 where
/// that holds them all.
#[inline(always)]
pub(super) fn panel_width(width: usize, left: usize) -> usize {
    if width == 2 * LANES && left <= LANES { LANES } else { width }
}

/// Packs.
///
/// # Safety
/// The instruction set of `V` is enabled, the source holds the rows and units, and
/// `to` has room for the panels and one vector more.
pub(super) unsafe fn pack<V: Vector, W: Words>(packing: &Packing, to: *mut f32) {
    // SAFETY: as the caller's.
    unsafe { V::outlined(Pack::<W> { packing, to, words: std::marker::PhantomData }) }
}

struct Pack<'a, W> {
    packing: &'a Packing,
    to: *mut f32,
    words: std::marker::PhantomData<W>,
}

impl<W: Words> Kernel for Pack<'_, W> {
    const BF16_DOT: bool = W::NATIVE;
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        // A copy that no store through `to` can reach, so that it stays in registers.
        let packing = *self.packing;
        // SAFETY: as the caller's.
        unsafe { pack_strips::<V, W>(&packing, self.to) }
    }
}

#[inline(always)]
unsafe fn pack_strips<V: Vector, W: Words>(p: &Packing, to: *mut f32) {
    let mut strip = 0;
    while strip < p.units {
        let units = STRIP.min(p.units - strip);
        let mut first = 0;
        let mut panel = to;
        while first < p.rows {
            let width = panel_width(p.width, p.rows - first);
            let rows = width.min(p.rows - first);
            let mut group = 0;
            while group < width {
                let (row, unit) = (p.row + first + group, p.unit + strip);
                let lanes = if row + LANES <= p.available {
                    LANES
                } else {
                    LANES.min(rows.saturating_sub(group))
                };
                let to = panel.wrapping_add((p.at + strip) * width + group);
                // SAFETY: as the caller's.
                unsafe {
                    if p.source.col == 1 {
                        pack_along_k::<V, W>(p, row, lanes, unit, units, to, width);
                    } else {
                        pack_along_rows::<V, W>(p, row, lanes, unit, units, to, width);
                    }
                }
                group += LANES;
            }
            first += width;
            panel = panel.wrapping_add(p.panel_stride);
        }
        strip += units;
    }
}

/// Rows contiguous in memory: each unit is a load and a store.
#[inline(always)]
unsafe fn pack_along_rows<V: Vector, W: Words>(
    p: &Packing,
    row: usize,
    lanes: usize,
    unit: usize,
    units: usize,
    to: *mut f32,
    width: usize,
) {
    // SAFETY: `lanes` rows from `row` exist at each k below `p.k`.
    unsafe {
        if W::PAIRS {
            for u in 0..units {
                let word = pair_at::<V, W>(p, row, lanes, 2 * (unit + u));
                word.store(to.add(u * width));
            }
        } else if p.source.bf16 || W::SWAPS {
            for u in 0..units {
                let k = W::k_of(unit + u);
                let lane =
                    if k < p.k { load_lanes::<V>(&p.source, row, k, lanes) } else { V::zero() };
                rounded::<V, W>(&p.source, lane).store(to.add(u * width));
            }
        } else {
            let (from, stride) = (p.source.f32_at(row, unit), p.source.col);
            copy_lanes::<V>(from, stride, units, lanes, to, width);
        }
    }
}

/// The words of `lanes` rows from `row` on at `k` and `k + 1`, zero from `p.k` on.
///
/// # Safety
/// The instruction set of `V` is enabled and the rows exist at each k below `p.k`.
#[inline(always)]
pub(super) unsafe fn pair_at<V: Vector, W: Words>(
    p: &Packing,
    row: usize,
    lanes: usize,
    k: usize,
) -> V {
    // SAFETY: as the caller's.
    unsafe {
        let lo = if k < p.k { load_lanes(&p.source, row, k, lanes) } else { V::zero() };
        let hi = if k + 1 < p.k { load_lanes(&p.source, row, k + 1, lanes) } else { V::zero() };
        words_of_pairs::<V, W>(lo, hi)
    }
}

/// [`Vector::pair_words`] in the instructions of `W`.
#[inline(always)]
unsafe fn words_of_pairs<V: Vector, W: Words>(lo: V, hi: V) -> V {
    // SAFETY: as the caller's.
    unsafe { if W::NATIVE { V::pair_words_native(lo, hi) } else { V::pair_words(lo, hi) } }
}

/// [`Vector::pack_words`] in the instructions of `W`.
///
/// # Safety
/// The instruction set of `V` is enabled, and with `W::NATIVE` the bf16 instructions.
#[inline(always)]
pub(super) unsafe fn packed_words<V: Vector, W: Words>(first: V, second: V) -> V {
    // SAFETY: as the caller's.
    unsafe {
        if W::NATIVE { V::pack_words_native(first, second) } else { V::pack_words(first, second) }
    }
}

/// `units` vectors of `lanes` lanes, `stride` apart, to places `width` apart.
#[inline(always)]
unsafe fn copy_lanes<V: Vector>(
    mut from: *const f32,
    stride: usize,
    units: usize,
    lanes: usize,
    mut to: *mut f32,
    width: usize,
) {
    // SAFETY: as the caller's.
    unsafe {
        if lanes == LANES {
            for _ in 0..units {
                V::load(from).store(to);
                (from, to) = (from.wrapping_add(stride), to.wrapping_add(width));
            }
        } else {
            for _ in 0..units {
                V::load_first(from, lanes).store(to);
                (from, to) = (from.wrapping_add(stride), to.wrapping_add(width));
            }
        }
    }
}

#[inline(always)]
unsafe fn load_lanes<V: Vector>(source: &Source, row: usize, k: usize, lanes: usize) -> V {
    // SAFETY: as the caller's.
    unsafe {
        match (source.bf16, lanes == LANES) {
            (false, true) => V::load(source.f32_at(row, k)),
            (false, false) => V::load_first(source.f32_at(row, k), lanes),
            (true, true) => V::load_bf16(source.bf16_at(row, k)),
            (true, false) => V::load_bf16_first(source.bf16_at(row, k), lanes),
        }
    }
}

/// `k` contiguous in memory: blocks of 16 rows x 16 words are transposed.
#[inline(always)]
unsafe fn pack_along_k<V: Vector, W: Words>(
    p: &Packing,
    row: usize,
    lanes: usize,
    unit: usize,
    units: usize,
    to: *mut f32,
    width: usize,
) {
    let whole = block_units::<W>(&p.source);
    let doubled = doubled::<W>(&p.source);
    let mut u = 0;
    while u < units {
        let step = whole.min(units - u);
        // SAFETY: `lanes` rows hold the units; `to` has room for one vector a unit.
        unsafe {
            let to = to.add(u * width);
            if lanes == LANES && step == whole && is_whole::<W>(p.k, unit + u) {
                let block = load_whole::<V, W>(&p.source, row, unit + u);
                if doubled {
                    for i in 0..LANES {
                        // Ascending: a store may reach into the units after it.
                        let (even, odd) = (block[i].shl_bits::<16>(), block[i].high_half());
                        let (one, two) = if W::SWAPS { (odd, even) } else { (even, odd) };
                        one.store(to.add(2 * i * width));
                        two.store(to.add((2 * i + 1) * width));
                    }
                } else {
                    for i in 0..LANES {
                        let unit = rounded::<V, W>(&p.source, block[W::k_of(i)]);
                        unit.store(to.add(i * width));
                    }
                }
            } else {
                let block = load_part::<V, W>(&p.source, (row, lanes), (unit + u, step), p.k);
                let mut i = 0;
                while i < step {
                    let unit = unit_of(&block, W::k_of(i), doubled);
                    rounded::<V, W>(&p.source, unit).store(to.add(i * width));
                    i += 1;
                }
            }
        }
        u += step;
    }
}

/// A word of the source as the arithmetic reads it. A bf16 is left as it is: where it
/// is subnormal, [`FlushMode`](crate::simd::FlushMode) reads it as zero.
#[inline(always)]
unsafe fn rounded<V: Vector, W: Words>(source: &Source, word: V) -> V {
    // SAFETY: as the caller's.
    if W::SWAPS && !source.bf16 { unsafe { word.round_operand() } } else { word }
}

/// Whether two units share a word until they are transposed: bf16 in f32
/// arithmetic.
#[inline(always)]
pub(super) fn doubled<W: Words>(source: &Source) -> bool {
    source.bf16 && !W::PAIRS
}

/// Units of a block of sixteen words.
#[inline(always)]
pub(super) fn block_units<W: Words>(source: &Source) -> usize {
    if doubled::<W>(source) { 2 * LANES } else { LANES }
}

/// Whether the sixteen words from `unit` on lack no half.
#[inline(always)]
pub(super) fn is_whole<W: Words>(k: usize, unit: usize) -> bool {
    match (W::PAIRS, W::SWAPS) {
        (true, _) => 2 * (unit + LANES) <= k,
        // The last pair may lack its second half; a block is at most 32 units.
        (false, true) => unit + 2 * LANES <= k,
        (false, false) => true,
    }
}

/// A block of sixteen rows, `k` contiguous, transposed: lane `i` of word `u` is row
/// `row + i`.
///
/// # Safety
/// The instruction set of `V` is enabled and the rows hold the whole block.
#[inline(always)]
pub(super) unsafe fn load_whole<V: Vector, W: Words>(
    source: &Source,
    row: usize,
    unit: usize,
) -> [V; LANES] {
    // Written out, so that the block stays in registers.
    macro_rules! rows {
        ($load:ident, $p:ident, $s:ident) => {
            [
                $load!($p, $s, 0),
                $load!($p, $s, 1),
                $load!($p, $s, 2),
                $load!($p, $s, 3),
                $load!($p, $s, 4),
                $load!($p, $s, 5),
                $load!($p, $s, 6),
                $load!($p, $s, 7),
                $load!($p, $s, 8),
                $load!($p, $s, 9),
                $load!($p, $s, 10),
                $load!($p, $s, 11),
                $load!($p, $s, 12),
                $load!($p, $s, 13),
                $load!($p, $s, 14),
                $load!($p, $s, 15),
            ]
        };
    }
    macro_rules! words {
        ($p:ident, $s:ident, $i:literal) => {
            V::load($p.wrapping_add($i * $s).cast())
        };
    }
    macro_rules! rounded {
        ($p:ident, $s:ident, $i:literal) => {{
            let p = $p.wrapping_add($i * $s).cast::<f32>();
            packed_words::<V, W>(V::load(p), V::load(p.wrapping_add(LANES)))
        }};
    }
    let (p, s) = source.bytes_at(row, if W::PAIRS { 2 * unit } else { unit });
    // SAFETY: as the caller's. A word is four bytes of either type.
    unsafe {
        let mut block =
            if W::PAIRS && !source.bf16 { rows!(rounded, p, s) } else { rows!(words, p, s) };
        V::transpose(&mut block);
        block
    }
}

/// The same at an edge: `units` units of `lanes` rows, zeros beyond.
///
/// # Safety
/// The instruction set of `V` is enabled and the rows hold the units.
#[inline(always)]
pub(super) unsafe fn load_part<V: Vector, W: Words>(
    source: &Source,
    (row, lanes): (usize, usize),
    (unit, units): (usize, usize),
    k: usize,
) -> [V; LANES] {
    // SAFETY: as the caller's.
    unsafe {
        let mut block = [V::zero(); LANES];
        let mut i = 0;
        while i < lanes {
            block[i] = load_words::<V, W>(source, row + i, unit, units, k);
            i += 1;
        }
        V::transpose(&mut block);
        block
    }
}

/// Unit `i` of a transposed block.
///
/// # Safety
/// The instruction set of `V` is enabled.
#[inline(always)]
pub(super) unsafe fn unit_of<V: Vector>(block: &[V; LANES], i: usize, doubled: bool) -> V {
    // SAFETY: as the caller's.
    unsafe {
        match (doubled, i % 2) {
            (false, _) => block[i],
            (true, 0) => block[i / 2].shl_bits::<16>(),
            (true, _) => block[i / 2].high_half(),
        }
    }
}

/// The words of `step` units of one row, zeros beyond. bf16 in f32 arithmetic is
/// returned as raw pairs, 32 units at a time.
///
/// # Safety
/// The instruction set of `V` is enabled and the row holds the units (the last pair
/// of a term may lack its second half).
#[inline(always)]
pub(super) unsafe fn load_words<V: Vector, W: Words>(
    source: &Source,
    row: usize,
    unit: usize,
    step: usize,
    k: usize,
) -> V {
    // SAFETY: as the caller's.
    unsafe {
        if !W::PAIRS && !source.bf16 {
            let p = source.f32_at(row, unit);
            return V::load_first(p, step.min(k - unit));
        }
        let (first, elements) = if W::PAIRS {
            // A term is padded to whole pairs or runs.
            (2 * unit, (2 * step).min(k.saturating_sub(2 * unit)))
        } else {
            (unit, step.min(k - unit))
        };
        if source.bf16 {
            let p = source.bf16_at(row, first);
            if elements == 2 * LANES {
                return V::load(p.cast());
            }
            let mut halves = [0_u16; 2 * LANES];
            p.copy_to_nonoverlapping(halves.as_mut_ptr(), elements);
            return V::load(halves.as_ptr().cast());
        }
        let p = source.f32_at(row, first);
        if elements == 2 * LANES {
            return packed_words::<V, W>(V::load(p), V::load(p.add(LANES)));
        }
        let lo = V::load_first(p, elements.min(LANES));
        let hi = V::load_first(p.wrapping_add(LANES), elements.saturating_sub(LANES));
        packed_words::<V, W>(lo, hi)
    }
}
