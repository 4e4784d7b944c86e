//! Which kernels ran, counted as they run.

use arena::Kernel;
use program::ops::{MatMul, Operand};
use program::{Op, Program};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Kernels of operations, by program and operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelLog {
    counts: HashMap<(&'static str, usize, Kernel), Row>,
}

#[derive(Clone, Debug)]
struct Row {
    op: String,
    shape: Option<ProductShape>,
    layer: Option<usize>,
    times: u64,
}

/// Shape of a product as planned: `[m, k] · [k, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductShape {
    /// Rows of the output.
    pub m: usize,
    /// Columns of the output.
    pub n: usize,
    /// Length of the sums, all leaves together, without the tail.
    pub k: usize,
}

impl ProductShape {
    fn of(product: &MatMul, program: &Program) -> ProductShape {
        let out = program.buffer(product.out);
        let length = |operand: &Operand| {
            let buffer = program.buffer(operand.buffer);
            let (rows, cols) = (operand.rows.clone(), operand.cols.clone());
            let rows = rows.map_or(buffer.rows, |rows| rows.len());
            let cols = cols.map_or(buffer.cols, |cols| cols.len());
            if operand.transposed { rows } else { cols }
        };
        let k = product.leaves.iter().flatten().map(|term| length(&term.b)).sum();
        ProductShape { m: out.rows, n: out.cols, k }
    }
}

/// One kernel that operations of one kind took in one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// The program's name.
    pub program: &'static str,
    /// The operation, without its layer: `Attention`, `MatMul q`.
    pub op: String,
    /// Shapes of products, distinct and ascending; none of other operations.
    pub shapes: Vec<ProductShape>,
    /// The kernel.
    pub kernel: Kernel,
    /// Layers in which it was taken, ascending.
    pub layers: Vec<usize>,
    /// How many times.
    pub times: u64,
}

impl KernelLog {
    pub(crate) fn add(&mut self, program: &Program, index: usize, kernel: Kernel) {
        let row = self.counts.entry((program.name, index, kernel)).or_insert_with(|| Row {
            op: name(&program.ops[index]),
            shape: match &program.ops[index] {
                Op::MatMul(product) => Some(ProductShape::of(product, program)),
                _ => None,
            },
            layer: program.op_layers[index],
            times: 0,
        });
        row.times += 1;
    }

    pub(crate) fn uses(&self) -> Vec<KernelUse> {
        let mut uses: BTreeMap<(&'static str, &str, Kernel), Uses> = BTreeMap::new();
        for ((program, _, kernel), row) in &self.counts {
            let of = uses.entry((program, &row.op, *kernel)).or_default();
            of.layers.extend(row.layer);
            of.shapes.extend(row.shape);
            of.times += row.times;
        }
        uses.into_iter()
            .map(|((program, op, kernel), of)| KernelUse {
                program,
                op: op.to_owned(),
                shapes: of.shapes.into_iter().collect(),
                kernel,
                layers: of.layers.into_iter().collect(),
                times: of.times,
            })
            .collect()
    }
}

/// What is known of one row of [`KernelLog::uses`] so far.
#[derive(Default)]
struct Uses {
    layers: BTreeSet<usize>,
    shapes: BTreeSet<ProductShape>,
    times: u64,
}

/// Products by what they are (`q`, `gate dx`, …) without their layer, other operations by name.
pub(crate) fn name(op: &Op) -> String {
    match op {
        Op::MatMul(matmul) => {
            let label = matmul.label.split_once('.').map_or(matmul.label.as_str(), |(_, l)| l);
            format!("MatMul {label}")
        }
        _ => op.name().to_string(),
    }
}
