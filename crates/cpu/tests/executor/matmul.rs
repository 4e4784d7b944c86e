//! Products as programs write them: live rows, column and row ranges, transposes,
//! leaves, tails, biases and accumulation.

use std::ops::Range;

use cpu::Precision;
use program::ops::*;
use program::{Axis, BufferId, DType};

use crate::support::{Case, Data, Rng, executors, live};

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Bf16Tiles];

fn product(out: BufferId, leaves: Vec<Vec<Term>>) -> MatMul {
    MatMul { label: "test".into(), out, leaves, tail: vec![], alpha: 1.0, init: Init::Zero }
}

fn cuts(total: usize, leaves: usize, rng: &mut Rng) -> Vec<Range<usize>> {
    let mut bounds: Vec<usize> = (1..total).collect();
    while bounds.len() > leaves - 1 {
        bounds.remove(rng.below(bounds.len()));
    }
    bounds.insert(0, 0);
    bounds.push(total);
    bounds.windows(2).map(|pair| pair[0]..pair[1]).collect()
}

#[test]
fn forward_with_leaves_a_tail_and_a_bias() {
    let mut rng = Rng::new(1);
    for (tokens, k, n, leaves) in [(1, 8, 5, 1), (7, 33, 48, 3), (29, 100, 70, 8), (8, 64, 33, 1)] {
        for dtype in [DType::F32, DType::Bf16] {
            let mut case = Case::new(live(tokens));
            let (x, out) = (case.tokens(tokens + 3, k), case.tokens(tokens + 3, n));
            let (h, b) = (case.tokens(tokens + 3, 6), case.weight(DType::F32, n, 6));
            let (weight, bias) = (case.weight(dtype, n, k), case.weight(dtype, 1, n));
            let leaves = cuts(k, leaves, &mut rng)
                .into_iter()
                .map(|range| {
                    let a = Operand::whole(x).with_cols(range.clone());
                    vec![Term { a, b: Operand::whole(weight).with_cols(range) }]
                })
                .collect();
            let plain = product(out, leaves);
            let tail = vec![Term { a: Operand::whole(h), b: Operand::whole(b) }];
            for precision in PRECISIONS {
                case.check_in(plain.clone(), precision);
                case.check_in(MatMul { tail: tail.clone(), ..plain.clone() }, precision);
                let init = Init::Bias(bias);
                case.check_in(MatMul { init, alpha: 0.25, ..plain.clone() }, precision);
                let (tail, init) = (tail.clone(), Init::Accumulate);
                case.check_in(MatMul { tail, init, alpha: 1.5, ..plain.clone() }, precision);
            }
        }
    }
}

#[test]
fn input_gradients_over_row_ranges() {
    let mut rng = Rng::new(2);
    let mut case = Case::new(live(21));
    let (dq, dk, dx) = (case.tokens(24, 60), case.tokens(24, 20), case.tokens(24, 37));
    let (wq, wk) = (case.weight(DType::Bf16, 60, 37), case.weight(DType::F32, 20, 37));
    let leaves = cuts(60, 4, &mut rng)
        .into_iter()
        .zip(cuts(20, 4, &mut rng))
        .map(|(q, k)| {
            [(dq, wq, q), (dk, wk, k)]
                .into_iter()
                .map(|(dy, w, range)| Term {
                    a: Operand::whole(dy).with_cols(range.clone()),
                    b: Operand::transposed(w).with_rows(range),
                })
                .collect()
        })
        .collect();
    let plain = product(dx, leaves);
    for precision in PRECISIONS {
        case.check_in(plain.clone(), precision);
        case.check_in(MatMul { init: Init::Accumulate, ..plain.clone() }, precision);
    }
}

#[test]
fn weight_gradients_over_live_tokens() {
    for (capacity, tokens, m, n) in [(40, 33, 48, 16), (40, 40, 7, 50), (9, 1, 3, 3)] {
        let mut case = Case::new(live(tokens));
        let [dy, x] = [m, n]
            .map(|cols| case.buffer(DType::F32, (capacity, cols), Axis::AllTokens, Data::Random));
        let dw = case.fixed(m, n);
        let term = Term { a: Operand::transposed(dy), b: Operand::transposed(x) };
        for precision in PRECISIONS {
            case.check_in(product(dw, vec![vec![term.clone()]]), precision);
        }
    }
}

#[test]
fn a_sum_over_no_tokens_is_zero() {
    let mut case = Case::new(live(0));
    let [dy, x] =
        [5, 7].map(|cols| case.buffer(DType::F32, (4, cols), Axis::AllTokens, Data::Random));
    let (dw, out) = (case.fixed(5, 7), case.tokens(4, 5));
    let term = Term { a: Operand::transposed(dy), b: Operand::transposed(x) };
    let weight = case.fixed(5, 5);
    for precision in PRECISIONS {
        case.check_in(product(dw, vec![vec![term.clone()]]), precision);
        let init = Init::Accumulate;
        case.check_in(MatMul { init, ..product(dw, vec![vec![term.clone()]]) }, precision);
        let a = Operand::whole(out);
        case.check_in(product(out, vec![vec![Term { a, b: Operand::whole(weight) }]]), precision);
    }
}

#[test]
fn outputs_may_be_bf16() {
    let mut case = Case::new(live(13));
    let x = case.tokens(13, 40);
    let weight = case.weight(DType::Bf16, 21, 40);
    let out = case.buffer(DType::Bf16, (13, 21), Axis::Tokens, Data::Random);
    let term = Term { a: Operand::whole(x), b: Operand::whole(weight) };
    for precision in PRECISIONS {
        case.check_in(product(out, vec![vec![term.clone()]]), precision);
    }
}

/// What is planned at capacity serves every number of live tokens.
#[test]
fn planned_workspace_serves_fewer_tokens() {
    for tokens in [1, 9, 57, 300, 449, 500] {
        let mut case = Case::new(live(tokens));
        let (x, out) = (case.tokens(500, 48), case.tokens(500, 30));
        let weight = case.weight(DType::Bf16, 30, 48);
        let term = Term { a: Operand::whole(x), b: Operand::whole(weight) };
        case.check(product(out, vec![vec![term]]));
    }
}

#[test]
fn a_workspace_planned_for_less_and_too_many_terms_are_refused() {
    let mut case = Case::new(live(9));
    let (x, out) = (case.tokens(9, 200), case.tokens(9, 5));
    let (weight, bias) = (case.fixed(5, 200), case.fixed(1, 5));
    let term = |k: usize| {
        let (a, b) = (Operand::whole(x), Operand::whole(weight));
        vec![Term { a: a.with_cols(k..k + 1), b: b.with_cols(k..k + 1) }]
    };
    let init = Init::Bias(bias);
    let op = MatMul { init, ..product(out, (0..8).map(term).collect()) }.into();
    let many = product(out, (0..129).map(term).collect()).into();
    for (settings, mut cpu) in executors(Precision::F32) {
        for bytes in [0, 64, 1024] {
            let error = case.run_in(&op, &mut cpu, bytes).expect_err("too small a workspace");
            assert!(error.to_string().contains("workspace is too small"), "{settings:?}: {error}");
        }
        let error = case.run(&many, &mut cpu).expect_err("too many terms");
        assert!(error.to_string().contains("more terms"), "{settings:?}: {error}");
    }
}
