//! Which tokens run in the next forward pass.

use crate::error::RolloutError;
use crate::pages::{PageCounts, Pages};
use crate::request::{Completion, Ending, Event, Request, Ticket};
use crate::sequence::Sequence;
use engine::{Advance, Engine, GenerateShape};
use program::ops::PAGE;
use serde::Serialize;
use std::collections::VecDeque;
use std::ops::Range;
use text::Tokenizer;

/// What a scheduler has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Forward passes.
    pub passes: usize,
    /// Tokens that ran, those that ran again included.
    pub tokens: usize,
    /// Tokens chosen.
    pub chosen: usize,
    /// Tokens of shared pages, which did not run.
    pub shared: usize,
    /// Sequences whose pages were taken.
    pub evictions: usize,
    /// Most sequences in a pass.
    pub most_sequences: usize,
}

/// Runs many requests on one engine; see the crate.
pub struct Scheduler<'t> {
    shape: GenerateShape,
    /// Most sequences in a pass: each may need a token.
    sequences: usize,
    /// Tokens of the longest sequence, by the shape and the model.
    length: usize,
    /// Leaves of the vocabulary, in which log-probs are summed.
    leaves: Vec<Range<usize>>,
    tokenizer: Option<&'t Tokenizer>,
    pages: Pages,
    /// Under way, in the order in which they joined.
    running: Vec<Sequence<'t>>,
    waiting: VecDeque<Sequence<'t>>,
    next_ticket: u64,
    counts: Counts,
    /// Completions that ended outside a pass: cancelled ones, and those that ask for no token.
    ended: Vec<Event>,
    /// The engine's count of weight changes when pages were last known to be its weights'.
    weights_version: u64,
}

/// Tokens of one sequence in the pass that is being planned.
struct Piece {
    /// Index in `running`.
    index: usize,
    past: usize,
    count: usize,
}

impl<'t> Scheduler<'t> {
    /// A scheduler for an engine that was planned for generation. Without a tokenizer completions have no text.
    ///
    /// # Errors
    /// [`RolloutError::NotPlanned`].
    pub fn new(
        engine: &Engine<'_>,
        tokenizer: Option<&'t Tokenizer>,
    ) -> Result<Self, RolloutError> {
        let shape = engine.blueprint.job.generate.ok_or(RolloutError::NotPlanned)?;
        Ok(Scheduler {
            shape,
            sequences: shape.sequences.min(shape.tokens),
            length: shape.length.min(engine.graph.max_positions),
            leaves: engine.graph.vocab_leaves(),
            tokenizer,
            pages: Pages::new(shape.pages),
            running: Vec::new(),
            waiting: VecDeque::new(),
            next_ticket: 0,
            counts: Counts::default(),
            ended: Vec::new(),
            weights_version: engine.weights_version(),
        })
    }

    /// Puts a request in the queue.
    ///
    /// # Errors
    /// An empty prompt, one that leaves no room for a token, a cache that could not hold the sequence even alone,
    /// settings out of their range.
    pub fn submit(&mut self, request: Request) -> Result<Ticket, RolloutError> {
        let prompt = request.prompt.len();
        if prompt == 0 {
            return Err(RolloutError::EmptyPrompt);
        }
        if prompt >= self.length {
            return Err(RolloutError::PromptTooLong { tokens: prompt, length: self.length });
        }
        if request.stops.texts.iter().any(String::is_empty) {
            return Err(RolloutError::EmptyStop);
        }
        if !request.stops.texts.is_empty() && self.tokenizer.is_none() {
            return Err(RolloutError::NoTokenizer);
        }
        let limit = prompt.saturating_add(request.max_tokens).min(self.length);
        // The last token is chosen and never runs.
        let needed = (limit - 1).max(prompt).div_ceil(PAGE);
        if needed > self.shape.pages {
            let pages = self.shape.pages;
            return Err(RolloutError::CacheTooSmall { tokens: limit, needed, pages });
        }
        let ticket = Ticket(self.next_ticket);
        let sequence = Sequence::new(ticket, request, limit, self.tokenizer)?;
        self.next_ticket += 1;
        if sequence.is_full() {
            self.ended.push(sequence.finish(Ending::Length)?);
        } else {
            self.waiting.push_back(sequence);
        }
        Ok(ticket)
    }

    /// Ends a request where it is; its completion comes with the next step. False if it has ended already.
    ///
    /// # Errors
    /// Its text cannot be made.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<bool, RolloutError> {
        let waiting = self.waiting.iter().position(|s| s.ticket == ticket);
        let sequence = if let Some(index) = waiting {
            self.waiting.remove(index)
        } else {
            let running = self.running.iter().position(|s| s.ticket == ticket);
            running.map(|index| self.running.remove(index))
        };
        let Some(mut sequence) = sequence else { return Ok(false) };
        sequence.release(&mut self.pages);
        self.ended.push(sequence.finish(Ending::Cancelled)?);
        Ok(true)
    }

    /// Whether nothing is left to do.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty() && self.ended.is_empty()
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// How the pages of the cache are used.
    pub fn pages(&self) -> PageCounts {
        self.pages.counts()
    }

    /// Gives up the pages of every sequence under way and forgets all known ones: the cache may then be released. They
    /// run again from their first token when steps go on, to the same bits.
    pub fn give_up_pages(&mut self) {
        for mut sequence in self.running.drain(..).rev() {
            sequence.evict(&mut self.pages);
            self.counts.evictions += 1;
            self.waiting.push_front(sequence);
        }
        self.pages.forget_all();
    }

    /// Runs one forward pass and tells what came of it.
    ///
    /// # Errors
    /// The pass failed, no token can be chosen from logits, weights changed under a sequence. The scheduler is of no use
    /// afterwards.
    pub fn step(&mut self, engine: &mut Engine<'_>) -> Result<Vec<Event>, RolloutError> {
        self.notice_weights(engine)?;
        let mut events = std::mem::take(&mut self.ended);
        let pieces = self.plan();
        if pieces.is_empty() {
            return Ok(events);
        }
        let running = &self.running;
        let advance = |piece: &Piece| {
            let sequence = &running[piece.index];
            let end = piece.past + piece.count;
            Advance {
                pages: &sequence.pages,
                past: piece.past,
                ids: &sequence.tokens[piece.past..end],
                logits: end == sequence.tokens.len(),
            }
        };
        let work: Vec<Advance<'_>> = pieces.iter().map(advance).collect();
        let chosen: Vec<usize> =
            pieces.iter().zip(&work).filter(|(_, a)| a.logits).map(|(p, _)| p.index).collect();
        self.counts.passes += 1;
        self.counts.tokens += work.iter().map(|a| a.ids.len()).sum::<usize>();
        self.counts.most_sequences = self.counts.most_sequences.max(work.len());
        let rows = engine.forward_pass(&work)?;
        self.counts.chosen += rows.len();
        let mut over = Vec::new();
        for (index, logits) in chosen.into_iter().zip(rows) {
            let (event, ending) = self.running[index].choose(&logits, &self.leaves)?;
            events.push(event);
            over.extend(ending.map(|ending| (index, ending)));
        }
        over.sort_unstable_by_key(|&(index, _)| std::cmp::Reverse(index));
        let mut ended = Vec::new();
        for (index, ending) in over {
            let mut sequence = self.running.remove(index);
            sequence.release(&mut self.pages);
            ended.push(sequence.finish(ending)?);
        }
        events.extend(ended.into_iter().rev());
        Ok(events)
    }

    /// Steps until nothing is left to do; completions in the order of their tickets. `emit` is told everything as it
    /// comes.
    ///
    /// # Errors
    /// As [`Scheduler::step`], and whatever `emit` gives.
    pub fn run<E: From<RolloutError>>(
        &mut self,
        engine: &mut Engine<'_>,
        mut emit: impl FnMut(&Event) -> Result<(), E>,
    ) -> Result<Vec<Completion>, E> {
        let mut completions = Vec::new();
        while !self.is_idle() {
            for event in self.step(engine)? {
                emit(&event)?;
                if let Event::End { completion, .. } = event {
                    completions.push(completion);
                }
            }
        }
        completions.sort_by_key(|completion| completion.ticket);
        Ok(completions)
    }

    /// Pages of old weights are forgotten; a sequence that has some must not go on.
    fn notice_weights(&mut self, engine: &Engine<'_>) -> Result<(), RolloutError> {
        let version = engine.weights_version();
        if version == self.weights_version {
            return Ok(());
        }
        let begun = |s: &&Sequence<'_>| !s.pages.is_empty();
        let running = self.running.iter().filter(begun).count();
        if running > 0 {
            return Err(RolloutError::WeightsChanged { running });
        }
        self.pages.forget_all();
        self.weights_version = version;
        Ok(())
    }

    /// Chooses the tokens of the next pass, oldest sequence first: each decoded token, and of prompts what the token
    /// count leaves; then waiting sequences while there is room.
    fn plan(&mut self) -> Vec<Piece> {
        let decoding = self.running.iter().filter(|s| s.pending() == 1).count();
        let mut room = self.shape.tokens - decoding;
        let mut pieces = Vec::new();
        let evictions = self.counts.evictions;
        let mut index = 0;
        while index < self.running.len() {
            let decodes = self.running[index].pending() == 1;
            let shared = self.running[index].adopt(&mut self.pages);
            self.count_shared(index, shared);
            let count = self.running[index].pending().min(if decodes { 1 } else { room });
            if count > 0 && self.make_room(index, count) {
                pieces.push(self.place(index, count));
                room -= if decodes { 0 } else { count };
            }
            index += 1;
        }
        // Who just gave way would take back what was freed for others.
        if self.counts.evictions == evictions {
            self.admit(room, &mut pieces);
        }
        pieces
    }

    /// Makes pages for `count` more tokens of a sequence available: the youngest give way. They have no tokens in this
    /// pass yet, since the pass is planned in order. False where the sequence was itself the youngest and gave way.
    fn make_room(&mut self, index: usize, count: usize) -> bool {
        while index < self.running.len()
            && self.running[index].pages_for(count) > self.pages.available()
        {
            if let Some(mut youngest) = self.running.pop() {
                youngest.evict(&mut self.pages);
                self.counts.evictions += 1;
                self.waiting.push_front(youngest);
            }
        }
        index < self.running.len()
    }

    /// Lets waiting sequences join whose known tokens find pages, with up to `room` tokens in this pass.
    fn admit(&mut self, mut room: usize, pieces: &mut Vec<Piece>) {
        while room > 0 && self.running.len() < self.sequences {
            let Some(mut sequence) = self.waiting.pop_front() else { return };
            let shared = sequence.adopt(&mut self.pages);
            if sequence.pages_for(sequence.pending()) > self.pages.available() {
                sequence.release(&mut self.pages);
                self.waiting.push_front(sequence);
                return;
            }
            let count = sequence.pending().min(room);
            self.running.push(sequence);
            let index = self.running.len() - 1;
            self.count_shared(index, shared);
            pieces.push(self.place(index, count));
            room -= count;
        }
    }

    fn count_shared(&mut self, index: usize, tokens: usize) {
        self.running[index].shared += tokens;
        self.counts.shared += tokens;
    }

    /// Gives a sequence the pages of its next `count` tokens, which are available.
    fn place(&mut self, index: usize, count: usize) -> Piece {
        let sequence = &mut self.running[index];
        for _ in 0..sequence.pages_for(count) {
            sequence.pages.push(self.pages.take().expect("a page is available"));
        }
        let past = sequence.cached;
        sequence.run(count, &mut self.pages);
        Piece { index, past, count }
    }
}
