//! Stop texts across tokens, and ends inside a character.

use crate::rig::{bytes, engine, request, shape, tokenizer, tokenizer_of};
use engine::Sampling;
use rollout::{Completion, Ending, Request, RolloutError, Scheduler, Stops};
use text::Tokenizer;

fn complete(stops: Stops, max_tokens: usize, stream: u64) -> Completion {
    complete_with(&tokenizer(), stops, max_tokens, stream)
}

fn complete_with(
    tokenizer: &Tokenizer,
    stops: Stops,
    max_tokens: usize,
    stream: u64,
) -> Completion {
    let mut engine = engine(shape(1, 64, 4));
    let mut scheduler = Scheduler::new(&engine, Some(tokenizer)).unwrap();
    let sampling = Sampling { temperature: 1.0, seed: stream, ..Sampling::default() };
    let request = Request { stops, sampling, ..request(0, bytes(stream, 9), max_tokens) };
    scheduler.submit(request).unwrap();
    scheduler.run(&mut engine, |_| Ok::<(), RolloutError>(())).unwrap().swap_remove(0)
}

#[test]
fn a_stop_text_across_tokens_ends_the_completion_before_it() {
    let free = complete(Stops::default(), 60, 1);
    assert_eq!((free.ending, free.ids.len()), (Ending::Length, 60));
    // Three characters in a row of what came, each a token or more of its own.
    let characters: Vec<(usize, char)> = free.text.char_indices().collect();
    let (at, stop) = characters
        .windows(4)
        .skip(5)
        .map(|w| (w[0].0, &free.text[w[0].0..w[3].0]))
        .find(|(at, stop)| free.text.find(stop) == Some(*at) && !stop.contains('\u{FFFD}'))
        .expect("three characters that were not there before");
    let stops = Stops { ids: vec![], texts: vec!["never".into(), stop.into()] };
    let stopped = complete(stops, 60, 1);
    assert_eq!(stopped.ending, Ending::StopText);
    assert_eq!(stopped.text, free.text[..at]);
    assert!(stopped.ids.len() < 60 && free.ids.starts_with(&stopped.ids), "it ends early");
    assert_eq!(stopped.logprobs.len(), stopped.ids.len());
}

#[test]
fn a_stop_that_only_begins_holds_nothing_back_for_good() {
    let free = complete(Stops::default(), 30, 2);
    let last = free.text.chars().last().unwrap();
    let stops = Stops { ids: vec![], texts: vec![format!("{last}\u{1F600}")] };
    let same = complete(stops, 30, 2);
    assert_eq!((same.text, same.ending), (free.text, Ending::Length));
}

/// A model may have more rows than its tokenizer has words; what stands for none of them has no text and ends nothing.
#[test]
fn an_id_that_is_no_word_is_drawn_like_any_other() {
    let free = complete(Stops::default(), 40, 4);
    let few = complete_with(&tokenizer_of(128), Stops::default(), 40, 4);
    assert!(free.ids.iter().any(|&id| id >= 128) && free.ids.iter().any(|&id| id < 128));
    assert_eq!((few.ids, few.logprobs, few.ending), (free.ids.clone(), free.logprobs, free.ending));
    let words: String =
        free.ids.iter().filter(|id| **id < 128).map(|&id| char::from(id as u8)).collect();
    assert_eq!(few.text, words);
}

/// Random bytes are seldom whole characters: some completion ends inside one.
#[test]
fn an_end_inside_a_character_gives_a_replacement_character() {
    let inside = |completion: &Completion| {
        let last = *completion.ids.last().unwrap();
        (0xC2..=0xF4).contains(&last)
    };
    let cut = (1..40).map(|n| complete(Stops::default(), n, 3)).find(inside);
    let cut = cut.expect("a length at which the last byte begins a character");
    assert!(cut.text.ends_with('\u{FFFD}'), "{:?}", cut.text);
    // A stop at that very token leaves the half character out of the text that is certain, and ends the same.
    let end = *cut.ids.last().unwrap();
    let stopped = complete(Stops { ids: vec![end], texts: vec![] }, 60, 3);
    assert_eq!(stopped.ending, Ending::EndToken);
    assert!(cut.ids.starts_with(&stopped.ids));
}
