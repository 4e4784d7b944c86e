//! Exact match of completions on held-out chats, several sequences at once.

use crate::progress;
use anyhow::{Context, Result, bail};
use data::Content;
use engine::{Advance, Engine, Sampler, Sampling};
use serde::Serialize;
use serde_json::{Map, Value};
use text::{ChatTemplate, Tokenizer};

/// A chat whose last message is the expected answer.
pub(crate) struct Item {
    prompt: Vec<u32>,
    question: String,
    expected: String,
}

/// A question with what was expected and what was said.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Answer {
    pub(crate) question: String,
    pub(crate) expected: String,
    pub(crate) said: String,
}

impl Answer {
    pub(crate) fn is_exact(&self) -> bool {
        self.said.trim() == self.expected.trim()
    }
}

/// Reads held-out items from JSON Lines of `messages`.
pub(crate) fn items(
    lines: &str,
    tokenizer: &Tokenizer,
    template: &ChatTemplate,
) -> Result<Vec<Item>> {
    let read = |line: &str| -> Result<Item> {
        let Content::Messages { messages, tools } = Content::from_json(line)? else {
            bail!("no `messages`");
        };
        let (answer, asked) = messages.split_last().context("no message")?;
        let content = |m: &Value| m["content"].as_str().map(str::to_string).context("no content");
        let text = template.render(asked, tools.as_ref(), true, &Map::new())?;
        Ok(Item {
            prompt: tokenizer.encode(&text, false)?,
            question: content(asked.last().context("no question")?)?,
            expected: content(answer)?,
        })
    };
    let numbered = lines.lines().enumerate();
    numbered.map(|(i, line)| read(line).with_context(|| format!("line {}", i + 1))).collect()
}

/// Tokens of the longest item's prompt with its answer.
pub(crate) fn longest(items: &[Item], answer_tokens: usize) -> usize {
    items.iter().map(|i| i.prompt.len()).max().unwrap_or(0) + answer_tokens
}

/// Answers every item greedily.
pub(crate) fn answers(
    engine: &mut Engine<'_>,
    items: &[Item],
    tokenizer: &Tokenizer,
    ends: &[u32],
    answer_tokens: usize,
    what: &str,
) -> Result<Vec<Answer>> {
    let at_once = engine.blueprint.job.generate.map_or(1, |g| g.sequences);
    let bar = progress::count(what, items.len() as u64, false);
    let mut answers = Vec::with_capacity(items.len());
    for group in items.chunks(at_once) {
        let ids = complete_group(engine, group, ends, answer_tokens)?;
        for (item, ids) in group.iter().zip(ids) {
            answers.push(Answer {
                question: item.question.clone(),
                expected: item.expected.clone(),
                said: tokenizer.decode(&ids, true)?.trim().to_string(),
            });
        }
        bar.inc(group.len() as u64);
    }
    bar.finish_and_clear();
    Ok(answers)
}

/// A sequence under way.
struct Running {
    slot: usize,
    length: usize,
    last: u32,
}

fn complete_group(
    engine: &mut Engine<'_>,
    group: &[Item],
    ends: &[u32],
    answer_tokens: usize,
) -> Result<Vec<Vec<u32>>> {
    let mut sampler = Sampler::new(Sampling::default(), 0)?;
    let mut ids: Vec<Vec<u32>> = vec![Vec::new(); group.len()];
    let mut running = Vec::new();
    for (slot, item) in group.iter().enumerate() {
        let work = Advance { slot, past: 0, ids: &item.prompt };
        let logits = engine.advance(&[work])?.swap_remove(0);
        let last = sampler.choose(&logits, 0)?;
        running.push(Running { slot, length: item.prompt.len(), last });
    }
    loop {
        running.retain(|r| {
            if ends.contains(&r.last) {
                return false;
            }
            ids[r.slot].push(r.last);
            ids[r.slot].len() < answer_tokens
        });
        if running.is_empty() {
            return Ok(ids);
        }
        let work: Vec<Advance<'_>> = running
            .iter()
            .map(|r| Advance { slot: r.slot, past: r.length, ids: std::slice::from_ref(&r.last) })
            .collect();
        let rows = engine.advance(&work)?;
        for (r, logits) in running.iter_mut().zip(rows) {
            r.length += 1;
            r.last = sampler.choose(&logits, 0)?;
        }
    }
}
