//! Values to compute with, and numerical derivatives.

use canon::random::philox4x32;

/// Step of central differences in f64: their error is about its square.
const STEP: f64 = 1e-4;

/// `count` values in [−1, 1), the same for the same seed.
pub(crate) fn values(seed: u32, count: usize) -> Vec<f32> {
    (0..count as u32)
        .map(|i| philox4x32([i, 0, 0, 0], [seed, 0])[0] as i32 as f32 / 2_147_483_648.0)
        .collect()
}

pub(crate) fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// d f / d x at `x`.
pub(crate) fn derivative(x: &[f32], f: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let mut at = wide(x);
    (0..x.len())
        .map(|i| {
            let here = at[i];
            at[i] = here + STEP;
            let above = f(&at);
            at[i] = here - STEP;
            let below = f(&at);
            at[i] = here;
            (above - below) / (2.0 * STEP)
        })
        .collect()
}

/// Requires `got` to be within `tolerance` of `wanted`, relative to the greatest of these.
pub(crate) fn assert_close(got: &[f32], wanted: &[f64], tolerance: f64) {
    assert_eq!(got.len(), wanted.len());
    let scale = wanted.iter().fold(1e-3f64, |scale, x| scale.max(x.abs()));
    for (i, (&got, &wanted)) in got.iter().zip(wanted).enumerate() {
        let error = (f64::from(got) - wanted).abs() / scale;
        assert!(error <= tolerance, "element {i}: {got} for {wanted}");
    }
}

/// `Σ a·b` in f64.
pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
