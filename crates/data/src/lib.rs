//! Training data: read, render, mask, encode, shorten, order, pack; and a cache of what was encoded.
//!
//! A [`Corpus`] holds the files of [`Source`]s (JSON Lines, Parquet), an [`Encoder`] takes their samples to a [`Dataset`]
//! of token ids with a mask of what is learnt, and a [`Schedule`] says which samples each optimizer step sees: every one
//! of these is a function of its input alone, so a run can be resumed at any step and repeated to the bit. Errors name
//! the file and the line. An [`EncodeCache`] keeps data sets by what they mean, and [`CacheOutcome`] says what it did.
//!
//! Prompts, which a model is to go on from, are read by the same rules: [`Corpus::prompts`], [`PromptEncoder`].
//!
//! Lengths are in tokens, lines are counted from 1, epochs and steps from 0.

mod alternatives;
mod cache;
mod corpus;
mod dataset;
mod encode;
mod error;
mod histogram;
mod lines;
mod manifest;
mod order;
mod pack;
mod parquet_rows;
mod prompt;
mod report;
mod sample;
mod schedule;
mod shorten;
mod source;
mod strict_json;
mod subset;
mod unread;

pub use alternatives::{Alternative, OrderReport};
pub use cache::{
    CacheError, CacheKey, CacheOutcome, CacheState, EncodeCache, Entry, EntryInfo, Pruned,
};
pub use corpus::{Corpus, CorpusFile, Format};
pub use dataset::{Dataset, Encoded, Size, SourceInfo};
pub use encode::{Encoder, TooLong};
pub use error::{ColumnError, DataError, Origin, SampleError};
pub use histogram::{Bin, histogram};
pub use lines::{LINE_BYTES_LIMIT, SAMPLES_LIMIT};
pub use order::{Arrangement, epoch_order};
pub use pack::{PACK_WINDOW, Packing, pack};
pub use prompt::{Asked, PromptEncoder, PromptRow};
pub use report::{Counts, PackReport, Report, Shapes, SourceReport};
pub use sample::{Content, Sample, Shape, read};
pub use schedule::{EPOCHS_LIMIT, Extent, Schedule, Step};
pub use source::{Source, WEIGHT_LIMIT, is_weight};
