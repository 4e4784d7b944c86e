//! Token log-probs of a sample.

use super::rig::{Case, LONG, Model, Profile, Way, bits, cases, pack};
use engine::{Engine, Job, Sequence};
use families::Train;
use program::DType;

fn engine(case: Case, way: Way, tokens: usize, segments: usize) -> Engine<'static> {
    let job = Job { score: Some((tokens, segments)), ..Job::default() };
    case.engine(Train::Nothing, job, way)
}

/// Each sample scored alone by the oracle, in a program of exactly its size.
fn alone(case: Case, samples: &[Sequence]) -> Vec<Vec<u32>> {
    let score = |i: usize| {
        let mut engine = engine(case, Way::Oracle, samples[i].ids.len(), 1);
        bits(&engine.score(&pack(samples, &[i])).unwrap())
    };
    let scores: Vec<_> = (0..samples.len()).map(score).collect();
    for (sample, score) in samples.iter().zip(&scores) {
        let (last, rest) = score.split_last().unwrap();
        assert_eq!(*last, 0, "the last token has no target: +0");
        assert!(rest.iter().all(|&b| f32::from_bits(b) < 0.0), "log-probs are negative");
        assert_eq!(sample.active(), rest.len());
    }
    scores
}

/// Scores arrangements of the samples and compares each sample's part with its bytes alone.
fn same_in_every_arrangement(
    engine: &mut Engine<'_>,
    samples: &[Sequence],
    alone: &[Vec<u32>],
    orders: &[&[usize]],
    what: &str,
) {
    for order in orders {
        let logp = bits(&engine.score(&pack(samples, order)).unwrap());
        let mut row = 0;
        for &i in *order {
            let end = row + samples[i].ids.len();
            assert!(logp[row..end] == alone[i], "{what}, order {order:?}: sample {i} differs");
            row = end;
        }
    }
}

#[test]
fn alone_packed_reordered_and_in_larger_programs() {
    let orders: [&[usize]; 11] = [
        &[0, 1, 2],
        &[0, 2, 1],
        &[1, 0, 2],
        &[1, 2, 0],
        &[2, 0, 1],
        &[2, 1, 0],
        &[0],
        &[1],
        &[2],
        &[1, 1, 0],
        &[0, 1, 0],
    ];
    for case in cases() {
        let samples = case.samples();
        let alone = alone(case, &samples);
        let tokens: usize = samples.iter().map(|s| s.ids.len()).sum();
        for way in Way::all() {
            let what = format!("{case:?} {way:?}");
            for (i, sample) in samples.iter().enumerate() {
                let mut exact = engine(case, way, sample.ids.len(), 1);
                same_in_every_arrangement(&mut exact, &samples, &alone, &[&[i]], &what);
            }
            for (tokens, segments) in [(tokens, 3), (3 * tokens + 1, 7)] {
                let mut engine = engine(case, way, tokens, segments);
                let what = format!("{what} in a program of {tokens} tokens");
                same_in_every_arrangement(&mut engine, &samples, &alone, &orders, &what);
            }
        }
    }
}

#[test]
fn over_more_than_one_span_of_keys() {
    for profile in Profile::OF_LONG {
        let case = Case { model: Model::Long, weights: DType::F32, profile };
        let samples = case.samples();
        let alone = alone(case, &samples);
        for way in Way::some() {
            let mut engine = engine(case, way, LONG + 61, 3);
            let orders: [&[usize]; 2] = [&[0], &[1, 0, 1]];
            let what = format!("{case:?} {way:?}");
            same_in_every_arrangement(&mut engine, &samples, &alone, &orders, &what);
        }
    }
}

/// The proofs can fail: what is part of the identity changes bits.
#[test]
fn another_profile_or_storage_has_other_bits() {
    let case = cases()[0];
    let samples = case.samples();
    let others = [
        Case { profile: Profile::Bf16, ..case },
        Case { profile: Profile::Bf16Tiles, ..case },
        Case { weights: DType::Bf16, ..case },
    ];
    let ours = alone(case, &samples);
    for case in others {
        assert_ne!(ours, alone(case, &samples), "{case:?}");
    }
}
