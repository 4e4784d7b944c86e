//! One request under way.

use crate::error::RolloutError;
use crate::pages::{Beginning, Pages};
use crate::request::{Completion, Ending, Event, Request, Stops, Ticket};
use crate::stop_text::StopText;
use engine::{Choice, Sampler};
use program::ops::PAGE;
use std::ops::Range;
use text::{StreamDecoder, Tokenizer};

/// A sequence: its tokens, and what the cache holds of them.
pub(crate) struct Sequence<'t> {
    pub(crate) ticket: Ticket,
    sample: u64,
    /// Prompt and chosen tokens.
    pub(crate) tokens: Vec<u32>,
    prompt: usize,
    /// Most tokens of prompt and completion.
    limit: usize,
    end_ids: Vec<u32>,
    sampler: Sampler,
    logprobs: Vec<f32>,
    /// Kept where the request asks.
    choices: Option<Vec<Choice>>,
    stream: Option<StreamDecoder<'t>>,
    stop: StopText,
    text: String,
    /// Tokens that the cache holds, or will after the pass that is being planned.
    pub(crate) cached: usize,
    /// Pages of those tokens.
    pub(crate) pages: Vec<u32>,
    /// What its full pages are known as.
    beginning: Beginning,
    /// Tokens of adopted pages so far.
    pub(crate) shared: usize,
    evictions: usize,
}

impl<'t> Sequence<'t> {
    pub(crate) fn new(
        ticket: Ticket,
        request: Request,
        limit: usize,
        tokenizer: Option<&'t Tokenizer>,
    ) -> Result<Self, RolloutError> {
        let Request { sample, prompt, sampling, stops, policy, .. } = request;
        let Stops { ids, texts } = stops;
        let mut sampler = Sampler::new(sampling, sample).map_err(RolloutError::Settings)?;
        sampler.observe(&prompt);
        Ok(Sequence {
            ticket,
            sample,
            prompt: prompt.len(),
            tokens: prompt,
            limit,
            end_ids: ids,
            sampler,
            logprobs: Vec::new(),
            choices: policy.then(Vec::new),
            stream: tokenizer.map(|tokenizer| tokenizer.stream(true)),
            stop: StopText::new(texts),
            text: String::new(),
            cached: 0,
            pages: Vec::new(),
            beginning: Beginning::EMPTY,
            shared: 0,
            evictions: 0,
        })
    }

    /// Tokens to run before the next one can be chosen.
    pub(crate) fn pending(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// Whether the most tokens are there.
    pub(crate) fn is_full(&self) -> bool {
        self.tokens.len() >= self.limit
    }

    /// Takes known pages that hold its next tokens, but for the last token, which must run; tells how many tokens.
    pub(crate) fn adopt(&mut self, pages: &mut Pages) -> usize {
        let before = self.cached;
        while self.cached.is_multiple_of(PAGE) && self.cached + PAGE < self.tokens.len() {
            let next = &self.tokens[self.cached..self.cached + PAGE];
            let Some((page, beginning)) = pages.find(self.beginning, next) else { break };
            self.pages.push(page);
            self.beginning = beginning;
            self.cached += PAGE;
        }
        self.cached - before
    }

    /// Pages that it needs beside its own for `count` more tokens.
    pub(crate) fn pages_for(&self, count: usize) -> usize {
        (self.cached + count).div_ceil(PAGE) - self.pages.len()
    }

    /// Counts `count` tokens as run and makes the pages that they fill known. Whoever adopts such a page reads it after
    /// this pass has written it, in the same pass at the earliest.
    pub(crate) fn run(&mut self, count: usize, pages: &mut Pages) {
        let full = self.cached / PAGE;
        self.cached += count;
        for index in full..self.cached / PAGE {
            let tokens = &self.tokens[index * PAGE..(index + 1) * PAGE];
            self.beginning = pages.publish(self.beginning, tokens, self.pages[index]);
        }
    }

    /// Gives its pages back; its tokens will run again.
    pub(crate) fn evict(&mut self, pages: &mut Pages) {
        self.release(pages);
        self.evictions += 1;
    }

    /// Gives its pages back.
    pub(crate) fn release(&mut self, pages: &mut Pages) {
        pages.release(&self.pages);
        self.pages.clear();
        (self.cached, self.beginning) = (0, Beginning::EMPTY);
    }

    /// Chooses the next token from the logits after the last one; tells why the completion ends, if it does.
    pub(crate) fn choose(
        &mut self,
        logits: &[f32],
        leaves: &[Range<usize>],
    ) -> Result<(Event, Option<Ending>), RolloutError> {
        let ticket = self.ticket;
        let position = self.tokens.len() as u64;
        let failed = |source| RolloutError::Sampling { ticket, source };
        let id = match &mut self.choices {
            None => self.sampler.choose(logits, position).map_err(failed)?,
            Some(choices) => {
                let choice =
                    self.sampler.choose_scored(logits, position, leaves).map_err(failed)?;
                choices.push(choice);
                choice.token
            }
        };
        let logprob = engine::log_prob(logits, id, leaves);
        self.tokens.push(id);
        self.logprobs.push(logprob);
        let (text, ending) = if self.end_ids.contains(&id) {
            (String::new(), Some(Ending::EndToken))
        } else {
            let (text, stopped) = self.take_text(id)?;
            let full = self.is_full().then_some(Ending::Length);
            (text, if stopped { Some(Ending::StopText) } else { full })
        };
        Ok((Event::Token { ticket, id, logprob, text }, ending))
    }

    fn take_text(&mut self, id: u32) -> Result<(String, bool), RolloutError> {
        let Some(stream) = &mut self.stream else { return Ok((String::new(), false)) };
        let ticket = self.ticket;
        let piece = stream.push(id).map_err(|source| RolloutError::Text { ticket, source })?;
        let (text, stopped) = self.stop.push(&piece);
        self.text.push_str(&text);
        Ok((text, stopped))
    }

    /// The completion, with the text that was held back: a character that was never finished, the beginning of a stop
    /// text that did not come.
    pub(crate) fn finish(mut self, mut ending: Ending) -> Result<Event, RolloutError> {
        let mut rest = String::new();
        if ending != Ending::StopText
            && let Some(stream) = self.stream.take()
        {
            let ticket = self.ticket;
            let piece = stream.finish().map_err(|source| RolloutError::Text { ticket, source })?;
            let (text, stopped) = self.stop.push(&piece);
            rest = text;
            if stopped {
                ending = Ending::StopText;
            } else {
                rest.push_str(&self.stop.finish());
            }
            self.text.push_str(&rest);
        }
        let completion = Completion {
            ticket: self.ticket,
            sample: self.sample,
            text: self.text,
            ids: self.tokens.split_off(self.prompt),
            logprobs: self.logprobs,
            choices: self.choices.unwrap_or_default(),
            ending,
            prompt_tokens: self.prompt,
            shared_tokens: self.shared,
            evictions: self.evictions,
        };
        Ok(Event::End { completion, text: rest })
    }
}
