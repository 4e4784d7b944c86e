//! The plan of a run: what it will cost, from a configuration alone.

mod report;
mod text;

pub(crate) use report::{Request, plan};
pub(crate) use text::render;
