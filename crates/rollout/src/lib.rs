//! Generation for many sequences at once.
//!
//! A [`Scheduler`] takes [`Request`]s and runs them on one engine: continuous batching (a sequence joins as soon as pages
//! suffice), prompts in chunks beside decoded tokens, full pages shared by sequences that begin alike, and eviction with
//! recomputation where pages run out. None of its choices changes a bit: a token and its log-prob depend on the
//! request alone, which the canon's rules 3, 4 and 8 promise and this crate's tests check.
//!
//! [`WeightSync`] brings weights from the ranks of training to those of rollout, by a [`ShardPlan`], and compares
//! [`Fingerprint`]s.
//!
//! On several ranks each rank runs its own scheduler over the same requests; all of them come to the same decisions.

mod error;
mod fingerprint;
mod pages;
mod request;
mod scheduler;
mod sequence;
mod stop_text;
mod sync;

pub use error::RolloutError;
pub use fingerprint::{Fingerprint, FingerprintError};
pub use pages::PageCounts;
pub use request::{Completion, Ending, Event, Request, Stops, Ticket};
pub use scheduler::{Counts, Scheduler};
pub use sync::{Moved, Piece, ShardPlan, Since, SyncError, WeightSync};
