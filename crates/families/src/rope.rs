//! Inverse rotary frequencies and their scalings.
//!
//! Source: `modeling_rope_utils.py` of transformers 5.24. Computed in f64 from basic operations and rounded to f32 once,
//! so that they are the same on every machine.

use formats::{ModelConfig, RopeScaling};
use std::f64::consts::PI;

/// Inverse frequencies (`head_dim / 2` of them) and the multiplier of cosines and sines.
pub(crate) fn frequencies(config: &ModelConfig) -> (Vec<f32>, f32) {
    let half = config.head_dim / 2;
    let root = root(config.rope_theta, half);
    let mut frequencies: Vec<f64> = Vec::with_capacity(half);
    for i in 0..half {
        frequencies.push(1.0 / canon::elementary::powi(root, i as u64));
    }
    let mut scale = 1.0;
    match &config.rope_scaling {
        // Dynamic scaling begins past the trained context; longer inputs are refused by whoever takes tokens.
        RopeScaling::None | RopeScaling::Dynamic { .. } => {}
        RopeScaling::Linear { factor } => frequencies.iter_mut().for_each(|f| *f /= factor),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => {
            let original = *original_max_position_embeddings as f64;
            for f in &mut frequencies {
                *f = llama3(*f, *factor, *low_freq_factor, *high_freq_factor, original);
            }
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
        } => {
            let original = *original_max_position_embeddings as f64;
            let bound = |beta: f64| {
                let rotations = original / (beta * 2.0 * PI);
                config.head_dim as f64 * log(rotations) / (2.0 * log(config.rope_theta))
            };
            let (mut low, mut high) = (bound(*beta_fast), bound(*beta_slow));
            if *truncate {
                (low, high) = (low.floor(), high.ceil());
            }
            let (low, mut high) = (low.max(0.0), high.min(config.head_dim as f64 - 1.0));
            if low == high {
                high += 0.001;
            }
            for (i, f) in frequencies.iter_mut().enumerate() {
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                *f = *f / factor * ramp + *f * (1.0 - ramp);
            }
            scale = *attention_factor;
        }
    }
    (frequencies.into_iter().map(|f| f as f32).collect(), scale as f32)
}

fn llama3(frequency: f64, factor: f64, low: f64, high: f64, original: f64) -> f64 {
    let wavelength = 2.0 * PI / frequency;
    if wavelength > original / low {
        return frequency / factor;
    }
    if wavelength < original / high {
        return frequency;
    }
    let smooth = (original / wavelength - low) / (high - low);
    (1.0 - smooth) * frequency / factor + smooth * frequency
}

/// The `n`-th root of `x` ≥ 0 by bisection on its bits: products only.
fn root(x: f64, n: usize) -> f64 {
    let (mut low, mut high) = (0u64, x.max(1.0).to_bits());
    while low < high {
        let mid = low + (high - low).div_ceil(2);
        if canon::elementary::powi(f64::from_bits(mid), n as u64) <= x {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    f64::from_bits(low)
}

/// Natural logarithm from basic operations: exponent and an odd series of the mantissa.
fn log(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i64 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | (1023 << 52));
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let (mut term, mut sum) = (z, 0.0);
    for k in 0..40 {
        sum += term / (2 * k + 1) as f64;
        term *= z * z;
    }
    exponent as f64 * std::f64::consts::LN_2 + 2.0 * sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_and_logarithms_agree_with_the_standard_library() {
        for (x, n) in [(1e4, 32), (1e6, 64), (5e5, 48), (10.0, 1), (1.0, 7)] {
            let ours = root(x, n);
            assert!((ours / x.powf(1.0 / n as f64) - 1.0).abs() < 1e-14, "{x} {n} {ours}");
        }
        for x in [0.3, 1.0, 1.5, 2.0, 1e6, 81.5] {
            assert!((log(x) - f64::ln(x)).abs() < 1e-14 * f64::ln(x).abs().max(1.0), "{x}");
        }
    }
}
