//! Which kernels ran, counted as they run.

use arena::Kernel;
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
    layer: Option<usize>,
    times: u64,
}

/// One kernel that operations of one kind took in one program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelUse {
    /// The program's name.
    pub program: &'static str,
    /// The operation, without its layer: `Attention`, `MatMul q`.
    pub op: String,
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
            layer: program.op_layers[index],
            times: 0,
        });
        row.times += 1;
    }

    pub(crate) fn uses(&self) -> Vec<KernelUse> {
        let mut uses: BTreeMap<(&'static str, &str, Kernel), (BTreeSet<usize>, u64)> =
            BTreeMap::new();
        for ((program, _, kernel), row) in &self.counts {
            let (layers, times) = uses.entry((program, &row.op, *kernel)).or_default();
            layers.extend(row.layer);
            *times += row.times;
        }
        uses.into_iter()
            .map(|((program, op, kernel), (layers, times))| KernelUse {
                program,
                op: op.to_owned(),
                kernel,
                layers: layers.into_iter().collect(),
                times,
            })
            .collect()
    }
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
