//! Matrix tiles (AMX): whether this process may use them, and the instructions.
//!
//! A tile register holds 16 rows of 64 bytes. [`multiply`] adds to a 16 x 16 tile of
//! f32 sums the products of a left tile (16 rows, each a run of 32 bf16 values along
//! `k`) and a right tile (16 pairs of `k`, each 16 columns of two bf16 values): for
//! each sum one [`canon::tile_dot::add_run`]. The instructions have no stable
//! intrinsics; they are written as assembly.

/// Rows, and words of a row, of a tile.
pub(crate) const SIDE: usize = 16;
/// Words of a tile.
pub(crate) const WORDS: usize = SIDE * SIDE;

/// Whether the processor has bf16 tiles and the system lets this process use them.
/// Profile `cpu-bf16-tiles` runs on multiply-adds otherwise, with the same bits.
///
/// The system is asked once; its permission is the whole process's.
#[must_use]
pub fn has_native_tiles() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        static USABLE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *USABLE.get_or_init(|| {
            crate::isa::has_native_bf16_dot() && permission::of_processor() && permission::ask()
        })
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    {
        false
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod permission {
    use std::arch::asm;
    use std::arch::x86_64::{__cpuid, __cpuid_count};

    /// Leaf 7, EDX: `amx-bf16` and `amx-tile`.
    const AMX_BF16_AND_TILE: u32 = 1 << 22 | 1 << 24;
    /// `arch_prctl`, to ask for a part of the processor's state that is off by default.
    const SYS_ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    /// The tiles' data.
    const XFEATURE_XTILEDATA: u64 = 18;

    pub(super) fn of_processor() -> bool {
        __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & AMX_BF16_AND_TILE == AMX_BF16_AND_TILE
    }

    /// Refused by systems that do not know tiles, or forbid them.
    pub(super) fn ask() -> bool {
        let mut result = SYS_ARCH_PRCTL;
        // SAFETY: the call reads two numbers and touches no memory of ours.
        unsafe {
            asm!(
                "syscall",
                inlateout("rax") result,
                in("rdi") ARCH_REQ_XCOMP_PERM,
                in("rsi") XFEATURE_XTILEDATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }
}

/// Up to two by two tiles of sums and what they are summed over.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    /// Left tiles, a run after the other.
    pub(crate) left: *const f32,
    /// Bytes from a row of a left tile to the next, and from a run to the next.
    pub(crate) left_row: usize,
    pub(crate) left_run: usize,
    /// Bytes from the upper left tile to the lower one.
    pub(crate) left_next: usize,
    /// Right tiles, a run after the other; the second lies beside the first.
    pub(crate) right: *const f32,
    /// Bytes from a row of a right tile to the next.
    pub(crate) right_row: usize,
    pub(crate) runs: usize,
    /// Where the sums start from; nothing for `+0`.
    pub(crate) from: Option<*const f32>,
    /// Where they go; the second tile of a row beside the first.
    pub(crate) to: *mut f32,
    /// Bytes from a row of sums to the next, of both.
    pub(crate) sums_row: usize,
}

/// Shapes every tile register of this thread as a whole tile.
///
/// # Safety
/// [`has_native_tiles`].
#[inline(always)]
pub(crate) unsafe fn configure() {
    #[cfg(target_arch = "x86_64")]
    {
        /// Palette 1; bytes of a row as 16-bit numbers from byte 16 on, rows from byte 48 on.
        #[repr(C, align(64))]
        struct Shapes([u8; 64]);
        const SHAPES: Shapes = {
            let mut bytes = [0; 64];
            bytes[0] = 1;
            let mut tile = 0;
            while tile < 8 {
                bytes[16 + 2 * tile] = 64;
                bytes[48 + tile] = SIDE as u8;
                tile += 1;
            }
            Shapes(bytes)
        };
        let shapes = SHAPES;
        // SAFETY: the processor has tiles; 64 bytes are readable.
        unsafe {
            std::arch::asm!(
                "ldtilecfg [{}]", in(reg) &raw const shapes,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
    }
}

/// Gives the tile registers back: a switch of threads need not save them.
///
/// # Safety
/// [`has_native_tiles`].
#[inline(always)]
pub(crate) unsafe fn release() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the processor has tiles.
    unsafe {
        std::arch::asm!("tilerelease", options(nostack, nomem));
    }
}

/// Multiplies `ROWS` left tiles, one above the other, with `COLUMNS` right ones side by
/// side.
///
/// # Safety
/// [`configure`] was called on this thread; everything that the block points to lies
/// there.
#[inline(always)]
pub(crate) unsafe fn multiply<const ROWS: usize, const COLUMNS: usize>(block: &Block) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller's.
    unsafe {
        match (ROWS, COLUMNS) {
            (2, 2) => x86::two_by_two(block),
            (2, 1) => x86::two_by_one(block),
            (1, 2) => x86::one_by_two(block),
            (1, 1) => x86::one_by_one(block),
            _ => unreachable!("{ROWS} by {COLUMNS} tiles"),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{} runs: this processor has no tiles", block.runs);
}

/// [`multiply`] of one left and one right tile, where the left ones are read from memory
/// that is far: as many bytes, in the order of their addresses from `ahead` on, are asked
/// for as are read.
///
/// # Safety
/// As [`multiply`]; nothing need lie at `ahead`. Rows of right tiles and of sums are 64
/// bytes apart, runs of left tiles too.
#[inline(always)]
pub(crate) unsafe fn stream(block: &Block, ahead: *const u8) {
    debug_assert!(block.left_run == 64 && block.right_row == 64 && block.sums_row == 64);
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as the caller's.
    unsafe {
        x86::stream(block, ahead);
    }
    #[cfg(not(target_arch = "x86_64"))]
    unreachable!("{ahead:p}: this processor has no tiles, {} runs", block.runs);
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Block, SIDE};

    #[inline(always)]
    pub(super) unsafe fn stream(block: &Block, ahead: *const u8) {
        // SAFETY: as the caller's.
        unsafe {
            std::arch::asm!(
                "tilezero tmm0",
                "test {from}, {from}",
                "jz 4f",
                "tileloadd tmm0, [{from} + {line}]",
                "jmp 4f",
                "3:",
                "tileloadd tmm4, [{left} + {left_row}]",
                "tileloadd tmm6, [{right} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "prefetcht0 [{ahead}]", "prefetcht0 [{ahead} + 64]",
                "prefetcht0 [{ahead} + 128]", "prefetcht0 [{ahead} + 192]",
                "prefetcht0 [{ahead} + 256]", "prefetcht0 [{ahead} + 320]",
                "prefetcht0 [{ahead} + 384]", "prefetcht0 [{ahead} + 448]",
                "prefetcht0 [{ahead} + 512]", "prefetcht0 [{ahead} + 576]",
                "prefetcht0 [{ahead} + 640]", "prefetcht0 [{ahead} + 704]",
                "prefetcht0 [{ahead} + 768]", "prefetcht0 [{ahead} + 832]",
                "prefetcht0 [{ahead} + 896]", "prefetcht0 [{ahead} + 960]",
                "add {left}, {line}",
                "add {right}, 1024",
                "add {ahead}, 1024",
                "dec {runs}",
                "4:",
                "test {runs}, {runs}",
                "jnz 3b",
                "tilestored [{to} + {line}], tmm0",
                from = in(reg) block.from.map_or(0, |from| from.addr()),
                to = in(reg) block.to,
                line = in(reg) 64_usize,
                left = inout(reg) block.left => _,
                left_row = in(reg) block.left_row,
                right = inout(reg) block.right => _,
                ahead = inout(reg) ahead => _,
                runs = inout(reg) block.runs => _,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack),
            );
        }
    }

    /// A kernel: sums in tiles 0 to 3, left ones in 4 and 5, right ones in 6 and 7. Its
    /// lines for one tile of sums each, and those of a run.
    macro_rules! kernel {
        ($name:ident, zero: [$($zero:literal)*], load: [$($load:literal)*], run: [$($run:literal)*],
         store: [$($store:literal)*]) => {
            #[inline(always)]
            pub(super) unsafe fn $name(block: &Block) {
                let from = block.from.map_or(0, |from| from.addr());
                // SAFETY: as the caller's.
                unsafe {
                    std::arch::asm!(
                        "test {from}, {from}",
                        "jnz 2f",
                        $($zero,)*
                        "jmp 4f",
                        "2:",
                        $($load,)*
                        "jmp 4f",
                        "3:",
                        $($run,)*
                        "add {left}, {left_run}",
                        "add {low}, {left_run}",
                        "add {right}, {right_run}",
                        "dec {runs}",
                        "4:",
                        "test {runs}, {runs}",
                        "jnz 3b",
                        $($store,)*
                        from = inout(reg) from => _,
                        to = in(reg) block.to,
                        sums = in(reg) block.sums_row,
                        left = inout(reg) block.left => _,
                        low = inout(reg) block.left.wrapping_byte_add(block.left_next) => _,
                        left_row = in(reg) block.left_row,
                        left_run = in(reg) block.left_run,
                        right = inout(reg) block.right => _,
                        right_row = in(reg) block.right_row,
                        right_run = in(reg) SIDE * block.right_row,
                        runs = inout(reg) block.runs => _,
                        below = in(reg) SIDE * block.sums_row,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                        out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack),
                    );
                }
            }
        };
    }

    kernel!(two_by_two,
        zero: ["tilezero tmm0" "tilezero tmm1" "tilezero tmm2" "tilezero tmm3"],
        load: ["tileloadd tmm0, [{from} + {sums}]" "tileloadd tmm1, [{from} + {sums} + 64]"
            "add {from}, {below}"
            "tileloadd tmm2, [{from} + {sums}]" "tileloadd tmm3, [{from} + {sums} + 64]"],
        run: ["tileloadd tmm6, [{right} + {right_row}]" "tileloadd tmm4, [{left} + {left_row}]"
            "tdpbf16ps tmm0, tmm4, tmm6"
            "tileloadd tmm7, [{right} + {right_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"
            "tileloadd tmm5, [{low} + {left_row}]" "tdpbf16ps tmm2, tmm5, tmm6"
            "tdpbf16ps tmm3, tmm5, tmm7"],
        store: ["tilestored [{to} + {sums}], tmm0" "tilestored [{to} + {sums} + 64], tmm1"
            "lea {from}, [{to} + {below}]"
            "tilestored [{from} + {sums}], tmm2" "tilestored [{from} + {sums} + 64], tmm3"]);

    kernel!(two_by_one,
        zero: ["tilezero tmm0" "tilezero tmm2"],
        load: ["tileloadd tmm0, [{from} + {sums}]" "add {from}, {below}"
            "tileloadd tmm2, [{from} + {sums}]"],
        run: ["tileloadd tmm6, [{right} + {right_row}]" "tileloadd tmm4, [{left} + {left_row}]"
            "tdpbf16ps tmm0, tmm4, tmm6"
            "tileloadd tmm5, [{low} + {left_row}]" "tdpbf16ps tmm2, tmm5, tmm6"],
        store: ["tilestored [{to} + {sums}], tmm0" "lea {from}, [{to} + {below}]"
            "tilestored [{from} + {sums}], tmm2"]);

    kernel!(one_by_two,
        zero: ["tilezero tmm0" "tilezero tmm1"],
        load: ["tileloadd tmm0, [{from} + {sums}]" "tileloadd tmm1, [{from} + {sums} + 64]"],
        run: ["tileloadd tmm6, [{right} + {right_row}]" "tileloadd tmm4, [{left} + {left_row}]"
            "tdpbf16ps tmm0, tmm4, tmm6"
            "tileloadd tmm7, [{right} + {right_row} + 64]" "tdpbf16ps tmm1, tmm4, tmm7"],
        store: ["tilestored [{to} + {sums}], tmm0" "tilestored [{to} + {sums} + 64], tmm1"
            "lea {from}, [{to} + {below}]"]);

    kernel!(one_by_one,
        zero: ["tilezero tmm0"],
        load: ["tileloadd tmm0, [{from} + {sums}]"],
        run: ["tileloadd tmm6, [{right} + {right_row}]" "tileloadd tmm4, [{left} + {left_row}]"
            "tdpbf16ps tmm0, tmm4, tmm6"],
        store: ["tilestored [{to} + {sums}], tmm0" "lea {from}, [{to} + {below}]"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use canon::rounding::bf16_to_f32;
    use canon::tile_dot::{RUN, add_run};

    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }

        /// A bf16 of a kind that shows one part of the rule.
        fn bf16(&mut self, kind: usize) -> u16 {
            let x = self.next();
            let of_exponent = |low: u64, count: u64| {
                (x as u16 & 0x807f) | ((low + (x >> 20) % count) << 7) as u16
            };
            match kind {
                // Everything, NaN and infinities included.
                0 => x as u16,
                // Sums that round.
                1 => of_exponent(123, 8),
                // Products around the least normal number.
                2 => of_exponent(57, 12),
                3 => of_exponent(61, 3),
                // Subnormals among normal numbers.
                4 => of_exponent(0, 130),
                // Overflow.
                5 => of_exponent(189, 4),
                // Cancellation.
                _ => [0, 0x8000, 0x3f80, 0xbf80, 0x0080, 0x8080, 0x4b80, 0xcb80]
                    [(x >> 9) as usize % 8],
            }
        }

        fn sum(&mut self, kind: usize) -> f32 {
            let bits = self.next() as u32;
            match kind {
                0 => 0.0,
                1 => f32::from_bits(bits),
                // Subnormals and the least normal numbers.
                2 => f32::from_bits(bits & 0x80ff_ffff),
                _ => (bits % 2000) as f32 * 0.01 - 10.0,
            }
        }
    }

    /// The experiment itself: the instruction against the canon's rule.
    #[test]
    fn equals_the_instruction() {
        if !has_native_tiles() {
            println!("skipped: equals_the_instruction because this processor has no bf16 tiles");
            return;
        }
        let mut random = Random(0x9E37_79B9_7F4A_7C15);
        // SAFETY: tiles are there.
        unsafe { configure() };
        for round in 0..2_800 {
            let kind = round % 7;
            let mut left = [0_u16; 2 * WORDS];
            let mut right = [0_u16; 2 * WORDS];
            left.fill_with(|| random.bf16(kind));
            right.fill_with(|| random.bf16(kind));
            let mut sums = [0.0; WORDS];
            sums.fill_with(|| random.sum(round / 7 % 4));
            let before = sums;
            let block = Block {
                left: left.as_ptr().cast(),
                left_row: 64,
                left_run: 0,
                left_next: 0,
                right: right.as_ptr().cast(),
                right_row: 64,
                runs: 1,
                from: Some(sums.as_ptr()),
                to: sums.as_mut_ptr(),
                sums_row: 64,
            };
            // SAFETY: whole tiles lie at each place.
            unsafe { multiply::<1, 1>(&block) };
            for (at, (found, before)) in sums.iter().zip(before).enumerate() {
                let (i, j) = (at / SIDE, at % SIDE);
                let expected = add_run(before, RUN, |k| {
                    let b = right[k / 2 * 2 * SIDE + 2 * j + k % 2];
                    (bf16_to_f32(left[i * RUN + k]), bf16_to_f32(b))
                });
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "kind {kind}: {before:e} becomes {found:e}, the rule says {expected:e}"
                );
            }
        }
        // SAFETY: tiles are there.
        unsafe { release() };
    }
}
