//! Pairs of the log-sum-exp tree.

use canon::elementary::CANONICAL_NAN;
use canon::log_sum_exp::LogSumExp;
use canon::random::{Numbers, Purpose};
use canon::tree::{Addition, finish, owners};

const TILE: usize = 128;

fn logits(n: usize) -> Vec<f32> {
    let mut out = vec![0.0; n];
    Numbers::new(1, Purpose::Sample, 1).fill_normal(0, 6.0, &mut out);
    out
}

fn tiles(logits: &[f32]) -> Vec<LogSumExp> {
    logits.chunks(TILE).map(LogSumExp::of_tile).collect()
}

fn bits(pair: LogSumExp) -> [u32; 2] {
    [pair.max.to_bits(), pair.sum.to_bits()]
}

#[test]
fn close_to_f64() {
    for n in [1, 5, 128, 1000, 49_152] {
        let logits = logits(n);
        let got = LogSumExp::combine_all(&tiles(&logits)).value();
        let want = logits.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
        assert!((f64::from(got) - want).abs() < 2e-6 * want.abs().max(1.0));
    }
}

#[test]
fn every_arrangement_of_owners_gives_the_same_bits() {
    let mut chains_that_differ = 0;
    for n in 1..=64 {
        let tiles = tiles(&logits(n * TILE));
        let whole = LogSumExp::combine_all(&tiles);
        for ranks in [1, 2, 3, 4, 8, 16] {
            let mut pairs: Vec<LogSumExp> = owners(n, ranks)
                .unwrap()
                .into_iter()
                .map(|owner| LogSumExp::combine_all(&tiles[owner.leaves]))
                .collect();
            for Addition { into, from } in finish(n, ranks).unwrap() {
                pairs[into] = pairs[into].combine(pairs[from]);
            }
            assert_eq!(bits(pairs[0]), bits(whole), "{n} tiles, {ranks} ranks");
        }
        let chain = tiles.iter().copied().reduce(LogSumExp::combine).unwrap();
        chains_that_differ += usize::from(bits(chain) != bits(whole));
    }
    assert!(chains_that_differ > 10, "only {chains_that_differ} of 64");
}

#[test]
fn padding_changes_nothing() {
    let real = tiles(&logits(TILE))[0];
    let padding = LogSumExp::of_tile(&[f32::NEG_INFINITY; TILE]);
    assert_eq!(bits(padding), bits(LogSumExp::EMPTY));
    assert_eq!(bits(real.combine(padding)), bits(real));
    assert_eq!(bits(padding.combine(real)), bits(real));
    assert_eq!(bits(padding.combine(padding)), bits(padding));
    assert_eq!(padding.value(), f32::NEG_INFINITY);
    assert_eq!(bits(LogSumExp::combine_all(&[])), bits(LogSumExp::EMPTY));
    let mut padded = logits(100);
    let short = LogSumExp::of_tile(&padded);
    padded.resize(TILE, f32::NEG_INFINITY);
    assert_eq!(bits(LogSumExp::of_tile(&padded)), bits(short));
}

#[test]
fn combine_is_commutative_and_zero_has_one_sign() {
    let tiles = tiles(&logits(2 * TILE));
    assert_eq!(bits(tiles[0].combine(tiles[1])), bits(tiles[1].combine(tiles[0])));
    let zeros = LogSumExp::of_tile(&[-0.0, -0.0]);
    assert_eq!(bits(zeros), [0, 2.0f32.to_bits()]);
}

#[test]
fn what_is_not_finite_shows() {
    for bad in [f32::NAN, f32::INFINITY] {
        for at in [0, 17, TILE - 1] {
            let mut logits = logits(TILE);
            logits[at] = bad;
            let pair = LogSumExp::of_tile(&logits);
            assert_eq!(pair.value().to_bits(), CANONICAL_NAN.to_bits());
            let whole = pair.combine(tiles(&logits)[0]);
            assert_eq!(whole.value().to_bits(), CANONICAL_NAN.to_bits());
        }
    }
    let all_nan = LogSumExp::of_tile(&[f32::NAN; TILE]);
    assert!(all_nan.value().is_nan());
    assert!(all_nan.combine(LogSumExp::EMPTY).value().is_nan());
    let finite = LogSumExp::of_tile(&logits(TILE));
    assert!(finite.combine(all_nan).value().is_nan());
    assert!(all_nan.combine(finite).value().is_nan());
}
