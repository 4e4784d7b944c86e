//! The policy log-prob of a sampled token is, to the bit, what scoring and training find for it.

use super::rig::{Way, bits, cases};
use canon::policy::scale;
use engine::{
    Advance, Choice, GenerateShape, INACTIVE, Job, Kept, MicroBatch, Sampler, Sampling, Sequence,
};
use families::Train;
use program::lower::Head;

const PROMPT: usize = 5;
const TOKENS: usize = 12;

fn settings() -> [Sampling; 3] {
    let base = Sampling { temperature: 0.7, seed: 3, ..Sampling::default() };
    [base, Sampling { top_p: 0.8, ..base }, Sampling { temperature: 1.3, top_k: 9, ..base }]
}

/// A sampled sequence, ready to be scored, with what each token was chosen from.
fn sampled(
    job: Job,
    case: super::rig::Case,
    way: Way,
    settings: Sampling,
) -> (Sequence, Vec<Choice>) {
    let shape = GenerateShape::full(1, 32, 8);
    let mut engine = case.engine(Train::Nothing, Job { generate: Some(shape), ..job }, way);
    let leaves = engine.graph.vocab_leaves();
    let mut sampler = Sampler::new(settings, 17).unwrap();
    let mut ids = case.samples()[0].ids[..PROMPT].to_vec();
    let mut past = 0;
    let mut choices = Vec::new();
    for _ in 0..TOKENS {
        let work = Advance { pages: &shape.slot(0), past, ids: &ids[past..], logits: true };
        let row = engine.advance(&[work]).unwrap();
        past = ids.len();
        let choice = sampler.choose_scored(&row[0], past as u64, &leaves).unwrap();
        choices.push(choice);
        ids.push(choice.token);
    }
    let length = ids.len();
    let mut targets = vec![INACTIVE; length];
    let mut kept = vec![Kept::ALL; length];
    for (i, choice) in choices.iter().enumerate() {
        targets[PROMPT - 1 + i] = choice.token;
        kept[PROMPT - 1 + i] = choice.kept;
    }
    (Sequence { ids, targets, kept, ..Sequence::default() }, choices)
}

fn of_completion(values: &[f32]) -> Vec<u32> {
    bits(&values[PROMPT - 1..PROMPT - 1 + TOKENS])
}

#[test]
fn a_sampled_token_scores_to_the_bits_of_its_choice() {
    for case in cases() {
        for settings in settings() {
            let truncated = settings.top_p < 1.0 || settings.top_k > 0;
            let head = Head { scale: scale(settings.temperature), truncated, entropy: true };
            let job = Job { score: Some((64, 2)), head, ..Job::default() };
            let mut first: Option<Vec<Choice>> = None;
            for way in Way::some() {
                let (sequence, choices) = sampled(job, case, way, settings);
                let same = first.get_or_insert_with(|| choices.clone());
                assert_eq!(*same, choices, "{case:?} {way:?}");
                let mut engine = case.engine(Train::Nothing, job, way);
                let measures = engine.measure(&MicroBatch { sequences: vec![sequence] }).unwrap();
                let of = |value: fn(&Choice) -> f32| choices.iter().map(value).collect::<Vec<_>>();
                let what = format!("{case:?} {way:?} {settings:?}");
                assert_eq!(of_completion(&measures.logp), bits(&of(|c| c.logp)), "{what}");
                let full = measures.full_logp.as_ref().unwrap_or(&measures.logp);
                assert_eq!(of_completion(full), bits(&of(|c| c.full_logp)), "{what}");
                let entropy = measures.entropy.unwrap();
                assert!(entropy[PROMPT - 1..][..TOKENS].iter().all(|&h| (0.0..6.0).contains(&h)));
            }
        }
    }
}

#[test]
fn another_policy_is_told() {
    let case = cases()[0];
    let sampling = settings()[1];
    let head = Head { scale: scale(sampling.temperature), truncated: true, entropy: false };
    let job = Job { score: Some((64, 2)), head, ..Job::default() };
    let (sequence, choices) = sampled(job, case, Way::Oracle, sampling);
    let logp = |scale: f32, sequence: &Sequence| {
        let job = Job { head: Head { scale, ..head }, ..job };
        let mut engine = case.engine(Train::Nothing, job, Way::Oracle);
        engine.measure(&MicroBatch { sequences: vec![sequence.clone()] })
    };
    let rollout: Vec<f32> = choices.iter().map(|c| c.logp).collect();
    // Twice the temperature: every kept set is another, most numbers too.
    let mut all = sequence.clone();
    all.kept = vec![Kept::ALL; all.ids.len()];
    let doubled = logp(head.scale / 2.0, &all).unwrap();
    assert_ne!(of_completion(&doubled.logp), bits(&rollout));
    // A token outside what was kept for it.
    let mut other = sequence;
    other.kept[PROMPT - 1] = Kept { logit: 1e9, id: 0 };
    assert!(logp(head.scale, &other).is_err());
}

#[test]
fn the_base_scores_without_its_adapters() {
    let case = cases()[0];
    let job = Job { score: Some((64, 4)), score_base: Some((64, 4)), ..Job::default() };
    let lora = Train::Lora(super::common::lora_spec());
    let batch = MicroBatch { sequences: case.samples()[..1].to_vec() };
    for way in Way::some() {
        let mut adapted = case.engine(lora.clone(), job, way);
        let with = adapted.score(&batch).unwrap();
        let without = adapted.score_base(&batch).unwrap();
        let mut plain = case.engine(Train::Nothing, Job { score_base: None, ..job }, way);
        assert_eq!(bits(&without), bits(&plain.score(&batch).unwrap()), "{way:?}");
        assert_ne!(bits(&with), bits(&without), "{way:?}");
    }
}
