//! Accumulation of logical micro-batches: the mid-split tree over single gradients, written out by hand.

use super::common;
use super::rig::{Case, Way, assert_same_gradients, bits, cases, gradients, pack};
use engine::{Engine, Hyper, Job, MicroBatch};
use families::Train;
use program::keep::Level;

type Gradients = Vec<(String, Vec<f32>)>;

/// Five micro-batches of unequal content.
fn micro_batches(case: Case) -> [MicroBatch; 5] {
    let orders: [&[usize]; 5] = [&[0, 1, 2], &[1], &[2, 1], &[0], &[2]];
    orders.map(|order| pack(&case.samples(), order))
}

fn engine(case: Case, way: Way, accumulation: usize) -> Engine<'static> {
    let mut job: Job = common::train_job(55, 3, Level::All);
    if let Some(train) = &mut job.train {
        train.accumulation = accumulation;
    }
    case.engine(Train::Lora(common::lora_spec()), job, way)
}

fn add(left: &Gradients, right: &Gradients) -> Gradients {
    let sum = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a + b).collect();
    left.iter().zip(right).map(|((name, a), (_, b))| (name.clone(), sum(a, b))).collect()
}

/// The tree over 2, 3 or 5 leaves.
fn tree(g: &[Gradients]) -> Gradients {
    match g {
        [a, b] => add(a, b),
        [a, b, c] => add(a, &add(b, c)),
        [a, b, c, d, e] => add(&add(a, b), &add(c, &add(d, e))),
        _ => panic!("a tree of {} leaves is not written out here", g.len()),
    }
}

#[test]
fn accumulated_gradients_are_the_tree_of_single_ones() {
    for case in cases() {
        let batches = micro_batches(case);
        let mut alone = engine(case, Way::Oracle, 1);
        let singles = batches.each_ref().map(|batch| {
            alone.train_micro_batch(batch, 0, 1).unwrap();
            gradients(&alone)
        });
        for way in Way::all() {
            for total in [2, 3, 5] {
                let mut engine = engine(case, way, total);
                // Twice where it is cheap: an optimizer step leaves nothing behind for the next.
                for _ in 0..if total == 2 { 2 } else { 1 } {
                    for (index, batch) in batches[..total].iter().enumerate() {
                        engine.train_micro_batch(batch, index, total).unwrap();
                    }
                    let what = format!("{case:?} {way:?} over {total}");
                    assert_same_gradients(&gradients(&engine), &tree(&singles[..total]), &what);
                }
            }
        }
        let chain = singles[1..].iter().fold(singles[0].clone(), |sum, next| add(&sum, next));
        let differs = chain.iter().zip(&tree(&singles)).any(|(a, b)| bits(&a.1) != bits(&b.1));
        assert!(differs, "{case:?}: a chain over micro-batches has other bits than the tree");
    }
}

#[test]
fn updated_weights_and_moments_by_every_way() {
    const HYPER: Hyper = Hyper {
        lr: 1e-2,
        beta1: 0.9,
        beta2: 0.999,
        eps: 1e-8,
        weight_decay: 0.1,
        max_grad_norm: 0.01,
    };
    for case in cases() {
        let batches = micro_batches(case);
        let run = |way: Way| {
            let mut engine = engine(case, way, 3);
            let mut seen: Vec<Vec<u32>> = Vec::new();
            for step in 1..=2 {
                for (index, batch) in batches[..3].iter().enumerate() {
                    engine.train_micro_batch(batch, index, 3).unwrap();
                }
                let report = engine.update(&HYPER, step).unwrap();
                assert!(report.grad_scale < 1.0, "gradients are clipped");
                seen.push(bits(&[report.grad_norm, report.grad_scale]));
            }
            for id in engine.graph.param_ids() {
                if let Some((m, v)) = engine.read_moments(id) {
                    seen.extend([bits(&engine.read_param(id)), bits(&m), bits(&v)]);
                }
            }
            seen
        };
        let oracle = run(Way::Oracle);
        for way in Way::all().into_iter().skip(1) {
            assert!(run(way) == oracle, "{case:?} {way:?}");
        }
    }
}
