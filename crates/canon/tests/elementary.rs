//! Measured bounds, special values and golden bits of the elementary functions.

use canon::elementary::{CANONICAL_NAN, EXP_OVERFLOW, EXP_UNDERFLOW, MAX_ANGLE, pow, powi};
use canon::{exp, ln, sigmoid, silu, sin_cos, tanh};

/// A prime, so that the sampled bit patterns share no structure.
const SAMPLE: usize = 997;

/// Distance of `got` from `want` in units of the last place that an `f32` of the
/// magnitude of `want` has.
fn ulps(got: f32, want: f64) -> f64 {
    let magnitude = want.abs().max(f64::from(f32::MIN_POSITIVE));
    let binade = f64::from_bits(magnitude.to_bits() & 0x7ff0_0000_0000_0000);
    (f64::from(got) - want).abs() / (binade * f64::from(f32::EPSILON))
}

/// Fails unless `f` is within `bound` ulps of `g` at every `step`-th bit pattern
/// that `domain` admits.
fn bounded(
    name: &str,
    step: usize,
    bound: f64,
    domain: impl Fn(f32) -> bool,
    f: impl Fn(f32) -> f32,
    g: impl Fn(f64) -> f64,
) {
    let (mut worst, mut at, mut tried) = (0.0, 0.0, 0u64);
    for bits in (0..=u32::MAX).step_by(step) {
        let x = f32::from_bits(bits);
        if domain(x) {
            tried += 1;
            let e = ulps(f(x), g(f64::from(x)));
            assert!(!e.is_nan(), "{name}({x:e}) = {:e}", f(x));
            if e > worst {
                (worst, at) = (e, x);
            }
        }
    }
    println!("{name}: {worst:.4} ulp at {at:e}, {tried} arguments");
    assert!(tried > 1000, "{name}: only {tried} arguments");
    assert!(worst <= bound, "{name}: {worst} ulp at {at:e}");
}

fn all_bounded(step: usize) {
    let finite = |x: f32| x.is_finite();
    let exps = |x: f32| (EXP_UNDERFLOW..=EXP_OVERFLOW).contains(&x);
    bounded("exp", step, 1.02, exps, exp, f64::exp);
    bounded("ln", step, 0.89, |x| x > 0.0 && finite(x), ln, f64::ln);
    bounded("tanh", step, 1.34, finite, tanh, f64::tanh);
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    let normal = |x: f32| finite(x) && x > -87.0;
    bounded("sigmoid", step, 2.5, normal, sigmoid, logistic);
    bounded("silu", step, 2.5, normal, silu, |x| x * logistic(x));
    let angles = |x: f32| x.abs() <= MAX_ANGLE;
    bounded("sin", step, 0.501, angles, |x| sin_cos(x).0, f64::sin);
    bounded("cos", step, 0.501, angles, |x| sin_cos(x).1, f64::cos);
}

#[test]
fn bounds_on_a_sample() {
    all_bounded(SAMPLE);
}

#[test]
#[ignore = "every f32 of seven functions: ten to fifteen minutes"]
fn bounds_on_every_argument() {
    all_bounded(1);
}

fn assert_bits(got: f32, want: f32) {
    assert_eq!(got.to_bits(), want.to_bits(), "{got:e} is not {want:e}");
}

#[test]
fn exp_specials() {
    assert_bits(exp(f32::NEG_INFINITY), 0.0);
    assert_bits(exp(f32::INFINITY), f32::INFINITY);
    assert_bits(exp(0.0), 1.0);
    assert_bits(exp(-0.0), 1.0);
    assert_bits(exp(f32::MIN), 0.0);
    assert_bits(exp(f32::MAX), f32::INFINITY);
    // The thresholds themselves are normal and finite, their neighbours are not.
    assert!(exp(EXP_UNDERFLOW) >= f32::MIN_POSITIVE);
    assert_bits(exp(EXP_UNDERFLOW.next_down()), 0.0);
    assert!(exp(EXP_OVERFLOW).is_finite());
    assert_bits(exp(EXP_OVERFLOW.next_up()), f32::INFINITY);
}

#[test]
fn ln_specials() {
    assert_bits(ln(0.0), f32::NEG_INFINITY);
    assert_bits(ln(-0.0), f32::NEG_INFINITY);
    assert_bits(ln(1.0), 0.0);
    assert_bits(ln(f32::INFINITY), f32::INFINITY);
    for negative in [-1.0, -f32::from_bits(1), f32::MIN, f32::NEG_INFINITY] {
        assert_bits(ln(negative), CANONICAL_NAN);
    }
}

#[test]
fn other_specials() {
    assert_bits(tanh(-0.0), -0.0);
    assert_bits(tanh(f32::INFINITY), 1.0);
    assert_bits(tanh(f32::NEG_INFINITY), -1.0);
    assert_bits(tanh(f32::MAX), 1.0);
    assert_bits(sigmoid(0.0), 0.5);
    assert_bits(sigmoid(f32::INFINITY), 1.0);
    assert_bits(sigmoid(f32::NEG_INFINITY), 0.0);
    assert_bits(silu(-0.0), -0.0);
    assert_bits(silu(f32::INFINITY), f32::INFINITY);
    assert_bits(silu(-1.0e4), -0.0);
    assert_bits(silu(f32::NEG_INFINITY), CANONICAL_NAN);
}

#[test]
fn angle_specials() {
    let (sin, cos) = sin_cos(-0.0);
    assert_bits(sin, -0.0);
    assert_bits(cos, 1.0);
    for angle in [MAX_ANGLE.next_up(), -f32::MAX, f32::INFINITY, f32::NAN] {
        let (sin, cos) = sin_cos(angle);
        assert_bits(sin, CANONICAL_NAN);
        assert_bits(cos, CANONICAL_NAN);
    }
    // 355/113 * 2^k is as close to a multiple of pi as small fractions come.
    for k in 0..20 {
        let x = 355.0f32 * f32::from_bits((127 + k) << 23);
        assert!(ulps(sin_cos(x).0, f64::from(x).sin()) <= 0.501, "{x}");
    }
}

#[test]
fn every_nan_becomes_the_one() {
    for bits in [0x7f80_0001, 0x7fff_ffff, 0xff80_0001, 0xffc0_0000u32] {
        let nan = f32::from_bits(bits);
        for f in [exp, ln, tanh, sigmoid, silu] {
            assert_bits(f(nan), CANONICAL_NAN);
        }
    }
}

#[test]
fn rotary_frequencies_and_other_powers() {
    for theta in [1.0e4f32, 1.0e5, 5.0e5, 1.0e6, 1.0e7] {
        for dim in [64, 96, 128, 256] {
            for i in (0..dim).step_by(2) {
                let exponent = i as f32 / dim as f32;
                let want = f64::from(theta).powf(f64::from(exponent));
                assert!(ulps(pow(theta, exponent), want) <= 0.501);
                let want = f64::from(theta).powf(f64::from(-exponent));
                assert!(ulps(pow(theta, -exponent), want) <= 0.501);
            }
        }
    }
    for i in 1..20_000u32 {
        let base = f32::from_bits(i.wrapping_mul(104_729) & 0x7f7f_ffff);
        let exponent = (i % 997) as f32 / 250.0 - 2.0;
        let want = f64::from(base).powf(f64::from(exponent));
        if base > 0.0 && (1.2e-38..3.4e38).contains(&want) {
            assert!(ulps(pow(base, exponent), want) <= 0.501, "{base:e}^{exponent}");
        }
    }
}

#[test]
fn power_specials() {
    assert_bits(pow(7.5, 0.0), 1.0);
    assert_bits(pow(1.0, 1.0e30), 1.0);
    assert_bits(pow(2.0, 1000.0), f32::INFINITY);
    assert_bits(pow(2.0, -1000.0), 0.0);
    for (base, exponent) in [
        (0.0, 1.0),
        (-1.0, 2.0),
        (f32::INFINITY, 1.0),
        (2.0, f32::INFINITY),
        (f32::NAN, 1.0),
        (2.0, f32::NAN),
    ] {
        assert_bits(pow(base, exponent), CANONICAL_NAN);
    }
    assert_eq!(powi(0.999, 0), 1.0);
    assert_eq!(powi(3.0, 5), 243.0);
    assert!((powi(0.999, 1000) / 0.999f64.powf(1000.0) - 1.0).abs() < 1e-13);
}

/// FNV-1a over the bits of `f` at sampled arguments.
fn fingerprint(f: impl Fn(f32) -> f32) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for bits in (0..=u32::MAX).step_by(65_521) {
        for byte in f(f32::from_bits(bits)).to_bits().to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

/// The bits are part of the identity of every run: whoever changes a line above
/// finds out here, on every kind of processor.
#[test]
fn golden_bits() {
    let found = [
        ("exp", fingerprint(exp)),
        ("ln", fingerprint(ln)),
        ("tanh", fingerprint(tanh)),
        ("sigmoid", fingerprint(sigmoid)),
        ("silu", fingerprint(silu)),
        ("sin", fingerprint(|x| sin_cos(x).0)),
        ("cos", fingerprint(|x| sin_cos(x).1)),
        ("pow", fingerprint(|x| pow(1.0e6, x))),
    ];
    let golden: [(&str, u64); 8] = [
        ("exp", 0x4658_09e0_38d2_7a14),
        ("ln", 0x5ea9_6701_41d7_1208),
        ("tanh", 0xd88a_ae2d_a934_569a),
        ("sigmoid", 0xc754_901c_2252_2cbe),
        ("silu", 0x991f_bcbf_3d2e_3587),
        ("sin", 0x05fd_57de_1b3b_97a1),
        ("cos", 0x56b4_8619_e3c4_7831),
        ("pow", 0x415a_8e34_f352_a830),
    ];
    assert_eq!(found, golden);
}

/// The instruction and the library call are the same operation.
#[test]
fn fused_changes_no_bit() {
    for f in [exp, ln, tanh, sigmoid, silu] {
        assert_eq!(canon::fused(f, fingerprint), fingerprint(f));
    }
    let arguments: Vec<f32> = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).collect();
    // Inlined here, so really compiled twice.
    let inside = canon::fused(&arguments, |xs| xs.iter().map(|&x| exp(x)).collect::<Vec<_>>());
    for (x, y) in arguments.iter().zip(inside) {
        assert_bits(y, exp(*x));
    }
}
