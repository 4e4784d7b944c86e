//! The exact sum of squares.

use canon::elementary::CANONICAL_NAN;
use canon::exact::{InvalidState, SumOfSquares, WORDS};
use canon::random::{Numbers, Purpose};

fn of(values: &[f32]) -> SumOfSquares {
    let mut sum = SumOfSquares::new();
    sum.add(values);
    sum
}

/// Values of every finite exponent.
fn wide(n: usize) -> Vec<f32> {
    let numbers = Numbers::new(7, Purpose::Sample, 0);
    (0..n as u64).map(|i| f32::from_bits(numbers.block(i)[0])).filter(|x| x.is_finite()).collect()
}

#[test]
fn a_large_value_hides_no_small_ones() {
    let mut values = vec![4096.0f32];
    values.extend([1.0; 1000]);
    for _ in 0..values.len() {
        values.rotate_left(1);
        assert_eq!(of(&values).sum(), 16_778_216.0);
    }
    assert_eq!(of(&values).norm(), 16_778_216f64.sqrt() as f32);
    // An f32 chain loses every one of them.
    values.sort_by(|a, b| b.total_cmp(a));
    let chain = values.iter().fold(0.0f32, |a, x| x.mul_add(*x, a));
    assert_eq!(chain, 16_777_216.0);
}

#[test]
fn any_order_and_any_split_is_the_same_sum() {
    let values = wide(300_000);
    assert!(values.len() > 290_000);
    let whole = of(&values);
    let mut shuffled = values.clone();
    Numbers::new(8, Purpose::Order, 0).shuffle(&mut shuffled);
    assert_eq!(of(&shuffled), whole);
    for parts in [2, 3, 8, 1000] {
        let mut merged = SumOfSquares::new();
        for part in values.chunks(values.len().div_ceil(parts)).rev() {
            let words = of(part).to_words();
            merged.merge(&SumOfSquares::from_words(&words).unwrap());
        }
        assert_eq!(merged.to_words(), whole.to_words(), "{parts} parts");
    }
    // In f64 the order shows.
    let chain = |v: &[f32]| v.iter().fold(0.0f64, |a, x| a + f64::from(*x).powi(2));
    assert_ne!(chain(&values), chain(&shuffled));
}

/// Rounding against integers of 128 bits, on values whose squares they hold.
#[test]
fn correctly_rounded() {
    let numbers = Numbers::new(9, Purpose::Sample, 0);
    for case in 0..20_000u64 {
        let mut exact = 0u128;
        let mut sum = SumOfSquares::new();
        for i in 0..1 + case % 7 {
            let [word, scale, ..] = numbers.block(case * 8 + i);
            let x = (word >> 8) as f32 * 2f32.powi((scale % 38) as i32);
            exact += (x as u128) * (x as u128);
            sum.add(&[x]);
        }
        assert_eq!(sum.sum(), exact as f64, "case {case}");
    }
}

#[test]
fn ties_go_to_even_and_any_bit_below_breaks_them() {
    let (one, half) = (2f32.powi(53), 2f32.powi(26));
    // 2^106 + 2 * 2^52 is half way between 2^106 and its neighbour 2^106 + 2^54.
    let tie = [one, half, half];
    assert_eq!(of(&tie).sum(), 2f64.powi(106));
    let least = f32::from_bits(1);
    let above = [one, half, half, least];
    assert_eq!(of(&above).sum(), 2f64.powi(106) + 2f64.powi(54));
}

#[test]
fn the_extremes() {
    let least = f32::from_bits(1);
    assert_eq!(of(&[least]).sum(), 2f64.powi(-298));
    assert_eq!(of(&[least; 3]).sum(), 3.0 * 2f64.powi(-298));
    assert_eq!(of(&[f32::MAX]).sum(), f64::from(f32::MAX).powi(2));
    assert_eq!(of(&[f32::MAX; 4]).norm(), f32::INFINITY);
    assert_eq!(of(&[]).sum().to_bits(), 0);
    assert_eq!(of(&[-0.0, 0.0]).norm().to_bits(), 0);
    assert_eq!(of(&[-3.0, 4.0]).norm(), 5.0);
    // More values of one exponent than a bucket holds in one go.
    let ones = vec![f32::from_bits(0x3fff_ffff); 400_001];
    let square = f64::from(ones[0]).powi(2);
    assert_eq!(of(&ones).sum(), {
        let significand = (square * 2f64.powi(46)) as u128;
        (significand * 400_001) as f64 * 2f64.powi(-46)
    });
}

#[test]
fn non_finite_values_are_a_state() {
    let infinite = of(&[1.0, f32::NEG_INFINITY]);
    assert_eq!(infinite.sum(), f64::INFINITY);
    let nan = of(&[f32::INFINITY, f32::NAN, 1.0]);
    assert_eq!(nan.norm().to_bits(), CANONICAL_NAN.to_bits());
    let mut merged = of(&[2.0]);
    merged.merge(&infinite);
    assert_eq!(merged.norm(), f32::INFINITY);
    merged.merge(&nan);
    assert!(merged.sum().is_nan());
    merged.merge(&of(&[1.0]));
    assert!(merged.sum().is_nan());
    let back = SumOfSquares::from_words(&merged.to_words()).unwrap();
    assert_eq!(back, merged);
}

#[test]
fn foreign_words_are_refused() {
    let mut words = [0; WORDS];
    words[WORDS - 1] = 3;
    let error = SumOfSquares::from_words(&words).unwrap_err();
    assert_eq!(error, InvalidState { word: 3 });
    assert!(error.to_string().contains("holds 3"));
}
