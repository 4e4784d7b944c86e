//! The proof of same bits.
//!
//! [`verify`] runs real reinforcement-learning updates (rollouts, advantages, log-probs, gradients, optimizer, weights
//! back to rollout) on a training and a rollout topology, does the same on one rank, and compares bytes: every token,
//! log-prob, loss, gradient, norm, moment and weight after every update. Where something differs, both run again under
//! witnesses and the first operation whose result differs is named. [`Rule`] breaks one rule of the arithmetic on
//! purpose: each must be found. [`matrix`] does it for many pairs of topologies and keeps what it found.

mod compare;
mod disorder;
mod error;
mod judge;
mod learn;
mod matrix;
mod perturb;
mod rank;
mod report;
mod sample;
mod seen;
mod small;
mod witness;
mod work;

pub use compare::{Difference, Verdict, planned, verify};
pub use error::VerifyError;
pub use matrix::{Asked, Case, Cell, Matrix, SCHEMA, cases, matrix};
pub use perturb::Rule;
pub use report::{html, markdown};
pub use seen::{Initial, Parameter, Step, Trace};
pub use small::SmallModel;
pub use witness::Origin;
pub use work::{Load, Pair, Settings, Work};
