//! The policy's rules: order, kept sets, entropy.

use canon::log_sum_exp::LogSumExp;
use canon::policy::{EntropySum, Kept, order, scale};

fn logits(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1013) as f32 / 97.0 - 5.0).collect()
}

#[test]
fn the_last_candidate_says_the_kept_set() {
    let logits = [1.0, 3.0, 3.0, -0.0, 0.0, 2.0, 3.0];
    let mut candidates: Vec<(f32, u32)> = logits.iter().copied().zip(0..).collect();
    candidates.sort_by(|&a, &b| order(a, b));
    let ids: Vec<u32> = candidates.iter().map(|c| c.1).collect();
    assert_eq!(ids, [1, 2, 6, 5, 0, 3, 4]);
    for count in 1..=candidates.len() {
        let (logit, id) = candidates[count - 1];
        let kept = Kept { logit, id };
        let all = logits.iter().zip(0..).filter(|&(&l, id)| kept.keeps(l, id)).count();
        assert_eq!(all, count);
    }
    assert!(logits.iter().zip(0..).all(|(&l, id)| Kept::ALL.keeps(l, id)));
}

#[test]
fn temperature_zero_does_not_scale() {
    assert_eq!([scale(0.0), scale(1.0), scale(0.5)], [1.0, 1.0, 2.0]);
}

#[test]
fn sums_are_those_of_the_log_sum_exp_and_entropy_is_the_soft_maxs() {
    let mut row = logits(640);
    row[600..].fill(f32::NEG_INFINITY);
    let tiles: Vec<EntropySum> = row.chunks(128).map(EntropySum::of_tile).collect();
    let pairs: Vec<LogSumExp> = row.chunks(128).map(LogSumExp::of_tile).collect();
    let (all, pair) = (EntropySum::combine_all(&tiles), LogSumExp::combine_all(&pairs));
    assert_eq!((all.max.to_bits(), all.sum.to_bits()), (pair.max.to_bits(), pair.sum.to_bits()));
    let z: Vec<f64> = row[..600].iter().map(|&x| f64::from(x)).collect();
    let lse = z.iter().map(|x| x.exp()).sum::<f64>().ln();
    let entropy: f64 = -z.iter().map(|x| (x - lse).exp() * (x - lse)).sum::<f64>();
    assert!((f64::from(all.entropy()) - entropy).abs() < 1e-5, "{} {entropy}", all.entropy());
}

#[test]
fn nothing_changes_nothing_and_one_candidate_has_no_entropy() {
    let empty = EntropySum::of_tile(&[f32::NEG_INFINITY; 128]);
    assert_eq!(empty, EntropySum::EMPTY);
    let tile = EntropySum::of_tile(&logits(128));
    assert_eq!(tile.combine(empty), tile);
    assert_eq!(empty.combine(tile), tile);
    assert_eq!(EntropySum::of_tile(&[3.0, f32::NEG_INFINITY]).entropy(), 0.0);
}

#[test]
fn a_nan_stays() {
    let mut tile = logits(128);
    tile[5] = f32::NAN;
    let sums = EntropySum::of_tile(&tile).combine(EntropySum::of_tile(&logits(128)));
    assert!(sums.entropy().is_nan());
}
