//! Subnormals as zeros, for the length of a chain.
//!
//! `vdpbf16ps` reads subnormals as zeros and flushes tiny results, whatever the flags
//! of the thread say; a fused multiply-add does the same where the flags FTZ and DAZ
//! are set. A chain of `cpu-bf16` may therefore run on plain multiply-adds between
//! [`FlushMode::set`] and [`FlushMode::restore`].

/// The flags as they were.
pub(crate) struct FlushMode {
    #[cfg(target_arch = "x86_64")]
    saved: u32,
}

/// Flush to zero (bit 15) and denormals are zeros (bit 6) of MXCSR.
#[cfg(target_arch = "x86_64")]
const FTZ_DAZ: u32 = 0x8040;

impl FlushMode {
    /// Sets the flags of this thread.
    ///
    /// # Safety
    /// The compiler takes the flags to be clear and orders arithmetic against this
    /// call through memory only: until [`FlushMode::restore`], every operation whose
    /// result matters must take an operand loaded after `set` and must be stored (or
    /// lead to a value that is stored) before `restore`. Nothing may unwind between.
    #[inline(always)]
    pub(crate) unsafe fn set() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            let mut saved = 0_u32;
            // SAFETY: `saved` is writable. Neither `nomem` nor `readonly`: loads and
            // stores stay on their side.
            unsafe {
                std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut saved, options(nostack, preserves_flags));
                load(saved | FTZ_DAZ);
            }
            Self { saved }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Self {}
    }

    /// Brings the flags back.
    ///
    /// # Safety
    /// On the thread of [`FlushMode::set`], and as said there.
    #[inline(always)]
    pub(crate) unsafe fn restore(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the value was read from the register.
        unsafe {
            load(self.saved);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load(value: u32) {
    // SAFETY: `value` is readable and holds only known bits.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack, preserves_flags));
    }
}
