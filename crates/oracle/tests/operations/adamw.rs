use crate::numeric::values;
use crate::rig::Rig;
use program::ops::{AdamW, EXACT_SUM_WORDS, SumSquares, exact_sum_from_u32};

/// `[lr, beta1, beta2, eps, weight_decay, bias1, bias2, grad_scale]` of a first step.
const HYPER: [f32; 8] = [0.5, 0.75, 0.75, 0.0, 0.25, 0.25, 0.25, 2.0];

#[test]
fn a_step_by_hand() {
    for (decay, wanted) in [(true, 4.0 - 0.125 * 4.0 - 0.5), (false, 4.0 - 0.5)] {
        let mut rig = Rig::new();
        let (param, grad) = (rig.floats(1, &[4.0]), rig.floats(1, &[1.5]));
        let (m, v) = (rig.floats(1, &[0.0]), rig.floats(1, &[0.0]));
        let hyper = rig.floats(8, &HYPER);
        let ran = rig.run(AdamW { param, grad, m, v, hyper, decay, slice: 0..1 });
        // g = 3; m = 0.25·3, v = 0.25·9; m/bias1 = 3, √(v/bias2) = 3: a step of lr.
        assert_eq!(ran.floats(m), [0.75]);
        assert_eq!(ran.floats(v), [2.25]);
        assert_eq!(ran.floats(param), [wanted]);
        assert_eq!(ran.floats(grad), [1.5]);
    }
}

#[test]
fn moments_go_on_from_their_values_and_a_bf16_parameter_is_rounded_once() {
    let mut rig = Rig::new();
    let (param, grad) = (rig.halves(1, &[1.0]), rig.floats(1, &[0.0]));
    let (m, v) = (rig.floats(1, &[4.0]), rig.floats(1, &[16.0]));
    let hyper = rig.floats(8, &[2.0f32.powi(-9), 0.5, 0.25, 0.0, 0.0, 1.0, 1.0, 1.0]);
    let ran = rig.run(AdamW { param, grad, m, v, hyper, decay: true, slice: 0..1 });
    assert_eq!((ran.floats(m), ran.floats(v)), (vec![2.0], vec![4.0]));
    // 1 − 2^-9 is halfway between two bf16 numbers: the even one is 1.
    assert_eq!(ran.floats(param), [1.0]);
}

#[test]
fn the_norm_is_exact_in_any_order() {
    let mut parts = vec![4096.0f32];
    parts.extend([1.0; 1000]);
    let norm = |first: &[f32], second: &[f32]| {
        let mut rig = Rig::new();
        let (a, b) = (rig.floats(1, first), rig.floats(1, second));
        let out = rig.words(EXACT_SUM_WORDS, &[0; EXACT_SUM_WORDS]);
        let parts = vec![(a, 0..first.len()), (b, 0..second.len())];
        let words = rig.run(SumSquares { parts, out }).words(out);
        exact_sum_from_u32(&words).unwrap().norm()
    };
    let wanted = 16_778_216f64.sqrt() as f32;
    assert_eq!(norm(&parts[..1], &parts[1..]), wanted);
    assert_eq!(norm(&parts[1..], &parts[..1]), wanted);
    let x = values(5, 301);
    assert_eq!(norm(&x[..7], &x[7..]).to_bits(), norm(&x[150..], &x[..150]).to_bits());
}
