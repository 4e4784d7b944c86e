//! Training data: read, render, mask, encode, pack, order.
//!
//! [`read`] takes JSON Lines to [`Sample`]s, an [`Encoder`] takes those to a [`Dataset`] of token ids with a mask of
//! what is learnt, and a [`Schedule`] says which samples each optimizer step sees: every one of these is a function of
//! its input alone, so a run can be resumed at any step and repeated to the bit. Errors name the file and the line.
//!
//! Lengths are in tokens, lines are counted from 1, epochs and steps from 0.

mod dataset;
mod encode;
mod error;
mod lines;
mod order;
mod pack;
mod report;
mod sample;
mod schedule;
mod subset;

pub use dataset::{Dataset, Encoded};
pub use encode::{Encoder, TooLong};
pub use error::{DataError, Origin, SampleError};
pub use lines::{LINE_BYTES_LIMIT, SAMPLES_LIMIT};
pub use order::epoch_order;
pub use pack::{PACK_WINDOW, Packing, pack};
pub use report::{PackReport, Report, Shapes};
pub use sample::{Content, Sample, Shape, read};
pub use schedule::{EPOCHS_LIMIT, Extent, Schedule, Step};
