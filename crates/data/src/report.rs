//! Counts for people and for the record.

use serde::{Deserialize, Serialize};

use crate::sample::Shape;

/// Samples by shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shapes {
    /// `messages`.
    pub messages: usize,
    /// `prompt` and `completion`.
    pub completion: usize,
    /// `text`.
    pub text: usize,
}

impl Shapes {
    pub(crate) fn count(&mut self, shape: Shape) {
        match shape {
            Shape::Messages => self.messages += 1,
            Shape::Completion => self.completion += 1,
            Shape::Text => self.text += 1,
        }
    }

    /// Samples of any shape.
    pub fn total(&self) -> usize {
        self.messages + self.completion + self.text
    }
}

/// What encoding found, in samples and in tokens: what is too long is rarely like the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Samples read, by shape.
    pub read: Shapes,
    /// Samples kept.
    pub samples: usize,
    /// Tokens kept.
    pub tokens: usize,
    /// Tokens learnt among those kept.
    pub supervised: usize,
    /// Tokens of the longest sample kept.
    pub longest: usize,
    /// Tokens of the shortest sample kept.
    pub shortest: usize,
    /// Samples dropped as too long.
    pub dropped: usize,
    /// Tokens of the samples dropped.
    pub dropped_tokens: usize,
    /// Tokens of the samples dropped that would have been learnt.
    pub dropped_supervised: usize,
    /// Samples kept and shortened.
    pub shortened: usize,
    /// Tokens cut from them.
    pub cut_tokens: usize,
    /// Tokens cut from them that would have been learnt.
    pub cut_supervised: usize,
    /// Samples kept whose ids and flags are those of an earlier one, of any source.
    pub duplicates: usize,
}

impl Counts {
    /// Counts a sample that is kept.
    pub(crate) fn keep(&mut self, tokens: usize, supervised: usize) {
        self.samples += 1;
        self.tokens += tokens;
        self.supervised += supervised;
        self.longest = self.longest.max(tokens);
        self.shortest = if self.samples == 1 { tokens } else { self.shortest.min(tokens) };
    }

    /// Tokens before anything was dropped or cut.
    pub fn tokens_read(&self) -> usize {
        self.tokens + self.dropped_tokens + self.cut_tokens
    }

    fn add(&mut self, other: &Counts) {
        self.shortest = match (self.samples, other.samples) {
            (0, _) => other.shortest,
            (_, 0) => self.shortest,
            _ => self.shortest.min(other.shortest),
        };
        self.longest = self.longest.max(other.longest);
        for (sum, more) in [
            (&mut self.read.messages, other.read.messages),
            (&mut self.read.completion, other.read.completion),
            (&mut self.read.text, other.read.text),
            (&mut self.samples, other.samples),
            (&mut self.tokens, other.tokens),
            (&mut self.supervised, other.supervised),
            (&mut self.dropped, other.dropped),
            (&mut self.dropped_tokens, other.dropped_tokens),
            (&mut self.dropped_supervised, other.dropped_supervised),
            (&mut self.shortened, other.shortened),
            (&mut self.cut_tokens, other.cut_tokens),
            (&mut self.cut_supervised, other.cut_supervised),
            (&mut self.duplicates, other.duplicates),
        ] {
            *sum += more;
        }
    }
}

/// What encoding found in one source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceReport {
    /// The source's name.
    pub name: String,
    /// How often its samples come in an epoch.
    pub weight: f64,
    /// What was found.
    #[serde(flatten)]
    pub counts: Counts,
}

/// What encoding found, in all and by source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In all sources.
    #[serde(flatten)]
    pub total: Counts,
    /// In each, in order.
    #[serde(default)]
    pub sources: Vec<SourceReport>,
}

impl Report {
    pub(crate) fn new(sources: Vec<SourceReport>) -> Report {
        let mut total = Counts::default();
        for source in &sources {
            total.add(&source.counts);
        }
        Report { total, sources }
    }
}

/// How well an epoch's samples fill its micro-batches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PackReport {
    /// The epoch, from 0.
    pub epoch: usize,
    /// Optimizer steps.
    pub steps: usize,
    /// Micro-batches.
    pub micro_batches: usize,
    /// Tokens in them.
    pub tokens: usize,
    /// Tokens that they could hold; the difference is what the shape rounds up.
    pub capacity: usize,
    /// `tokens / capacity`.
    pub fill: f64,
    /// Most samples in one micro-batch.
    pub most_sequences: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_by_shape() {
        let mut shapes = Shapes::default();
        for shape in [[Shape::Messages; 3], [Shape::Text, Shape::Completion, Shape::Completion]] {
            shape.into_iter().for_each(|shape| shapes.count(shape));
        }
        assert_eq!((shapes.messages, shapes.completion, shapes.text), (3, 2, 1));
        assert_eq!(shapes.total(), 6);
    }

    #[test]
    fn a_total_is_the_sum_of_its_sources_and_its_extremes_are_theirs() {
        let mut one = Counts::default();
        one.keep(5, 2);
        one.keep(3, 1);
        one.read.count(Shape::Text);
        let mut two = Counts { dropped: 1, dropped_tokens: 9, cut_tokens: 4, ..Counts::default() };
        two.keep(7, 7);
        let none = Counts { dropped: 2, ..Counts::default() };
        let source = |counts| SourceReport { name: "n".into(), weight: 1.0, counts };
        let total = Report::new([none, one, two, none].map(source).into()).total;
        assert_eq!((total.samples, total.tokens, total.supervised), (3, 15, 10));
        assert_eq!((total.longest, total.shortest, total.dropped), (7, 3, 5));
        assert_eq!((total.read.total(), total.tokens_read()), (1, 28));
    }
}
