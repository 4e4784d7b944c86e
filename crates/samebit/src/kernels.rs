//! Kernels that a step took, with the faster ones that it did not, and why.

use crate::device::{self, Device};
use arena::Kernel;
use engine::{KernelUse, ProductShape};
use record::Gate;
use std::collections::{BTreeMap, BTreeSet};

/// Operations that are named of those that took a kernel.
const NAMED: usize = 6;

/// A line for each kernel of products and of attention, counted as they ran: the operations that took it, with their
/// shapes, and what is faster.
pub(crate) fn choices(device: &Device, uses: &[KernelUse]) -> Vec<Gate> {
    let mut lines = Vec::new();
    for (kind, ops) in [("products", "MatMul"), ("attention", "Attention")] {
        let mut by_kernel: BTreeMap<Kernel, Vec<&KernelUse>> = BTreeMap::new();
        for of in uses.iter().filter(|of| of.op.starts_with(ops)) {
            by_kernel.entry(of.kernel).or_default().push(of);
        }
        for (kernel, of) in by_kernel {
            let figure = format!("{}; {}", taken_by(&of), faster(device, kernel));
            lines.push(Gate::ok(format!("{kind} on {kernel}"), figure));
        }
    }
    lines
}

/// How often, by which operations, of which shapes.
fn taken_by(uses: &[&KernelUse]) -> String {
    let times: u64 = uses.iter().map(|of| of.times).sum();
    let names: BTreeSet<&str> =
        uses.iter().map(|of| of.op.strip_prefix("MatMul ").unwrap_or(&of.op)).collect();
    let named: Vec<&str> = names.iter().take(NAMED).copied().collect();
    let rest = names.len() - named.len();
    let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let shapes: BTreeSet<ProductShape> = uses.iter().flat_map(|of| of.shapes.clone()).collect();
    format!("{times} × {}{rest}{}", named.join(", "), shapes_text(&shapes))
}

/// The smallest and the largest product.
fn shapes_text(shapes: &BTreeSet<ProductShape>) -> String {
    let size = |shape: &&ProductShape| shape.m * shape.n * shape.k;
    let text = |shape: &ProductShape| format!("{} × {} × {}", shape.m, shape.n, shape.k);
    match (shapes.iter().min_by_key(size), shapes.iter().max_by_key(size)) {
        (Some(least), Some(most)) if least == most => format!(" ({})", text(most)),
        (Some(least), Some(most)) => format!(" ({} to {})", text(least), text(most)),
        _ => String::new(),
    }
}

fn faster(device: &Device, kernel: Kernel) -> String {
    let faster = device.faster(kernel);
    let words: Vec<String> =
        faster.iter().map(|other| format!("{}: {}", other.kernel, other.why)).collect();
    if words.is_empty() {
        return format!("none is faster on {}", device::processor());
    }
    format!("faster and not chosen: {}", words.join("; "))
}
