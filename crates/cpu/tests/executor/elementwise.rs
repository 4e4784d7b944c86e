//! Element-wise operations, norms, rotations and sums against the oracle, byte for byte.

use crate::support::{Case, Data, Rng, live};
use program::ops::*;
use program::{Axis, DType};

/// (capacity, live, columns): odd sizes, whole vectors, enough to be shared by threads.
const SHAPES: [(usize, usize, usize); 5] =
    [(1, 1, 1), (5, 3, 7), (9, 9, 48), (40, 33, 113), (300, 257, 192)];

#[test]
fn add_and_copy() {
    for (rows, tokens, cols) in SHAPES {
        let mut case = Case::new(live(tokens));
        let [a, b, out] = [(); 3].map(|()| case.tokens(rows, cols));
        case.check(Add { a, b, out });
        case.check(Add { a, b, out: a });
        case.check(Add { a, b, out: b });
        case.check(Copy { x: a, out });
        let [from, to] = [(); 2].map(|()| case.weight(DType::Bf16, 3, cols));
        case.check(Copy { x: from, out: to });
    }
}

#[test]
fn add_row() {
    for (rows, tokens, cols) in SHAPES {
        for dtype in [DType::F32, DType::Bf16] {
            let mut case = Case::new(live(tokens));
            let [x, out] = [(); 2].map(|()| case.tokens(rows, cols));
            let row = case.weight(dtype, 1, cols);
            case.check(AddRow { x, row, out });
            case.check(AddRow { x, row, out: x });
        }
    }
}

#[test]
fn gates() {
    for (rows, tokens, cols) in SHAPES {
        let mut case = Case::new(live(tokens));
        let [gate, up, out, dgate, dup] = [(); 5].map(|()| case.tokens(rows, cols));
        let activation = Activation::Silu;
        case.check(Gate { gate, up, out, activation });
        case.check(GateBackward { gate, up, dout: out, dgate, dup, activation });
        case.check(GateBackward { gate, up, dout: out, dgate: gate, dup: up, activation });
    }
}

#[test]
fn gates_at_extreme_values() {
    let values = [0.0, -0.0, 1e-40, -1e-40, 88.9, -88.9, 200.0, -200.0, 1e30, -1e30, 1.0];
    let mut case = Case::new(live(values.len()));
    let gate =
        case.buffer(DType::F32, (values.len(), 1), Axis::Tokens, Data::Floats(values.to_vec()));
    let [up, out, dgate, dup] = [(); 4].map(|()| case.tokens(values.len(), 1));
    let activation = Activation::Silu;
    case.check(Gate { gate, up, out, activation });
    case.check(GateBackward { gate, up, dout: out, dgate, dup, activation });
}

/// (columns, group): whole rows and heads, vectors and odd sizes.
const GROUPS: [(usize, usize); 5] = [(7, 7), (576, 576), (60, 20), (192, 64), (33, 11)];

#[test]
fn norms() {
    for (cols, group) in GROUPS {
        for (dtype, plus_one) in [(DType::F32, false), (DType::Bf16, true)] {
            let mut case = Case::new(live(66));
            let [x, out, dy, dx] = [(); 4].map(|()| case.tokens(70, cols));
            let weight = case.weight(dtype, 1, group);
            let eps = 1e-5;
            case.check(Norm { x, weight, out, group, eps, plus_one });
            for accumulate in [false, true] {
                case.check(NormBackward { x, weight, dy, dx, group, eps, plus_one, accumulate });
            }
            let dx = dy;
            case.check(NormBackward { x, weight, dy, dx, group, eps, plus_one, accumulate: false });
        }
    }
}

#[test]
fn norm_of_zeros_and_of_subnormals() {
    for scale in [0.0, 1e-40, 1e-22, 1e18] {
        let mut case = Case::new(live(3));
        let mut rng = Rng::new(3);
        let values = (0..3 * 35).map(|_| rng.float() * scale).collect();
        let x = case.buffer(DType::F32, (3, 35), Axis::Tokens, Data::Floats(values));
        let [out, dy, dx] = [(); 3].map(|()| case.tokens(3, 35));
        let weight = case.weight(DType::F32, 1, 35);
        let (group, eps, plus_one, accumulate) = (35, 1e-6, false, false);
        case.check(Norm { x, weight, out, group, eps, plus_one });
        case.check(NormBackward { x, weight, dy, dx, group, eps, plus_one, accumulate });
    }
}

#[test]
fn norm_weight_grads() {
    for (cols, group, leaf_groups) in
        [(7, 7, vec![1]), (576, 576, vec![1]), (60, 20, vec![1, 2]), (192, 64, vec![1, 1, 1])]
    {
        let mut case = Case::new(live(130));
        let [x, dy] =
            [(); 2].map(|()| case.buffer(DType::F32, (140, cols), Axis::AllTokens, Data::Random));
        let dw = case.fixed(leaf_groups.len(), group);
        case.check(NormWeightGrad { x, dy, dw, group, leaf_groups, eps: 1e-5 });
    }
}

#[test]
fn rotations() {
    for (heads, head_dim, half) in [(1, 2, 1), (3, 64, 32), (5, 10, 5), (4, 48, 12)] {
        let mut rng = Rng::new(5);
        let mut case = Case::new(live(150));
        let positions = case.words((0..160).map(|_| rng.below(40_000) as u32).collect());
        let table = case.tokens(160, 2 * half);
        let x = case.tokens(160, heads * head_dim);
        let inv_freq: Vec<f32> =
            (0..half).map(|i| 1e5_f32.powf(-(i as f32) / half as f32)).collect();
        case.check(RopeTable { positions, out: table, inv_freq, scale: 1.1 });
        for inverse in [false, true] {
            case.check(Rope { x, table, head_dim, inverse });
        }
    }
}

#[test]
fn sums_over_rows() {
    for (rows, tokens, cols) in SHAPES {
        let mut case = Case::new(live(tokens));
        let x = case.tokens(rows, cols);
        let leaves = case.fixed(rows.min(13), cols);
        let out = case.fixed(1, cols);
        case.check(ColumnSum { x, out });
        case.check(FoldRows { x: leaves, out });
    }
    let mut case = Case::new(live(0));
    let (x, out) = (case.tokens(4, 5), case.fixed(1, 5));
    case.check(ColumnSum { x, out });
}

#[test]
fn updates() {
    for (dtype, decay) in
        [(DType::F32, true), (DType::F32, false), (DType::Bf16, true), (DType::Bf16, false)]
    {
        let mut case = Case::new(live(0));
        let param = case.weight(dtype, 211, 173);
        let [grad, m] = [(); 2].map(|()| case.fixed(211, 173));
        let (part_m, part_v) = (case.fixed(1, 300), case.fixed(1, 300));
        case.set(part_v, Data::Positive);
        let v = case.buffer(DType::F32, (211, 173), Axis::Fixed, Data::Positive);
        let scalars = vec![3e-4, 0.9, 0.999, 1e-8, 0.01, 0.271, 0.002_997, 0.731];
        let hyper = case.buffer(DType::F32, (1, 8), Axis::Fixed, Data::Floats(scalars));
        let whole = AdamW { param, grad, m, v, hyper, decay, slice: 0..211 * 173 };
        case.check(AdamW { m: part_m, v: part_v, slice: 1_008..1_308, ..whole.clone() });
        case.check(whole);
    }
}

#[test]
fn gradient_norm() {
    let mut case = Case::new(live(0));
    let shapes = [(1, 1), (700, 600), (3, 17)];
    let mut parts = shapes.map(|(rows, cols)| (case.fixed(rows, cols), 0..rows * cols)).to_vec();
    let words = Data::Words(vec![0; EXACT_SUM_WORDS]);
    let out = case.buffer(DType::U32, (1, EXACT_SUM_WORDS), Axis::Fixed, words);
    case.check(SumSquares { parts: parts.clone(), out });
    parts[1].1 = 17..300_001;
    case.check(SumSquares { parts, out });
}
