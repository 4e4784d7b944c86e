//! Weights that change: known pages are of the old ones.

use crate::rig::{Outcome, bytes, engine, load, references, request, run, shape};
use rollout::{RolloutError, Scheduler};

#[test]
fn new_weights_under_a_sequence_are_refused_and_between_rollouts_forget_its_pages() {
    let mut engine = engine(shape(2, 32, 12));
    let requests = [request(0, bytes(0, 150), 6)];
    let reference = references(&requests).remove(0);
    let mut scheduler = Scheduler::new(&engine, None).unwrap();
    let first = run(&mut scheduler, &mut engine, &requests).unwrap().remove(0);
    assert_eq!(first.shared_tokens, 0);
    let again = run(&mut scheduler, &mut engine, &requests).unwrap().remove(0);
    assert_eq!(again.shared_tokens, 128, "its pages were known");
    assert_eq!(Outcome::from(again), reference);

    load(&mut engine, 4);
    let other = run(&mut scheduler, &mut engine, &requests).unwrap().remove(0);
    assert_eq!(other.shared_tokens, 0, "pages of old weights are forgotten");
    assert_ne!(Outcome::from(other), reference);

    load(&mut engine, 3);
    scheduler.submit(requests[0].clone()).unwrap();
    scheduler.step(&mut engine).unwrap();
    load(&mut engine, 4);
    let refused = scheduler.step(&mut engine);
    assert!(matches!(refused, Err(RolloutError::WeightsChanged { running: 1 })));
}

#[test]
fn pages_given_up_under_way_run_again_to_the_same_bits() {
    let mut engine = engine(shape(3, 48, 12));
    let requests: Vec<_> = (0..3).map(|n| request(n, bytes(n, 70 + 9 * n as usize), 40)).collect();
    let references = references(&requests);
    let mut scheduler = Scheduler::new(&engine, None).unwrap();
    for request in &requests {
        scheduler.submit(request.clone()).unwrap();
    }
    let mut completions = Vec::new();
    for step in 0.. {
        if scheduler.is_idle() {
            break;
        }
        if step % 7 == 6 {
            scheduler.give_up_pages();
            assert_eq!(scheduler.pages().free, 12);
        }
        for event in scheduler.step(&mut engine).unwrap() {
            if let rollout::Event::End { completion, .. } = event {
                completions.push(completion);
            }
        }
    }
    completions.sort_by_key(|c| c.ticket);
    assert!(completions.iter().any(|c| c.evictions > 1));
    let outcomes: Vec<Outcome> = completions.into_iter().map(Outcome::from).collect();
    assert_eq!(outcomes, references);
}
