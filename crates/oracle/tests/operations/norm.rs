use crate::numeric::{assert_close, derivative, dot, values, wide};
use crate::rig::{Rig, bits};
use program::ops::{Norm, NormBackward, NormWeightGrad};

const EPS: f32 = 1e-5;

fn normed(x: &[f64], weight: &[f64], group: usize) -> Vec<f64> {
    x.chunks(group)
        .flat_map(|x| {
            let inv = 1.0 / (dot(x, x) / group as f64 + f64::from(EPS)).sqrt();
            x.iter().zip(weight).map(|(x, w)| x * inv * w).collect::<Vec<f64>>()
        })
        .collect()
}

#[test]
fn a_norm_by_hand() {
    let mut rig = Rig::new();
    let (x, weight) = (rig.floats(2, &[7., 1., 3., 3.]), rig.floats(2, &[1., 2.]));
    let out = rig.out(2, 2);
    // Mean squares 25 and 9.
    let op = Norm { x, weight, out, group: 2, eps: 0.0, plus_one: false };
    let fifth = 1.0f32 / 5.0;
    assert_eq!(rig.run(op).floats(out), [7. * fifth, 2. * fifth, 1., 2.]);
    let mut rig = Rig::new();
    let (x, weight) = (rig.floats(2, &[3., 3.]), rig.floats(2, &[1., 2.]));
    let out = rig.out(1, 2);
    let op = Norm { x, weight, out, group: 2, eps: 0.0, plus_one: true };
    assert_eq!(rig.run(op).floats(out), [2., 3.]);
}

#[test]
fn squares_are_summed_over_sixteen_lanes() {
    // Lane 0 holds 2^24 and loses elements 16 and 32; element 1 is in a lane of its own.
    let mut row = vec![0.0f32; 34];
    (row[0], row[16], row[32], row[1]) = (4096.0, 1.0, 1.0, 2.0f32.sqrt());
    let sum = 16_777_216.0f32 + row[1] * row[1];
    let inv = 1.0 / (sum / 34.0 + EPS).sqrt();
    let mut rig = Rig::new();
    let (x, weight) = (rig.floats(34, &row), rig.floats(34, &[1.0; 34]));
    let out = rig.out(1, 34);
    let op = Norm { x, weight, out, group: 34, eps: EPS, plus_one: false };
    let wanted: Vec<f32> = row.iter().map(|x| x * inv).collect();
    assert_eq!(rig.run(op).bits(out), bits(&wanted));
}

#[test]
fn the_input_s_gradient_is_the_derivative() {
    let (x, w, dy) = (values(1, 12), values(2, 6), values(3, 12));
    let (ww, dyw) = (wide(&w), wide(&dy));
    let wanted = derivative(&x, |x| dot(&normed(x, &ww, 6), &dyw));
    for (accumulate, old) in [(false, 0.0), (true, 2.0)] {
        let mut rig = Rig::new();
        let (x, weight) = (rig.floats(12, &x), rig.floats(6, &w));
        let (dy, dx) = (rig.floats(12, &dy), rig.floats(12, &[old; 12]));
        let (group, eps) = (6, EPS);
        let op = NormBackward { x, weight, dy, dx, group, eps, plus_one: false, accumulate };
        let wanted: Vec<f64> = wanted.iter().map(|d| d + f64::from(old)).collect();
        assert_close(&rig.run(op).floats(dx), &wanted, 1e-5);
    }
}

#[test]
fn the_input_s_gradient_may_take_the_place_of_the_output_s() {
    let run = |in_place: bool| {
        let mut rig = Rig::new();
        let (x, weight) = (rig.floats(6, &values(1, 12)), rig.floats(6, &values(2, 6)));
        let dy = rig.floats(6, &values(3, 12));
        let dx = if in_place { dy } else { rig.out(2, 6) };
        let (group, eps) = (6, EPS);
        let op = NormBackward { x, weight, dy, dx, group, eps, plus_one: true, accumulate: false };
        rig.run(op).bits(dx)
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn the_weight_s_gradient_is_the_derivative_in_each_leaf_of_groups() {
    // Two tokens of three groups of four columns; leaves of one group and of two.
    let (x, w, dy) = (values(1, 24), values(2, 4), values(3, 24));
    let xw = wide(&x);
    let of_groups = |groups: std::ops::Range<usize>| {
        let mut masked = wide(&dy);
        for (i, dy) in masked.iter_mut().enumerate() {
            if !groups.contains(&(i % 12 / 4)) {
                *dy = 0.0;
            }
        }
        derivative(&w, |w| dot(&normed(&xw, w, 4), &masked))
    };
    let mut rig = Rig::new();
    let (x, dy, dw) = (rig.floats(12, &x), rig.floats(12, &dy), rig.out(2, 4));
    let op = NormWeightGrad { x, dy, dw, group: 4, leaf_groups: vec![1, 2], eps: EPS };
    let got = rig.run(op).floats(dw);
    assert_close(&got[..4], &of_groups(0..1), 1e-5);
    assert_close(&got[4..], &of_groups(1..3), 1e-5);
}
