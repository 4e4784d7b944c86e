use crate::numeric::{assert_close, derivative, dot, values, wide};
use crate::rig::{Rig, bits};
use program::ops::{Activation, Add, AddRow, Gate, GateBackward, Rope, RopeTable};

#[test]
fn sums_are_element_wise_and_may_be_in_place() {
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(2, &[1., 2., 3., 4.]), rig.floats(2, &[10., 20., 30., 40.]));
    assert_eq!(rig.run(Add { a, b, out: b }).floats(b), [11., 22., 33., 44.]);
    let mut rig = Rig::new();
    let (x, row) = (rig.floats(2, &[1., 2., 3., 4.]), rig.floats(2, &[10., 20.]));
    assert_eq!(rig.run(AddRow { x, row, out: x }).floats(x), [11., 22., 13., 24.]);
}

#[test]
fn the_gate_in_its_order() {
    let (g, u) = (values(1, 40), values(2, 40));
    let mut rig = Rig::new();
    let (gate, up, out) = (rig.floats(40, &g), rig.floats(40, &u), rig.out(1, 40));
    let ran = rig.run(Gate { gate, up, out, activation: Activation::Silu });
    let wanted: Vec<f32> =
        g.iter().zip(&u).map(|(&g, &u)| (g * (1.0 / (1.0 + canon::exp(-g)))) * u).collect();
    assert_eq!(ran.bits(out), bits(&wanted));
    assert_close(&[canon::exp(1.0)], &[1f64.exp()], 1e-6);
}

#[test]
fn the_gate_s_gradient_is_the_derivative_and_may_be_in_place() {
    let (g, u, dout) = (values(1, 9), values(2, 9), values(3, 9));
    let (gw, uw, doutw) = (wide(&g), wide(&u), wide(&dout));
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let loss = |g: &[f64], u: &[f64]| {
        let y: Vec<f64> = g.iter().zip(u).map(|(&g, &u)| silu(g) * u).collect();
        dot(&y, &doutw)
    };
    let mut rig = Rig::new();
    let (gate, up, grad) = (rig.floats(9, &g), rig.floats(9, &u), rig.floats(9, &dout));
    let op =
        GateBackward { gate, up, dout: grad, dgate: gate, dup: up, activation: Activation::Silu };
    let ran = rig.run(op);
    assert_close(&ran.floats(gate), &derivative(&g, |g| loss(g, &uw)), 1e-6);
    assert_close(&ran.floats(up), &derivative(&u, |u| loss(&gw, u)), 1e-6);
}

#[test]
fn rotation_tables_hold_cosines_then_sines() {
    let inv_freq = [1.0f32, 0.01];
    let mut rig = Rig::new();
    let (positions, out) = (rig.words(1, &[0, 3]), rig.out(2, 4));
    let op = RopeTable { positions, out, inv_freq: inv_freq.to_vec(), scale: 2.0 };
    let table = rig.run(op).floats(out);
    assert_eq!(table[..4], [2.0, 2.0, 0.0, 0.0]);
    let (a, b) = (3f64, f64::from(3f32 * 0.01));
    assert_close(&table[4..], &[2. * a.cos(), 2. * b.cos(), 2. * a.sin(), 2. * b.sin()], 1e-7);
}

/// Two heads of four columns; the table turns the pairs by 90 degrees and by none.
fn rotated(x: &[f32], table: &[f32], inverse: bool) -> Vec<f32> {
    let mut rig = Rig::new();
    let (x, table) = (rig.floats(8, x), rig.floats(4, table));
    rig.run(Rope { x, table, head_dim: 4, inverse }).floats(x)
}

#[test]
fn rotation_pairs_the_halves_of_each_head() {
    let quarter_turn = [0.0, 1.0, 1.0, 0.0];
    let x = [1., 2., 3., 4., 5., 6., 7., 8.];
    let turned = rotated(&x, &quarter_turn, false);
    assert_eq!(turned, [-3., 2., 1., 4., -7., 6., 5., 8.]);
    assert_eq!(rotated(&turned, &quarter_turn, true), x);
}

#[test]
fn the_inverse_rotation_is_the_gradient() {
    let angles = [0.3f32, 1.1];
    let table: Vec<f32> = [angles.map(f32::cos), angles.map(f32::sin)].concat();
    let (x, dy) = (values(1, 8), values(2, 8));
    let (tablew, dyw) = (wide(&table), wide(&dy));
    let loss = |x: &[f64]| {
        let mut y = x.to_vec();
        for head in [0, 4] {
            for i in 0..2 {
                let (c, s) = (tablew[i], tablew[2 + i]);
                let (a, b) = (x[head + i], x[head + 2 + i]);
                (y[head + i], y[head + 2 + i]) = (a * c - b * s, b * c + a * s);
            }
        }
        dot(&y, &dyw)
    };
    assert_close(&rotated(&dy, &table, true), &derivative(&x, loss), 1e-6);
}
