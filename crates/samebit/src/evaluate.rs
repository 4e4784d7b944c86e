//! Exact match of completions on held-out chats, several sequences at once.

use crate::progress;
use anyhow::{Context, Result, bail};
use data::Content;
use engine::{Engine, Sampling};
use rollout::{Completion, Ending, Event, Request, Scheduler, Stops};
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
    let mut scheduler = Scheduler::new(engine, None)?;
    for (index, item) in items.iter().enumerate() {
        scheduler.submit(Request {
            sample: index as u64,
            prompt: item.prompt.clone(),
            max_tokens: answer_tokens,
            sampling: Sampling::default(),
            stops: Stops { ids: ends.to_vec(), texts: vec![] },
            policy: false,
        })?;
    }
    let bar = progress::count(what, items.len() as u64, false);
    let completions = scheduler.run(engine, |event| -> Result<()> {
        if matches!(event, Event::End { .. }) {
            bar.inc(1);
        }
        Ok(())
    })?;
    let answer = |(item, completion): (&Item, Completion)| -> Result<Answer> {
        let said = match completion.ending {
            Ending::EndToken => &completion.ids[..completion.ids.len() - 1],
            _ => &completion.ids,
        };
        Ok(Answer {
            question: item.question.clone(),
            expected: item.expected.clone(),
            said: tokenizer.decode(said, true)?.trim().to_string(),
        })
    };
    let answers = items.iter().zip(completions).map(answer).collect::<Result<_>>()?;
    bar.finish_and_clear();
    Ok(answers)
}
