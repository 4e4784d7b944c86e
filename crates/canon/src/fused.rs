//! Scalar code compiled for the processor's fused multiply-add.

/// Runs `body(arguments)`, compiled with the fused multiply-add instruction
/// where the processor has one.
///
/// `f32::mul_add` is a library call in code for the baseline of x86-64. `body`
/// and what is inlined into it use the instruction instead: the same bits, many
/// times faster. Whether it is inlined decides only the speed; to be sure, pass
/// the name of an `#[inline(always)]` function (a closure is inlined when small).
#[inline]
pub fn fused<A, R>(arguments: A, body: impl FnOnce(A) -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: the processor has both features, detected just above.
        return unsafe { with_fma(arguments, body) };
    }
    body(arguments)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn with_fma<A, R>(arguments: A, body: impl FnOnce(A) -> R) -> R {
    body(arguments)
}
