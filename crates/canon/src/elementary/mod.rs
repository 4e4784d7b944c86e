//! Elementary functions defined by IEEE 754 basic operations only.
//!
//! Every function here is a straight line of `+ - * /`, fused multiply-add,
//! integer operations on the bit pattern and selects. There is no table, no
//! data-dependent branch and no call into a mathematics library, so a vector
//! version with the same operations in the same order gives the same bits on
//! every processor. Rounding to an integer is done by adding and subtracting
//! `1.5 * 2^p` (`p` = fraction bits), which rounds half to even.
//!
//! Three rules hold for every function:
//! - a NaN result is *the* quiet NaN `0x7fc0_0000`, whatever the argument's payload;
//! - an operation written `fma(a, b, c)` is one fused multiply-add, and no other
//!   product and sum may be contracted into one;
//! - polynomials are evaluated by Horner's rule, one fused multiply-add per
//!   coefficient, starting from the highest.
//!
//! The functions are inlined always, so that [`fused`](crate::fused()) reaches them.
//!
//! Error bounds are in units in the last place of the nearest `f32`, measured
//! against `f64` over the arguments that the rustdoc of each function names;
//! `tests/elementary.rs` holds them.

mod exp;
mod ln;
mod pow;
mod sigmoid;
mod tanh;
mod trig;

pub use exp::{EXP_OVERFLOW, EXP_UNDERFLOW, exp};
pub use ln::ln;
pub use pow::{pow, powi};
pub use sigmoid::{sigmoid, silu};
pub use tanh::tanh;
pub use trig::{MAX_ANGLE, sin_cos};

/// The one NaN that the elementary functions return.
pub const CANONICAL_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// `1.5 * 2^23`: adding it to an `f32` of magnitude below `2^22` leaves the
/// nearest integer in the low bits of the sum.
const ROUND_F32: f32 = 12_582_912.0;

/// `1.5 * 2^52`: the same for an `f64` of magnitude below `2^51`.
const ROUND_F64: f64 = 6_755_399_441_055_744.0;
