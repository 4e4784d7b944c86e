//! The policy log-prob against the textbook: temperature, kept candidates, entropy, the whole vocabulary beside.

use crate::numeric::{assert_close, derivative, wide};
use crate::rig::{Rig, bits};
use arena::ExecError;
use canon::policy::Kept;
use oracle::Precision;
use program::ops::VocabShard;
use program::ops::{LogProb, LogProbBackward, LogProbCombine, LogProbStats, Measures, Policy};
use program::topology::{Cut, padded_vocab};

const NONE: u32 = u32::MAX;

/// Hidden vectors of two numbers over `vocab` words.
struct Case {
    vocab: usize,
    cut: Cut,
    x: Vec<f32>,
    weight: Vec<f32>,
    targets: Vec<u32>,
    kept: Vec<Kept>,
    scale: f32,
    /// Of log-probs, entropies, whole log-probs.
    coefs: [Vec<f32>; 3],
}

const HIDDEN: usize = 2;

impl Case {
    fn new(vocab: usize, targets: &[u32], kept: &[Kept]) -> Case {
        let rows = padded_vocab(vocab, 8);
        let number = |i: usize| ((i * 7919 + 13) % 101) as f32 / 25.0 - 2.0;
        let mut weight: Vec<f32> = (0..rows * HIDDEN).map(number).collect();
        // Logits of padding are 1e4 and more where the hidden vector is positive.
        weight[vocab * HIDDEN..].fill(1e4);
        Case {
            vocab,
            cut: Cut::new(rows / 128, 128, 8),
            x: (0..targets.len() * HIDDEN).map(|i| number(i + 50)).collect(),
            weight,
            targets: targets.to_vec(),
            kept: kept.to_vec(),
            scale: 1.0,
            coefs: [3, 5, 7].map(|k| (0..targets.len()).map(|i| number(k * i + k)).collect()),
        }
    }

    fn policy(&self, rig: &mut Rig) -> Policy {
        let logits: Vec<f32> = self.kept.iter().map(|k| k.logit).collect();
        let ids: Vec<u32> = self.kept.iter().map(|k| k.id).collect();
        Policy { scale: self.scale, kept: Some((rig.floats(1, &logits), rig.words(1, &ids))) }
    }

    fn shard(&self, ranks: usize, rank: usize) -> VocabShard {
        let owned = self.cut.owned(ranks, rank);
        VocabShard {
            first: owned.start,
            rows: owned.len(),
            vocab: self.vocab,
            leaves: self.cut.local_leaves(ranks, rank),
        }
    }

    fn op(&self, rig: &mut Rig) -> LogProb {
        let tokens = self.targets.len();
        let out = |rig: &mut Rig| rig.out(tokens, 1);
        LogProb {
            x: rig.floats(HIDDEN, &self.x),
            weight: rig.floats(HIDDEN, &self.weight),
            targets: rig.words(1, &self.targets),
            policy: self.policy(rig),
            logp: out(rig),
            lse: Some(out(rig)),
            entropy: Some(out(rig)),
            full: Some((out(rig), out(rig))),
            shard: self.shard(1, 0),
            chunk: 2,
            grad: None,
        }
    }

    /// Log-probs, lse, entropies, whole log-probs and their lse.
    fn run(&self) -> [Vec<f32>; 5] {
        let mut rig = Rig::new();
        let op = self.op(&mut rig);
        let (full, full_lse) = op.full.unwrap();
        let outs = [op.logp, op.lse.unwrap(), op.entropy.unwrap(), full, full_lse];
        let ran = rig.run_in(Precision::F32, op);
        outs.map(|id| ran.floats(id))
    }

    /// The same from the statistics of `ranks`.
    fn combined(&self, ranks: usize) -> [Vec<f32>; 5] {
        let measures = Measures { entropy: true, full: true };
        let (tokens, columns) = (self.targets.len(), measures.columns());
        let of_rank = |rank: usize| {
            let shard = self.shard(ranks, rank);
            let share = &self.weight[shard.first * HIDDEN..(shard.first + shard.rows) * HIDDEN];
            let mut rig = Rig::new();
            let (x, weight) = (rig.floats(HIDDEN, &self.x), rig.floats(HIDDEN, share));
            let (targets, policy) = (rig.words(1, &self.targets), self.policy(&mut rig));
            let stats = rig.out(tokens, columns);
            let op = LogProbStats { x, weight, targets, policy, measures, stats, shard, chunk: 2 };
            rig.run_in(Precision::F32, op).floats(stats)
        };
        let mut rig = Rig::new();
        let stats = (0..ranks).map(|rank| rig.floats(columns, &of_rank(rank))).collect();
        let targets = rig.words(1, &self.targets);
        let [logp, lse, entropy, full, full_lse] = [(); 5].map(|()| rig.out(tokens, 1));
        let leaves = self.cut.leaves();
        let (entropy_out, full_out) = (Some(entropy), Some((full, full_lse)));
        let op = LogProbCombine {
            stats,
            leaves,
            targets,
            logp,
            lse,
            entropy: entropy_out,
            full: full_out,
        };
        let ran = rig.run(op);
        [logp, lse, entropy, full, full_lse].map(|id| ran.floats(id))
    }

    /// `dx` and `dw`.
    fn backward(&self) -> [Vec<f32>; 2] {
        let [_, lse, entropy, _, full_lse] = self.run();
        let mut rig = Rig::new();
        let tokens = self.targets.len();
        let op = LogProbBackward {
            x: rig.floats(HIDDEN, &self.x),
            weight: rig.floats(HIDDEN, &self.weight),
            targets: rig.words(1, &self.targets),
            policy: self.policy(&mut rig),
            lse: rig.floats(1, &lse),
            coef: rig.floats(1, &self.coefs[0]),
            entropy: Some((rig.floats(1, &entropy), rig.floats(1, &self.coefs[1]))),
            full: Some((rig.floats(1, &full_lse), rig.floats(1, &self.coefs[2]))),
            dx: Some(rig.out(tokens, HIDDEN)),
            dw: Some(rig.out(self.shard(1, 0).rows, HIDDEN)),
            shard: self.shard(1, 0),
            chunk: 2,
        };
        let outs = [op.dx.unwrap(), op.dw.unwrap()];
        let ran = rig.run(op);
        outs.map(|id| ran.floats(id))
    }

    /// Log-probs, entropies and whole log-probs in f64, the kept set that of the f32 logits.
    fn textbook(&self, x: &[f64], weight: &[f64]) -> [Vec<f64>; 3] {
        let mut found = [const { Vec::new() }; 3];
        for (t, &target) in self.targets.iter().enumerate() {
            if target == NONE {
                found.iter_mut().for_each(|f| f.push(0.0));
                continue;
            }
            let logit = |x: &[f64], w: &[f64], j: usize| {
                f64::from(self.scale) * (x[2 * t] * w[2 * j] + x[2 * t + 1] * w[2 * j + 1])
            };
            let z: Vec<f64> = (0..self.vocab).map(|j| logit(x, weight, j)).collect();
            let kept = |j: &usize| {
                let z = logit(&wide(&self.x), &wide(&self.weight), *j);
                self.kept[t].keeps(z as f32, *j as u32)
            };
            let lse = |of: &[usize]| of.iter().map(|&j| z[j].exp()).sum::<f64>().ln();
            let all: Vec<usize> = (0..self.vocab).collect();
            let some: Vec<usize> = all.iter().copied().filter(kept).collect();
            let log = lse(&some);
            found[0].push(z[target as usize] - log);
            found[1].push(-some.iter().map(|&j| (z[j] - log).exp() * (z[j] - log)).sum::<f64>());
            found[2].push(z[target as usize] - lse(&all));
        }
        found
    }
}

fn mixed() -> Case {
    let kept = [
        Kept::ALL,
        Kept { logit: 0.5, id: 9 },
        Kept::ALL,
        Kept { logit: -1.0, id: 100 },
        Kept { logit: -3.0, id: 0 },
    ];
    let mut case = Case::new(300, &[7, 0, NONE, 0, 0], &kept);
    case.scale = 1.25;
    // A target that each bound keeps: the word of the greatest logit.
    for t in [1, 3, 4] {
        let logit = |j: &usize| {
            let [x, w] = [&case.x[2 * t..], &case.weight[2 * j..]];
            x[0] * w[0] + x[1] * w[1]
        };
        let best = (0..300).max_by(|a, b| logit(a).total_cmp(&logit(b))).unwrap();
        case.targets[t] = best as u32;
    }
    case
}

#[test]
fn top_p_renormalises_the_policy_and_not_the_vocabulary() {
    let p = [0.5f32, 0.3, 0.15, 0.05];
    let last = Kept { logit: 0.3f32.ln(), id: 1 };
    let mut case = Case::new(4, &[0], &[last]);
    case.x = vec![1.0, 0.0];
    for (word, p) in p.iter().enumerate() {
        case.weight[2 * word] = p.ln();
    }
    let [logp, _, entropy, full, _] = case.run();
    assert_close(&logp, &[-0.470_003_629], 2e-7);
    assert_close(&full, &[-std::f64::consts::LN_2], 2e-7);
    let (a, b) = (0.625f64, 0.375f64);
    assert_close(&entropy, &[-(a * a.ln() + b * b.ln())], 1e-6);
}

#[test]
fn measures_are_the_textbooks() {
    let case = mixed();
    let [logp, _, entropy, full, _] = case.run();
    let expected = case.textbook(&wide(&case.x), &wide(&case.weight));
    for (found, expected) in [&logp, &entropy, &full].iter().zip(&expected) {
        assert_close(found, expected, 2e-6);
    }
    assert!(logp[1] > full[1], "fewer candidates share the probability");
}

#[test]
fn gradients_are_the_derivatives() {
    let case = mixed();
    let (xw, ww) = (wide(&case.x), wide(&case.weight));
    let loss = |x: &[f64], w: &[f64]| -> f64 {
        let found = case.textbook(x, w);
        let terms = found.iter().zip(&case.coefs);
        terms
            .flat_map(|(values, coefs)| values.iter().zip(coefs))
            .map(|(value, &coef)| value * f64::from(coef))
            .sum()
    };
    let [dx, dw] = case.backward();
    assert_close(&dx, &derivative(&case.x, |x| loss(x, &ww)), 1e-4);
    assert_close(&dw[..600], &derivative(&case.weight[..600], |w| loss(&xw, w)), 1e-4);
    assert!(bits(&dw[600..]).iter().all(|&x| x == 0), "padding has no gradient");
}

#[test]
fn ranks_finish_every_measure_to_the_bytes_of_one() {
    let case = mixed();
    let whole = case.run();
    for ranks in [2, 4, 8] {
        for (found, expected) in case.combined(ranks).iter().zip(&whole) {
            assert_eq!(bits(found), bits(expected), "{ranks} ranks");
        }
    }
}

#[test]
fn a_target_that_was_dropped_is_refused() {
    let mut case = mixed();
    case.kept[3] = Kept { logit: 1e6, id: 0 };
    // Only a dropped target is refused so: with nothing kept there is no number at all.
    let best = case.targets[3];
    let logit =
        |j: usize| 1.25 * (case.x[6] * case.weight[2 * j] + case.x[7] * case.weight[2 * j + 1]);
    case.kept[3] = Kept { logit: logit(best as usize) * 0.99, id: 0 };
    case.targets[3] = (best + 1) % 300;
    let mut rig = Rig::new();
    let op = case.op(&mut rig);
    let error = rig.error(op);
    assert_eq!(error, ExecError::TargetNotKept { row: 3, id: case.targets[3] });
}
