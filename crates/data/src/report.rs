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
}

/// What encoding found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
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
    /// Tokens that they could hold.
    pub capacity: usize,
    /// `tokens / capacity`.
    pub fill: f64,
    /// Most samples in one micro-batch.
    pub most_sequences: usize,
}
