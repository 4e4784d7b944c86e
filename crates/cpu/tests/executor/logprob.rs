//! Log-probs of chosen tokens: chunks, shares, padding, inactive rows and errors.

use std::ops::Range;

use arena::ExecError;
use cpu::Precision;
use program::ops::*;
use program::{Axis, BufferId, DType, Op};

use crate::support::{Case, Data, Rng, executors, live};

const INACTIVE: u32 = u32::MAX;

fn shard(first: usize, vocab: usize, leaves: &[usize]) -> VocabShard {
    let mut ranges: Vec<Range<usize>> = vec![];
    for tiles in leaves {
        let start = ranges.last().map_or(0, |last| last.end);
        ranges.push(start..start + tiles * 128);
    }
    let rows = ranges.last().unwrap().end;
    VocabShard { first, rows, vocab, leaves: ranges }
}

/// Targets of which about a third is inactive.
fn some_targets(rows: usize, vocab: usize) -> Vec<u32> {
    let mut rng = Rng::new(17);
    (0..rows).map(|_| if rng.below(3) == 0 { INACTIVE } else { rng.below(vocab) as u32 }).collect()
}

struct Head {
    case: Case,
    x: BufferId,
    weight: BufferId,
    targets: BufferId,
    coef: BufferId,
    dx: BufferId,
    logp: BufferId,
    lse: BufferId,
    stats: BufferId,
    dw: BufferId,
}

impl Head {
    fn new(targets: Vec<u32>, tokens: usize, dtype: DType, share: usize) -> Head {
        const HIDDEN: usize = 24;
        let rows = targets.len();
        let mut case = Case::new(live(tokens));
        Head {
            x: case.tokens(rows, HIDDEN),
            weight: case.weight(dtype, share, HIDDEN),
            targets: case.words(targets),
            coef: case.tokens(rows, 1),
            dx: case.tokens(rows, HIDDEN),
            logp: case.tokens(rows, 1),
            lse: case.buffer(DType::F32, (rows, 1), Axis::Tokens, Data::Floats(vec![3.25; rows])),
            stats: case.tokens(rows, 3),
            dw: case.fixed(share, HIDDEN),
            case,
        }
    }

    fn log_prob(&self, shard: &VocabShard, chunk: usize, grad: bool) -> LogProb {
        LogProb {
            x: self.x,
            weight: self.weight,
            targets: self.targets,
            policy: Policy::PLAIN,
            logp: self.logp,
            lse: Some(self.lse),
            entropy: None,
            full: None,
            shard: shard.clone(),
            chunk,
            grad: grad.then_some((self.coef, self.dx)),
        }
    }

    fn stats(&self, shard: &VocabShard, chunk: usize) -> LogProbStats {
        LogProbStats {
            x: self.x,
            weight: self.weight,
            targets: self.targets,
            policy: Policy::PLAIN,
            measures: Measures::default(),
            stats: self.stats,
            shard: shard.clone(),
            chunk,
        }
    }

    fn backward(&self, shard: &VocabShard, chunk: usize, dx: bool, dw: bool) -> LogProbBackward {
        LogProbBackward {
            x: self.x,
            weight: self.weight,
            targets: self.targets,
            policy: Policy::PLAIN,
            lse: self.lse,
            coef: self.coef,
            entropy: None,
            full: None,
            dx: dx.then_some(self.dx),
            dw: dw.then_some(self.dw),
            shard: shard.clone(),
            chunk,
        }
    }
}

#[test]
fn a_whole_vocabulary_with_padding() {
    for (dtype, precision) in [
        (DType::F32, Precision::F32),
        (DType::Bf16, Precision::F32),
        (DType::Bf16, Precision::Bf16),
        (DType::F32, Precision::Bf16Tiles),
        (DType::Bf16, Precision::Bf16Tiles),
    ] {
        for (rows, tokens, chunk) in [(1, 1, 64), (37, 33, 8), (37, 37, 5), (40, 39, 256)] {
            for (vocab, leaves) in [(1000, &[1, 2, 1, 3, 1][..]), (100, &[1]), (384, &[3])] {
                let shard = shard(0, vocab, leaves);
                let mut head = Head::new(some_targets(rows, vocab), tokens, dtype, shard.rows);
                for grad in [false, true] {
                    let op = head.log_prob(&shard, chunk, grad);
                    head.case.check_in(op, precision);
                }
                for (dx, dw) in [(true, false), (false, true), (true, true)] {
                    let op = head.backward(&shard, chunk, dx, dw);
                    head.case.check_in(op, precision);
                }
            }
        }
    }
}

#[test]
fn shares_of_a_vocabulary() {
    // Words end inside the second share; the third is padding only.
    for first in [0, 384, 768] {
        let shard = shard(first, 600, &[2, 1]);
        let mut head = Head::new(some_targets(29, 600), 27, DType::Bf16, shard.rows);
        let op = head.stats(&shard, 6);
        head.case.check(op);
        let op = head.backward(&shard, 6, true, true);
        head.case.check(op);
    }
}

/// No chunk size changes a bit, in either profile.
#[test]
fn chunks_change_nothing() {
    let shard = shard(0, 300, &[1, 1, 1]);
    for precision in [Precision::F32, Precision::Bf16, Precision::Bf16Tiles] {
        let mut head = Head::new(some_targets(50, 300), 47, DType::Bf16, shard.rows);
        for (settings, mut cpu) in executors(precision) {
            let mut first: [Option<Vec<Vec<u32>>>; 2] = [None, None];
            for chunk in [1, 2, 3, 7, 16, 49, 64] {
                let forward: Op = head.log_prob(&shard, chunk, true).into();
                let backward = head.backward(&shard, chunk, true, true).into();
                for (op, first) in [forward, backward].iter().zip(&mut first) {
                    let found = head.case.run(op, &mut cpu).unwrap();
                    let first = first.get_or_insert_with(|| found.clone());
                    assert!(*first == found, "{}, chunk {chunk}, {settings:?}", op.name());
                }
            }
        }
    }
}

#[test]
fn nothing_active() {
    let shard = shard(0, 200, &[1, 1]);
    let mut head = Head::new(vec![INACTIVE; 9], 7, DType::F32, shard.rows);
    let op = head.log_prob(&shard, 4, true);
    head.case.check(op);
    let op = head.stats(&shard, 4);
    head.case.check(op);
    let op = head.backward(&shard, 4, true, true);
    head.case.check(op);
}

/// Logits of padding rows may be anything, NaN included: they change nothing.
#[test]
fn padding_changes_nothing() {
    let shard = shard(0, 130, &[1, 1]);
    let mut head = Head::new(some_targets(9, 130), 9, DType::F32, shard.rows);
    let mut rng = Rng::new(4);
    let mut weight = |pad: f32| {
        let word = |_| (0..24).map(|_| rng.float()).collect::<Vec<_>>();
        let words: Vec<f32> = (0..130).flat_map(word).collect();
        words.into_iter().chain(vec![pad; (256 - 130) * 24]).collect::<Vec<_>>()
    };
    let plain = weight(0.0);
    let mut found = vec![];
    for pad in [0.0, 1e4, f32::NAN] {
        let mut values = plain.clone();
        values[130 * 24..].fill(pad);
        head.case.set(head.weight, Data::Floats(values));
        let op = head.log_prob(&shard, 4, false).into();
        for (_, mut cpu) in executors(Precision::F32) {
            let mut bits = head.case.run(&op, &mut cpu).unwrap();
            bits.remove(head.weight.0 as usize);
            found.push(bits);
        }
    }
    assert!(found.iter().all(|bits| *bits == found[0]));
}

#[test]
fn shares_combine_in_the_tree() {
    for (ranks, leaves) in [(1, 8), (2, 8), (4, 8), (8, 8), (2, 3), (4, 3), (8, 5)] {
        let targets = some_targets(23, 50);
        let mut case = Case::new(live(21));
        let mut rng = Rng::new(ranks as u64);
        let stats = (0..ranks)
            .map(|rank| {
                let row = |t: usize| {
                    let owns = t % ranks == rank;
                    [
                        rng.float() * 20.0,
                        rng.float().abs() + 1.0,
                        if owns { -3.5 } else { f32::NEG_INFINITY },
                    ]
                };
                let data = Data::Floats((0..23).flat_map(row).collect());
                case.buffer(DType::F32, (23, 3), Axis::Tokens, data)
            })
            .collect();
        let targets = case.words(targets);
        let (logp, lse) = (case.tokens(23, 1), case.tokens(23, 1));
        let (entropy, full) = (None, None);
        case.check(LogProbCombine { stats, leaves, targets, logp, lse, entropy, full });
    }
}

fn fails(
    head: &mut Head,
    op: impl Into<Op>,
    precision: Precision,
    is: impl Fn(&ExecError) -> bool,
) {
    let op = op.into();
    for (settings, mut cpu) in executors(precision) {
        let error = head.case.run(&op, &mut cpu).expect_err("a bad input");
        assert!(is(&error), "{settings:?}: {error}");
    }
}

#[test]
fn a_target_outside_the_vocabulary_is_refused() {
    let shard = shard(0, 100, &[1]);
    let mut head = Head::new(vec![4, INACTIVE, 100, 101], 4, DType::F32, shard.rows);
    let expected = ExecError::TargetOutsideVocabulary { row: 2, id: 100, vocab: 100 };
    let is = |error: &ExecError| *error == expected;
    let op = head.log_prob(&shard, 4, true);
    fails(&mut head, op, Precision::F32, is);
    let op = head.stats(&shard, 4);
    fails(&mut head, op, Precision::F32, is);
    let op = head.backward(&shard, 4, true, false);
    fails(&mut head, op, Precision::F32, is);
}

#[test]
fn a_log_prob_that_is_not_finite_is_an_error() {
    let shard = shard(0, 100, &[1]);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut head = Head::new(vec![4, INACTIVE, 9, 9], 4, DType::F32, shard.rows);
        // Row 1 is inactive: what it holds does not matter. Row 3 is not the first.
        let mut x = vec![0.5; 4 * 24];
        x[24] = bad;
        x[2 * 24 + 5] = bad;
        x[3 * 24 + 5] = bad;
        head.case.set(head.x, Data::Floats(x));
        for chunk in [1, 2, 64] {
            let op = head.log_prob(&shard, chunk, true);
            fails(
                &mut head,
                op,
                Precision::F32,
                |error| matches!(error, ExecError::NonFiniteLogProb { row: 2, id: 9, value } if value.is_nan()),
            );
        }
    }
}
