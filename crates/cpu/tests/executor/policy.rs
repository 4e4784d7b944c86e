//! Log-probs of a policy: temperature, kept candidates, entropy, the whole vocabulary beside.

use std::ops::Range;

use arena::ExecError;
use cpu::Precision;
use program::ops::*;
use program::{Axis, BufferId, DType, Op};

use crate::support::{Case, Data, Rng, executors, live};

const INACTIVE: u32 = u32::MAX;
const HIDDEN: usize = 24;
const ROWS: usize = 21;

struct Head {
    case: Case,
    x: BufferId,
    weight: BufferId,
    targets: BufferId,
    kept: (BufferId, BufferId),
    shard: VocabShard,
    /// logp, lse, entropy, full log-prob, full lse.
    outs: [BufferId; 5],
    coefs: [BufferId; 3],
    dx: BufferId,
    dw: BufferId,
}

/// A share whose rows keep: all candidates, those above a logit, ties of that logit up to an id. `words` of it are words.
fn head(first: usize, vocab: usize, kept: impl Fn(usize) -> (f32, u32)) -> Head {
    let leaves: Vec<Range<usize>> = vec![0..256, 256..384];
    let shard = VocabShard { first, rows: 384, vocab, leaves };
    let mut rng = Rng::new(23);
    let mut case = Case::new(live(ROWS));
    let targets: Vec<u32> = (0..ROWS)
        .map(|row| if row % 5 == 3 { INACTIVE } else { first as u32 + rng.below(300) as u32 % 50 })
        .collect();
    let (logits, ids): (Vec<f32>, Vec<u32>) = (0..ROWS).map(kept).unzip();
    let column = |case: &mut Case, values: Vec<f32>| {
        case.buffer(DType::F32, (ROWS, 1), Axis::Tokens, Data::Floats(values))
    };
    // Words of few values, so that logits tie.
    let weight: Vec<f32> =
        (0..384).flat_map(|word| vec![(word % 7) as f32 / 8.0; HIDDEN]).collect();
    Head {
        x: case.tokens(ROWS, HIDDEN),
        weight: case.buffer(DType::F32, (384, HIDDEN), Axis::Fixed, Data::Floats(weight)),
        targets: case.words(targets),
        kept: (column(&mut case, logits), case.words(ids)),
        outs: std::array::from_fn(|i| column(&mut case, vec![i as f32 + 2.5; ROWS])),
        coefs: std::array::from_fn(|_| case.tokens(ROWS, 1)),
        dx: case.tokens(ROWS, HIDDEN),
        dw: case.fixed(384, HIDDEN),
        shard,
        case,
    }
}

impl Head {
    fn policy(&self, scale: f32) -> Policy {
        Policy { scale, kept: Some(self.kept) }
    }

    fn log_prob(&self, scale: f32) -> LogProb {
        let [logp, lse, entropy, full, full_lse] = self.outs;
        LogProb {
            x: self.x,
            weight: self.weight,
            targets: self.targets,
            policy: self.policy(scale),
            logp,
            lse: Some(lse),
            entropy: Some(entropy),
            full: Some((full, full_lse)),
            shard: self.shard.clone(),
            chunk: 6,
            grad: None,
        }
    }

    fn backward(&self, scale: f32) -> LogProbBackward {
        let [_, lse, entropy, _, full_lse] = self.outs;
        LogProbBackward {
            x: self.x,
            weight: self.weight,
            targets: self.targets,
            policy: self.policy(scale),
            lse,
            coef: self.coefs[0],
            entropy: Some((entropy, self.coefs[1])),
            full: Some((full_lse, self.coefs[2])),
            dx: Some(self.dx),
            dw: Some(self.dw),
            shard: self.shard.clone(),
            chunk: 6,
        }
    }

    fn stats(&mut self, scale: f32, measures: Measures) -> LogProbStats {
        LogProbStats {
            x: self.x,
            weight: self.weight,
            targets: self.targets,
            policy: self.policy(scale),
            measures,
            stats: self.case.tokens(ROWS, measures.columns()),
            shard: self.shard.clone(),
            chunk: 6,
        }
    }
}

/// The kept sets of some kinds; targets are all words below 50.
fn some_kept(row: usize) -> (f32, u32) {
    match row % 4 {
        0 => (f32::NEG_INFINITY, u32::MAX),
        1 => (-1e4, 3),
        // Logits of word 0, 7, 14, …: exactly 0 at any input.
        2 => (0.0, 200),
        _ => (-0.0, 290),
    }
}

/// Keeps every target: no bound is above any logit.
fn loose(row: usize) -> (f32, u32) {
    if row.is_multiple_of(2) { (f32::NEG_INFINITY, u32::MAX) } else { (-1e4, 3) }
}

#[test]
fn every_measure_is_the_oracles() {
    for precision in [Precision::F32, Precision::Bf16] {
        for scale in [1.0, 1.0 / 0.7] {
            let mut head = head(0, 370, loose);
            let op = head.log_prob(scale);
            head.case.check_in(op, precision);
            let op = LogProb { entropy: None, lse: None, ..head.log_prob(scale) };
            head.case.check_in(op, precision);
            let op = LogProb { full: None, ..head.log_prob(scale) };
            head.case.check_in(op, precision);
        }
    }
}

#[test]
fn gradients_of_every_term_are_the_oracles() {
    for precision in [Precision::F32, Precision::Bf16] {
        for first in [0, 384] {
            let mut head = head(first, first + 370, some_kept);
            let op = head.backward(1.25);
            head.case.check_in(op, precision);
            let op = LogProbBackward { entropy: None, ..head.backward(1.25) };
            head.case.check_in(op, precision);
            let op = LogProbBackward { full: None, ..head.backward(1.25) };
            head.case.check_in(op, precision);
        }
    }
}

#[test]
fn statistics_of_shares_are_the_oracles() {
    for first in [0, 384] {
        for (entropy, full) in [(true, true), (true, false), (false, true)] {
            let mut head = head(first, first + 370, some_kept);
            let op = head.stats(1.25, Measures { entropy, full });
            head.case.check(op);
        }
    }
}

#[test]
fn ranks_combine_every_statistic() {
    for (ranks, leaves) in [(1, 8), (4, 8), (4, 3)] {
        for (entropy, full) in [(true, true), (true, false), (false, true)] {
            let measures = Measures { entropy, full };
            let mut case = Case::new(live(9));
            let mut rng = Rng::new(ranks as u64);
            let stats = (0..ranks)
                .map(|rank| {
                    let mut numbers = |t: usize| {
                        let logit = if t % ranks == rank { -3.5 } else { f32::NEG_INFINITY };
                        let mut pair = || [rng.float() * 20.0, rng.float().abs() + 1.0, logit];
                        let mut row = pair().to_vec();
                        row.extend(entropy.then_some(-0.75));
                        row.extend(full.then(&mut pair).into_iter().flatten());
                        row
                    };
                    let data = Data::Floats((0..9).flat_map(&mut numbers).collect());
                    case.buffer(DType::F32, (9, measures.columns()), Axis::Tokens, data)
                })
                .collect();
            let targets = case.words(vec![4, INACTIVE, 9, 1, 2, 3, INACTIVE, 5, 6]);
            let mut out = || case.tokens(9, 1);
            let (logp, lse) = (out(), out());
            let entropy = entropy.then(&mut out);
            let full = full.then(|| (out(), out()));
            case.check(LogProbCombine { stats, leaves, targets, logp, lse, entropy, full });
        }
    }
}

#[test]
fn a_policy_that_keeps_all_gives_the_bytes_of_a_plain_one() {
    let mut head = head(0, 370, |_| (f32::NEG_INFINITY, u32::MAX));
    let truncated: Op = head.log_prob(1.25).into();
    let plain: Op =
        LogProb { policy: Policy { scale: 1.25, kept: None }, full: None, ..head.log_prob(1.25) }
            .into();
    for (_, mut cpu) in executors(Precision::F32) {
        let [a, b] = [&truncated, &plain].map(|op| head.case.run(op, &mut cpu).unwrap());
        let of = |bits: &[Vec<u32>], id: BufferId| bits[id.0 as usize].clone();
        let [logp, lse, entropy, full, full_lse] = head.outs;
        for id in [logp, lse, entropy] {
            assert_eq!(of(&a, id), of(&b, id));
        }
        assert_eq!(of(&a, full), of(&a, logp));
        assert_eq!(of(&a, full_lse), of(&a, lse));
    }
}

#[test]
fn a_dropped_target_is_refused() {
    let mut head = head(0, 370, |row| if row == 2 { (18.0, 383) } else { (-1e9, 3) });
    // Logits of 0, 3, … 18: the target of row 2 has one under the bound.
    head.case.set(head.x, Data::Floats(vec![1.0; ROWS * HIDDEN]));
    let op: Op = head.log_prob(1.0).into();
    for (settings, mut cpu) in executors(Precision::F32) {
        let error = head.case.run(&op, &mut cpu).expect_err("a dropped target");
        assert!(matches!(error, ExecError::TargetNotKept { row: 2, .. }), "{settings:?}: {error}");
    }
}
