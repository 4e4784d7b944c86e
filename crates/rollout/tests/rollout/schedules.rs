//! Every choice of the scheduler against each request alone.

use crate::rig::{
    self, Outcome, PAGES_EACH, bytes, engine, references, request, requests, run, shape,
};
use canon::random::{Numbers, Purpose};
use engine::{Engine, GenerateShape};
use rollout::{Ending, Event, Request, Scheduler, Ticket};

fn outcomes(engine: &mut Engine<'_>, requests: &[Request]) -> (Vec<Outcome>, rollout::Counts) {
    let mut scheduler = Scheduler::new(engine, None).unwrap();
    let completions = run(&mut scheduler, engine, requests).unwrap();
    let pages = scheduler.pages();
    assert_eq!(pages.held, 0, "every page was let go");
    assert_eq!(pages.known + pages.free, engine.blueprint.job.generate.unwrap().pages);
    (completions.into_iter().map(Outcome::from).collect(), scheduler.counts())
}

#[test]
fn batches_chunks_shared_pages_and_evictions_change_no_bit() {
    let requests = requests();
    let references = references(&requests);
    let ended = references.iter().filter(|r| r.ending == Ending::EndToken).count();
    assert!(ended > 0 && ended < references.len(), "some end of themselves, some do not");
    let roomy = 12 * PAGES_EACH;
    for (shape, chunks, evictions) in [
        (shape(1, 1, PAGES_EACH), true, false),
        (shape(12, 400, roomy), false, false),
        (shape(12, 13, roomy), true, false),
        (shape(5, 64, roomy), true, false),
        (shape(12, 400, PAGES_EACH), false, true),
        (shape(12, 37, PAGES_EACH + 2), true, true),
    ] {
        let (outcomes, counts) = outcomes(&mut engine(shape), &requests);
        for (index, (outcome, reference)) in outcomes.iter().zip(&references).enumerate() {
            assert_eq!(outcome, reference, "{shape:?}: request {index}");
        }
        assert_eq!(outcomes.len(), references.len());
        assert_eq!(counts.evictions > 0, evictions, "{shape:?}: {counts:?}");
        let longest = requests.iter().map(|r| r.prompt.len()).max().unwrap();
        assert_eq!(shape.tokens < longest, chunks);
        assert!(counts.most_sequences <= shape.sequences);
        if shape.sequences > 1 && !evictions {
            assert!(counts.most_sequences > 4, "{shape:?}: {counts:?}");
        }
    }
}

#[test]
fn samples_of_one_prompt_share_its_full_pages() {
    let prompt = bytes(7, 200);
    let requests: Vec<Request> = (0..6).map(|sample| request(sample, prompt.clone(), 12)).collect();
    let references = references(&requests);
    for tokens in [8, 90, 300] {
        let (outcomes, counts) = outcomes(&mut engine(shape(6, tokens, 40)), &requests);
        assert_eq!(outcomes, references, "{tokens} tokens a pass");
        assert_eq!(counts.tokens - (counts.chosen - 6), 200 + 5 * (200 - 192), "{counts:?}");
        assert_eq!(counts.shared, 5 * 192);
    }
    assert!(references[1..].iter().any(|r| r.ids != references[0].ids), "samples differ");
}

/// Requests come and are cancelled at random steps.
#[test]
fn requests_that_come_late_and_cancelled_neighbours_change_no_bit() {
    let requests = requests();
    let references = references(&requests);
    for seed in 0..4 {
        let numbers = Numbers::new(seed, Purpose::Sample, 1);
        let shape = shape(6, 48, PAGES_EACH + 1 + seed as usize * 4);
        let mut engine = engine(shape);
        let mut scheduler = Scheduler::new(&engine, None).unwrap();
        let (mut next, mut draw, mut doomed) = (0, 0, Vec::new());
        let mut mine: Vec<(Ticket, usize)> = Vec::new();
        let mut done = 0;
        let mut below = |limit: u64| {
            draw += 1;
            numbers.below(draw, limit)
        };
        while next < requests.len() || !scheduler.is_idle() {
            if next < requests.len() && below(3) == 0 {
                mine.push((scheduler.submit(requests[next].clone()).unwrap(), next));
                next += 1;
                let length = below(150) as usize + 1;
                doomed.push(scheduler.submit(request(99, bytes(below(4), length), 80)).unwrap());
            }
            if !doomed.is_empty() && below(4) == 0 {
                let ticket = doomed.swap_remove(below(doomed.len() as u64) as usize);
                scheduler.cancel(ticket).unwrap();
                assert!(!scheduler.cancel(ticket).unwrap(), "it has ended");
            }
            for event in scheduler.step(&mut engine).unwrap() {
                let Event::End { completion, .. } = event else { continue };
                let Some(&(_, index)) = mine.iter().find(|(t, _)| *t == completion.ticket) else {
                    continue;
                };
                done += 1;
                assert_eq!(Outcome::from(completion), references[index], "{seed}: {index}");
            }
        }
        assert_eq!(done, requests.len());
        assert_eq!(scheduler.pages().held, 0);
    }
}

#[test]
fn events_tell_what_completions_hold() {
    let mut engine = engine(GenerateShape::full(4, rig::LENGTH, 64));
    let tokenizer = rig::tokenizer();
    let mut scheduler = Scheduler::new(&engine, Some(&tokenizer)).unwrap();
    let requests = &requests()[..4];
    for request in requests {
        scheduler.submit(request.clone()).unwrap();
    }
    let mut told = vec![(Vec::new(), Vec::new(), String::new()); requests.len()];
    let completions = scheduler
        .run(&mut engine, |event| -> Result<(), rollout::RolloutError> {
            match event {
                Event::Token { ticket, id, logprob, text } => {
                    let told = &mut told[ticket.0 as usize];
                    told.0.push(*id);
                    told.1.push(*logprob);
                    told.2.push_str(text);
                }
                Event::End { completion, text } => {
                    told[completion.ticket.0 as usize].2.push_str(text)
                }
            }
            Ok(())
        })
        .unwrap();
    for (told, completion) in told.into_iter().zip(completions) {
        assert_eq!(told, (completion.ids, completion.logprobs, completion.text));
    }
}
