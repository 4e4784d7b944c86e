//! Where time goes: a row a kind of operation.

use crate::kernels;
use program::cost::{self, Sequences};
use program::{Op, Program};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time by kind of operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    rows: BTreeMap<String, KernelRow>,
}

/// One kind of operation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KernelRow {
    /// Times it ran.
    pub count: usize,
    /// Time in it.
    pub time: Duration,
    /// Floating-point operations by the cost model, at the program's capacity; attention as if of one sequence.
    pub flops: f64,
}

impl Profile {
    pub(crate) fn add(&mut self, program: &Program, op: &Op, time: Duration) {
        let row = self.rows.entry(kernels::name(op)).or_default();
        row.count += 1;
        row.time += time;
        row.flops += cost::of_op(program, op, Sequences { length: program.tokens }).flops;
    }

    /// Rows, the longest time first.
    pub fn rows(&self) -> Vec<(&str, KernelRow)> {
        let mut rows: Vec<(&str, KernelRow)> =
            self.rows.iter().map(|(name, &row)| (name.as_str(), row)).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1.time));
        rows
    }

    /// Time in all operations.
    pub fn total(&self) -> Duration {
        self.rows.values().map(|row| row.time).sum()
    }
}
