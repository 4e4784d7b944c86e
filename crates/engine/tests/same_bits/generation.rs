//! Logits over the cache: prefill, chunked prefill, decode; and the log-probs that follow from them.

use super::rig::{Case, LONG, Model, Profile, Way, bits, cases, pack};
use canon::log_sum_exp::LogSumExp;
use engine::{Advance, Engine, GenerateShape, Job, Sequence};
use families::Train;
use program::topology::VOCAB_TILE;
use program::{DType, Topology};

fn engine(case: Case, way: Way, shape: GenerateShape) -> Engine<'static> {
    let job = Job { generate: Some(shape), ..Job::default() };
    case.engine(Train::Nothing, job, way)
}

/// A piece of the sequence that has the pages of `slot` to itself.
fn piece<'a>(pages: &'a [u32], past: usize, ids: &'a [u32]) -> Advance<'a> {
    Advance { pages, past, ids, logits: true }
}

fn shape(engine: &Engine<'_>) -> GenerateShape {
    engine.blueprint.job.generate.unwrap()
}

/// Logits after the last token, as bits, of `ids` run from nothing in one piece.
fn uncached(engine: &mut Engine<'_>, ids: &[u32]) -> Vec<u32> {
    let pages = shape(engine).slot(0);
    bits(&engine.advance(&[piece(&pages, 0, ids)]).unwrap()[0])
}

/// Logits after every token of every sample: the oracle, one prefill for each, no cache carried over.
fn references(case: Case, samples: &[Sequence]) -> Vec<Vec<Vec<u32>>> {
    let of = |sample: &Sequence| -> Vec<Vec<u32>> {
        let length = sample.ids.len();
        let shape = GenerateShape::full(1, length, length);
        let mut engine = engine(case, Way::Oracle, shape);
        (1..=length).map(|end| uncached(&mut engine, &sample.ids[..end])).collect()
    };
    samples.iter().map(of).collect()
}

/// Appends `ids[past..end]` of a sample to its slot and compares the logits after the last.
struct Cached<'e, 's> {
    engine: &'e mut Engine<'static>,
    samples: &'s [Sequence],
    references: &'s [Vec<Vec<u32>>],
    what: String,
}

impl Cached<'_, '_> {
    /// `(sample, slot, past, end)` of each sequence, in one call.
    fn advance(&mut self, work: &[(usize, usize, usize, usize)]) {
        let shape = shape(self.engine);
        let pages: Vec<Vec<u32>> = work.iter().map(|&(_, slot, ..)| shape.slot(slot)).collect();
        let advances: Vec<Advance<'_>> = work
            .iter()
            .zip(&pages)
            .map(|(&(sample, _, past, end), pages)| {
                piece(pages, past, &self.samples[sample].ids[past..end])
            })
            .collect();
        let rows = self.engine.advance(&advances).unwrap();
        assert_eq!(rows.len(), work.len());
        for (row, &(sample, slot, past, end)) in rows.iter().zip(work) {
            assert!(
                bits(row) == self.references[sample][end - 1],
                "{}: sample {sample} in slot {slot}, tokens {past}..{end}",
                self.what
            );
        }
    }
}

#[test]
fn prefill_in_chunks_of_any_size_then_decode_alone() {
    for case in cases() {
        let samples = case.samples();
        let references = references(case, &samples);
        let (sample, prompt) = (2, 16);
        let length = samples[sample].ids.len();
        for way in Way::all() {
            for prefill in [1, 3, 7, prompt, 64] {
                let shape = GenerateShape::full(1, length, prefill);
                let mut engine = engine(case, way, shape);
                let what = format!("{case:?} {way:?} chunks of {prefill}");
                let mut cached = Cached {
                    engine: &mut engine,
                    samples: &samples,
                    references: &references,
                    what,
                };
                cached.advance(&[(sample, 0, 0, prompt)]);
                for past in prompt..length {
                    cached.advance(&[(sample, 0, past, past + 1)]);
                }
                // The same slot again, over what the first pass left, in pieces of unequal size.
                for piece in [(0, 5), (5, 6), (6, 20), (20, length)] {
                    cached.advance(&[(sample, 0, piece.0, piece.1)]);
                }
            }
        }
    }
}

#[test]
fn decoding_beside_other_sequences() {
    for case in cases() {
        let samples = case.samples();
        let references = references(case, &samples);
        let length = samples.iter().map(|s| s.ids.len()).max().unwrap();
        for way in Way::all() {
            let shape = GenerateShape::full(4, length, 3);
            let mut engine = engine(case, way, shape);
            let what = format!("{case:?} {way:?}");
            let mut cached =
                Cached { engine: &mut engine, samples: &samples, references: &references, what };
            // (sample, slot, tokens so far): one sample twice, slots out of order.
            let mut open = vec![(2, 3, 4), (0, 1, 9), (1, 0, 1), (2, 2, 20)];
            let prompts: Vec<_> = open.iter().map(|&(i, slot, past)| (i, slot, 0, past)).collect();
            cached.advance(&prompts);
            while !open.is_empty() {
                let step: Vec<_> =
                    open.iter().map(|&(i, slot, past)| (i, slot, past, past + 1)).collect();
                cached.advance(&step);
                for sequence in &mut open {
                    sequence.2 += 1;
                }
                open.retain(|&(i, _, past)| past < samples[i].ids.len());
                // Sequences change their place in the batch at every step.
                if !open.is_empty() {
                    open.rotate_left(1);
                }
            }
        }
    }
}

#[test]
fn over_more_than_one_span_of_keys() {
    for profile in Profile::OF_LONG {
        let case = Case { model: Model::Long, weights: DType::F32, profile };
        let samples = case.samples();
        let ends = [1024, 1025, 1026, 1090, LONG];
        let shape = GenerateShape::full(1, LONG, LONG);
        let mut oracle = engine(case, Way::Oracle, shape);
        let reference = ends.map(|end| uncached(&mut oracle, &samples[0].ids[..end]));
        for way in Way::some().into_iter().skip(1) {
            for prefill in [61, LONG] {
                let shape = GenerateShape::full(2, LONG, prefill);
                let pages = shape.slot(1);
                let mut engine = engine(case, way, shape);
                let mut past = 0;
                // 1 token at 1025 and 1026 is decoded, the rest is prefilled.
                for (end, reference) in ends.iter().zip(&reference) {
                    let ids = &samples[0].ids[past..*end];
                    let row = engine.advance(&[piece(&pages, past, ids)]).unwrap();
                    let what = format!("{case:?} {way:?} chunks of {prefill}");
                    assert!(bits(&row[0]) == *reference, "{what}: after token {end}");
                    past = *end;
                }
            }
        }
    }
}

/// The log-prob of a token from a row of logits, by the canon's tiles and tree at the default width.
fn log_prob(logits: &[f32], target: u32) -> f32 {
    let padded = logits.len().next_multiple_of(VOCAB_TILE * Topology::WIDTH);
    let mut columns = logits.to_vec();
    columns.resize(padded, f32::NEG_INFINITY);
    let leaves: Vec<LogSumExp> = columns
        .chunks(padded / Topology::WIDTH)
        .map(|leaf| {
            let tiles: Vec<_> = leaf.chunks(VOCAB_TILE).map(LogSumExp::of_tile).collect();
            LogSumExp::combine_all(&tiles)
        })
        .collect();
    logits[target as usize] - LogSumExp::combine_all(&leaves).value()
}

/// What a rollout saw and what scoring and training see of the same tokens.
#[test]
fn log_probs_of_decoded_logits_are_those_of_scoring() {
    for case in cases() {
        let samples = case.samples();
        for way in Way::all() {
            let length = samples[2].ids.len();
            let job = Job {
                score: Some((length, 1)),
                generate: Some(GenerateShape::full(1, length, 8)),
                ..Job::default()
            };
            let mut engine = case.engine(Train::Nothing, job, way);
            let scored = engine.score(&pack(&samples, &[2])).unwrap();
            let (ids, pages) = (&samples[2].ids, shape(&engine).slot(0));
            for past in 0..length - 1 {
                let ids = &ids[past..past + 1];
                let row = engine.advance(&[piece(&pages, past, ids)]).unwrap();
                let decoded = log_prob(&row[0], samples[2].targets[past]);
                assert_eq!(decoded.to_bits(), scored[past].to_bits(), "{case:?} {way:?} {past}");
            }
        }
    }
}
