use crate::numeric::{assert_close, derivative, dot, values, wide};
use crate::rig::{Rig, bits};
use arena::ExecError;
use oracle::Precision;
use program::Cut;
use program::ops::{
    LogProb, LogProbBackward, LogProbCombine, LogProbStats, Measures, Policy, VocabShard,
};
use program::topology::padded_vocab;

const HIDDEN: usize = 5;
const NONE: u32 = u32::MAX;

/// A head over `vocab` words, padded and cut for `width`, and some tokens.
struct Case {
    vocab: usize,
    cut: Cut,
    x: Vec<f32>,
    /// Of the padded vocabulary.
    weight: Vec<f32>,
    targets: Vec<u32>,
    coef: Vec<f32>,
}

impl Case {
    fn new(vocab: usize, width: usize, targets: &[u32]) -> Case {
        let rows = padded_vocab(vocab, width);
        let mut weight = values(2, rows * HIDDEN);
        weight[vocab * HIDDEN..].fill(0.0);
        Case {
            vocab,
            cut: Cut::new(rows / 128, 128, width),
            x: values(1, targets.len() * HIDDEN),
            weight,
            targets: targets.to_vec(),
            coef: values(3, targets.len()),
        }
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

    fn share(&self, shard: &VocabShard) -> &[f32] {
        &self.weight[shard.first * HIDDEN..(shard.first + shard.rows) * HIDDEN]
    }

    fn op(&self, rig: &mut Rig) -> LogProb {
        let tokens = self.targets.len();
        let (x, weight) = (rig.floats(HIDDEN, &self.x), rig.floats(HIDDEN, &self.weight));
        let targets = rig.words(1, &self.targets);
        let (logp, lse) = (rig.out(tokens, 1), Some(rig.out(tokens, 1)));
        let grad = Some((rig.floats(1, &self.coef), rig.out(tokens, HIDDEN)));
        LogProb {
            x,
            weight,
            targets,
            policy: Policy::PLAIN,
            logp,
            lse,
            entropy: None,
            full: None,
            shard: self.shard(1, 0),
            chunk: 2,
            grad,
        }
    }

    /// Log-probs, log Σexp and the input's gradient on one rank.
    fn whole(&self, precision: Precision) -> [Vec<f32>; 3] {
        let mut rig = Rig::new();
        let op = self.op(&mut rig);
        let outs = [op.logp, op.lse.unwrap(), op.grad.unwrap().1];
        let ran = rig.run_in(precision, op);
        outs.map(|id| ran.floats(id))
    }

    fn error(&self) -> ExecError {
        let mut rig = Rig::new();
        let op = self.op(&mut rig);
        rig.error(op)
    }

    fn stats(&self, precision: Precision, ranks: usize, rank: usize) -> Vec<f32> {
        let shard = self.shard(ranks, rank);
        let mut rig = Rig::new();
        let (x, weight) = (rig.floats(HIDDEN, &self.x), rig.floats(HIDDEN, self.share(&shard)));
        let targets = rig.words(1, &self.targets);
        let stats = rig.out(self.targets.len(), 3);
        let (policy, measures) = (Policy::PLAIN, Measures::default());
        let op = LogProbStats { x, weight, targets, policy, measures, stats, shard, chunk: 2 };
        let ran = rig.run_in(precision, op);
        ran.floats(stats)
    }

    /// Log-probs and log Σexp finished from the stats of ranks.
    fn combined(&self, precision: Precision, ranks: usize) -> [Vec<f32>; 2] {
        let mut rig = Rig::new();
        let stats = (0..ranks).map(|r| rig.floats(3, &self.stats(precision, ranks, r))).collect();
        let targets = rig.words(1, &self.targets);
        let (logp, lse) = (rig.out(self.targets.len(), 1), rig.out(self.targets.len(), 1));
        let leaves = self.cut.leaves();
        let op = LogProbCombine { stats, leaves, targets, logp, lse, entropy: None, full: None };
        let ran = rig.run(op);
        [ran.floats(logp), ran.floats(lse)]
    }

    /// `dx` and `dw` of one rank's share.
    fn backward(&self, precision: Precision, ranks: usize, rank: usize) -> [Vec<f32>; 2] {
        let [_, lse, _] = self.whole(precision);
        let shard = self.shard(ranks, rank);
        let mut rig = Rig::new();
        let op = LogProbBackward {
            x: rig.floats(HIDDEN, &self.x),
            weight: rig.floats(HIDDEN, self.share(&shard)),
            targets: rig.words(1, &self.targets),
            policy: Policy::PLAIN,
            lse: rig.floats(1, &lse),
            coef: rig.floats(1, &self.coef),
            entropy: None,
            full: None,
            dx: Some(rig.out(self.targets.len(), HIDDEN)),
            dw: Some(rig.out(shard.rows, HIDDEN)),
            shard,
            chunk: 2,
        };
        let outs = [op.dx.unwrap(), op.dw.unwrap()];
        let ran = rig.run_in(precision, op);
        outs.map(|id| ran.floats(id))
    }
}

/// Log-probs in f64, 0 where inactive.
fn textbook(x: &[f64], weight: &[f64], vocab: usize, targets: &[u32]) -> Vec<f64> {
    let tokens = x.chunks(HIDDEN).zip(targets);
    tokens
        .map(|(x, &target)| {
            if target == NONE {
                return 0.0;
            }
            let logits: Vec<f64> = weight.chunks(HIDDEN).take(vocab).map(|w| dot(x, w)).collect();
            logits[target as usize] - logits.iter().map(|l| l.exp()).sum::<f64>().ln()
        })
        .collect()
}

#[test]
fn log_probs_are_those_of_the_soft_max() {
    // Tiles of 128 words, leaves of three tiles, 43 of padding.
    let case = Case::new(725, 2, &[0, 724, NONE, 400]);
    let [logp, _, _] = case.whole(Precision::F32);
    assert_close(&logp, &textbook(&wide(&case.x), &wide(&case.weight), 725, &case.targets), 1e-6);
    // Equal logits: −ln 725.
    let mut flat = Case::new(725, 2, &[7]);
    flat.x.fill(0.0);
    assert_close(&flat.whole(Precision::F32)[0], &[-(725f64.ln())], 1e-7);
}

#[test]
fn gradients_are_the_derivatives() {
    let case = Case::new(300, 2, &[0, 299, NONE, 150]);
    let (xw, ww, coef) = (wide(&case.x), wide(&case.weight), wide(&case.coef));
    let loss = |x: &[f64], w: &[f64]| dot(&textbook(x, w, 300, &case.targets), &coef);
    let [_, _, dx] = case.whole(Precision::F32);
    assert_close(&dx, &derivative(&case.x, |x| loss(x, &ww)), 1e-5);
    let [_, dw] = case.backward(Precision::F32, 1, 0);
    assert_close(&dw, &derivative(&case.weight, |w| loss(&xw, w)), 1e-5);
}

#[test]
fn the_backward_pass_alone_gives_the_bytes_of_both_at_once() {
    for precision in [Precision::F32, Precision::Bf16] {
        let case = Case::new(300, 2, &[0, 299, NONE, 150]);
        let [_, _, dx] = case.whole(precision);
        assert_eq!(bits(&case.backward(precision, 1, 0)[0]), bits(&dx));
    }
}

#[test]
fn ranks_finish_the_tree_to_the_bytes_of_one() {
    for precision in [Precision::F32, Precision::Bf16] {
        // Eight leaves on 2, 4, 8 ranks; three leaves on 2 and on 4, where two ranks replicate one.
        for (width, degrees) in [(8, [2, 4, 8].as_slice()), (3, &[2, 4])] {
            let case = Case::new(1000, width, &[0, 999, NONE, 500, 130]);
            let [logp, lse, _] = case.whole(precision);
            for &ranks in degrees {
                let [of_ranks, lse_of_ranks] = case.combined(precision, ranks);
                assert_eq!(bits(&of_ranks), bits(&logp), "width {width}, {ranks} ranks");
                assert_eq!(bits(&lse_of_ranks), bits(&lse), "width {width}, {ranks} ranks");
            }
        }
    }
}

#[test]
fn shares_of_the_gradients_are_subtrees_and_slices() {
    let case = Case::new(1000, 8, &[0, 999, NONE, 500, 130]);
    let [dx, dw] = case.backward(Precision::F32, 1, 0);
    let [left, right] = [0, 1].map(|rank| case.backward(Precision::F32, 2, rank));
    let sum: Vec<f32> = left[0].iter().zip(&right[0]).map(|(a, b)| a + b).collect();
    assert_eq!(bits(&sum), bits(&dx));
    assert_eq!(bits(&[&left[1][..], &right[1]].concat()), bits(&dw));
}

#[test]
fn padding_changes_nothing() {
    let case = Case::new(300, 2, &[0, 299, NONE, 150]);
    let mut padded = Case::new(300, 2, &[0, 299, NONE, 150]);
    // Rows of padding that give logits of 1e4 for the first token.
    let first = &case.x[..HIDDEN];
    let square: f32 = first.iter().map(|x| x * x).sum();
    for row in padded.weight.chunks_mut(HIDDEN).skip(300) {
        row.iter_mut().zip(first).for_each(|(w, x)| *w = x * 1e4 / square);
    }
    let (clean, dirty) = (case.whole(Precision::F32), padded.whole(Precision::F32));
    for (clean, dirty) in clean.iter().zip(&dirty) {
        assert_eq!(bits(clean), bits(dirty));
    }
    let [_, dw] = padded.backward(Precision::F32, 1, 0);
    assert!(bits(&dw[300 * HIDDEN..]).iter().all(|&x| x == 0), "padding has no gradient");
}

#[test]
fn an_inactive_row_is_exactly_zero_and_never_read() {
    let mut case = Case::new(300, 2, &[5, NONE, 7]);
    let clean = case.whole(Precision::F32);
    case.x[HIDDEN..2 * HIDDEN].fill(f32::NAN);
    case.coef[1] = f32::NAN;
    let [logp, lse, dx] = case.whole(Precision::F32);
    assert_eq!((logp[1].to_bits(), lse[1].to_bits()), (0, 0));
    assert!(bits(&dx[HIDDEN..2 * HIDDEN]).iter().all(|&x| x == 0));
    assert_eq!(bits(&logp), bits(&clean[0]));
    assert_eq!(bits(&dx), bits(&clean[2]));
    assert_eq!(case.stats(Precision::F32, 1, 0)[3..6], [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY]);
}

#[test]
fn a_row_is_the_same_alone_and_among_others() {
    let case = Case::new(300, 2, &[0, 299, NONE, 150]);
    let mut alone = Case::new(300, 2, &[150]);
    alone.x = case.x[3 * HIDDEN..].to_vec();
    alone.coef = case.coef[3..].to_vec();
    let (all, one) = (case.whole(Precision::F32), alone.whole(Precision::F32));
    assert_eq!(all[0][3].to_bits(), one[0][0].to_bits());
    assert_eq!(bits(&all[2][3 * HIDDEN..]), bits(&one[2]));
}

#[test]
fn targets_and_values_that_cannot_be_are_refused() {
    // 300 is a row of padding, not a word.
    let outside = Case::new(300, 2, &[1, 300]);
    assert_eq!(outside.error(), ExecError::TargetOutsideVocabulary { row: 1, id: 300, vocab: 300 });
    let mut broken = Case::new(300, 2, &[1, 2]);
    broken.weight[9 * HIDDEN] = f32::NAN;
    let error = broken.error();
    assert!(matches!(error, ExecError::NonFiniteLogProb { row: 0, id: 1, .. }), "{error}");
    // A stat that is not finite is refused where the tree is finished.
    let mut rig = Rig::new();
    let stats = vec![rig.floats(3, &[1.0, f32::NAN, 0.5])];
    let (targets, logp, lse) = (rig.words(1, &[4]), rig.out(1, 1), rig.out(1, 1));
    let op = LogProbCombine { stats, leaves: 1, targets, logp, lse, entropy: None, full: None };
    let error = rig.error(op);
    assert!(matches!(error, ExecError::NonFiniteLogProb { row: 0, id: 4, .. }), "{error}");
}
