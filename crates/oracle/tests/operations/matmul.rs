use crate::numeric::values;
use crate::rig::{Rig, bits};
use oracle::Precision;
use program::BufferId;
use program::ops::{Init, MatMul, Operand, Term};

/// 2^24: adding 1 to it changes nothing.
const BIG: f32 = 16_777_216.0;

fn product(out: BufferId, leaves: Vec<Vec<Term>>) -> MatMul {
    MatMul { label: "test".into(), out, leaves, tail: vec![], alpha: 1.0, init: Init::Zero }
}

fn term(a: BufferId, b: BufferId) -> Term {
    Term { a: Operand::whole(a), b: Operand::whole(b) }
}

/// One leaf a column of `a` and `b`.
fn column_leaves(a: BufferId, b: BufferId, columns: usize) -> Vec<Vec<Term>> {
    let operand = |id, k| Operand::whole(id).with_cols(k..k + 1);
    (0..columns).map(|k| vec![Term { a: operand(a, k), b: operand(b, k) }]).collect()
}

#[test]
fn a_leaf_is_one_chain_over_its_terms() {
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(2, &[BIG, 1.0]), rig.floats(2, &[1.0, 1.0]));
    let out = rig.out(1, 1);
    // BIG + 1 + 1 - BIG, term after term in one accumulator: both ones are lost.
    let c = rig.floats(2, &[1.0, -BIG]);
    let ran = rig.run(product(out, vec![vec![term(a, b), term(c, b)]]));
    assert_eq!(ran.floats(out), [0.0]);
}

#[test]
fn leaves_are_added_in_the_mid_split_tree() {
    // (BIG + 1) + (1 + -BIG) is 1; a chain over the four gives 0.
    let row = [BIG, 1.0, 1.0, -BIG];
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(4, &row), rig.floats(4, &[1.0; 4]));
    let out = rig.out(1, 1);
    let ran = rig.run(product(out, column_leaves(a, b, 4)));
    assert_eq!(ran.floats(out), [1.0]);
    // Five leaves: (0+1)+(2+(3+4)).
    let row = [1.0, BIG, 1.0, 1.0, -BIG];
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(5, &row), rig.floats(5, &[1.0; 5]));
    let out = rig.out(1, 1);
    let ran = rig.run(product(out, column_leaves(a, b, 5)));
    assert_eq!(ran.floats(out), [(1.0 + BIG) + (1.0 + (1.0 - BIG))]);
}

#[test]
fn leaves_of_a_row_parallel_product_are_rounded_to_storage_once() {
    // 1 + 7·2^-8 in f32, then the nearest bf16; rounding after each leaf would lose every one of the seven.
    let mut row = [2.0f32.powi(-8); 8];
    row[0] = 1.0;
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(8, &row), rig.halves(8, &[1.0; 8]));
    let out = rig.halves(1, &[0.0]);
    let leaves = column_leaves(a, b, 8);
    assert_eq!(rig.run(product(out, leaves)).floats(out), [1.03125]);
}

#[test]
fn the_tail_is_a_chain_of_its_own_then_scale_then_init() {
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(1, &[BIG]), rig.floats(1, &[1.0]));
    let (c, ones) = (rig.floats(2, &[1.0, 1.0]), rig.floats(2, &[1.0, 1.0]));
    let bias = rig.floats(1, &[0.5]);
    let out = rig.out(1, 1);
    let mut op = product(out, vec![vec![term(a, b)]]);
    op.tail = vec![term(c, ones)];
    op.alpha = 0.25;
    op.init = Init::Bias(bias);
    // BIG + (1 + 1) keeps the two; a quarter of it is 2^22 + 0.5, and the bias makes 1 of that half.
    assert_eq!(rig.run(op).floats(out), [4_194_305.0]);
}

#[test]
fn accumulation_adds_the_sum_to_the_old_value() {
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(2, &[1.0, 1.0]), rig.floats(2, &[1.0, 1.0]));
    let out = rig.floats(1, &[BIG]);
    let mut op = product(out, vec![vec![term(a, b)]]);
    op.init = Init::Accumulate;
    // BIG + (1 + 1), not (BIG + 1) + 1.
    assert_eq!(rig.run(op).floats(out), [16_777_218.0]);
}

#[test]
fn operands_are_pieces_and_transposes() {
    let mut rig = Rig::new();
    let a = rig.floats(3, &[1., 2., 3., 4., 5., 6.]);
    let b = rig.floats(2, &[1., 10., 2., 20., 3., 30.]);
    let out = rig.out(2, 2);
    // a[:, 1..3] · (b[1..3, :]ᵀ)ᵀ: k runs over columns of a and rows of b.
    let operands =
        Term { a: Operand::whole(a).with_cols(1..3), b: Operand::transposed(b).with_rows(1..3) };
    let ran = rig.run(product(out, vec![vec![operands]]));
    assert_eq!(ran.floats(out), [13., 130., 28., 280.]);
    // aᵀ · aᵀᵀ over the rows of a.
    let mut rig = Rig::new();
    let a = rig.floats(3, &[1., 2., 3., 4., 5., 6.]);
    let out = rig.out(3, 3);
    let gram = Term { a: Operand::transposed(a), b: Operand::transposed(a) };
    let ran = rig.run(product(out, vec![vec![gram]]));
    assert_eq!(ran.floats(out), [17., 22., 27., 22., 29., 36., 27., 36., 45.]);
}

#[test]
fn rows_past_the_live_ones_are_neither_read_nor_written() {
    let mut rig = Rig::new();
    let x = rig.tokens(4, 2, &[1., 2., 3., 4.]);
    let w = rig.floats(2, &[1., 1.]);
    let y = rig.tokens(4, 1, &[7., 7.]);
    let ran = rig.run(product(y, vec![vec![term(x, w)]]));
    assert_eq!(ran.all_rows(y), [3., 7., 0., 0.]);
    // A product over tokens has as many terms as live rows.
    let mut rig = Rig::new();
    let x = rig.tokens(4, 1, &[1., 2., 3.]);
    let out = rig.out(1, 1);
    let gram = Term { a: Operand::transposed(x), b: Operand::transposed(x) };
    assert_eq!(rig.run(product(out, vec![vec![gram]])).floats(out), [14.]);
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let (x, w) = (values(1, 5 * 37), values(2, 11 * 37));
    let run = |rows: std::ops::Range<usize>| {
        let mut rig = Rig::new();
        let a = rig.floats(37, &x[rows.start * 37..rows.end * 37]);
        let b = rig.floats(37, &w);
        let out = rig.out(rows.len(), 11);
        bits(&rig.run(product(out, vec![vec![term(a, b)]])).floats(out))
    };
    assert_eq!(run(3..4), run(0..5)[3 * 11..4 * 11]);
}

#[test]
fn bf16_rounds_both_operands_and_chains_pairs() {
    let x = 1.0 + 2.0f32.powi(-9);
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(3, &[x, 1.0, -BIG]), rig.floats(3, &[1.0, BIG, 1.0]));
    let out = rig.out(1, 1);
    // The pair (x, BIG): BIG first, then 1 (x rounded), which is lost; then the odd end with a zero.
    let ran = rig.run_in(Precision::Bf16, product(out, vec![vec![term(a, b)]]));
    assert_eq!(ran.floats(out), [0.0]);
    let mut rig = Rig::new();
    let (a, b) = (rig.floats(3, &[x, 1.0, -BIG]), rig.floats(3, &[1.0, BIG, 1.0]));
    let out = rig.out(1, 1);
    let ran = rig.run(product(out, vec![vec![term(a, b)]]));
    assert_eq!(ran.floats(out), [2.0], "in f32 x + BIG rounds up");
}
