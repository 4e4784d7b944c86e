//! Requests that cannot be served are refused when they are submitted.

use crate::rig::{LENGTH, bytes, engine, request, shape, tokenizer};
use engine::Sampling;
use rollout::{Ending, Request, RolloutError, Scheduler, Stops};

#[test]
fn each_way_a_request_cannot_be_served() {
    let engine = engine(shape(2, 16, 3));
    let tokenizer = tokenizer();
    let mut with = Scheduler::new(&engine, Some(&tokenizer)).unwrap();
    let mut without = Scheduler::new(&engine, None).unwrap();
    let texts = |text: &str| Request {
        stops: Stops { ids: vec![], texts: vec![text.into()] },
        ..request(0, bytes(0, 4), 4)
    };
    assert!(matches!(with.submit(request(0, vec![], 4)), Err(RolloutError::EmptyPrompt)));
    let long = with.submit(request(0, bytes(0, LENGTH), 4));
    assert!(matches!(long, Err(RolloutError::PromptTooLong { tokens: LENGTH, length: LENGTH })));
    assert!(matches!(with.submit(texts("")), Err(RolloutError::EmptyStop)));
    assert!(matches!(without.submit(texts("a")), Err(RolloutError::NoTokenizer)));
    assert!(with.submit(texts("a")).is_ok());
    let cold = Sampling { temperature: -1.0, ..Sampling::default() };
    let cold = Request { sampling: cold, ..request(0, bytes(0, 4), 4) };
    assert!(matches!(with.submit(cold), Err(RolloutError::Settings(_))));
}

#[test]
fn a_cache_too_small_for_one_sequence_is_refused_with_figures() {
    let engine = engine(shape(2, 16, 3));
    let mut scheduler = Scheduler::new(&engine, None).unwrap();
    // The last token of 193 is chosen and needs no room.
    assert!(scheduler.submit(request(0, bytes(0, 100), 93)).is_ok());
    let refused = scheduler.submit(request(0, bytes(0, 100), 94)).unwrap_err().to_string();
    for figure in ["194 tokens", "4 pages of 64 tokens", "has 3"] {
        assert!(refused.contains(figure), "{refused}");
    }
}

#[test]
fn no_tokens_asked_for_is_an_empty_completion() {
    let mut engine = engine(shape(2, 16, 3));
    let mut scheduler = Scheduler::new(&engine, None).unwrap();
    scheduler.submit(request(0, bytes(0, 5), 0)).unwrap();
    let completions = scheduler.run(&mut engine, |_| Ok::<(), RolloutError>(())).unwrap();
    assert_eq!((completions[0].ids.len(), completions[0].ending), (0, Ending::Length));
    assert_eq!(scheduler.counts().passes, 0);
}
