//! A program in words: for people, one line an operation; for hashing, in full.

use crate::buffer::BufferId;
use crate::lower::Program;
use crate::op::Op;
use crate::ops::{CollectiveKind, Init, MatMul, Operand};
use std::fmt::Write;

/// The arithmetic of a program in full: every field of every operation and the shape of every buffer. Two programs
/// with the same text compute the same thing; not meant for reading.
pub fn identity(program: &Program) -> String {
    let mut text = format!("{} {}\n", program.name, program.tokens);
    for b in &program.buffers {
        writeln!(text, "{} {} {} {:?} {:?}", b.dtype, b.rows, b.cols, b.axis, b.kind)
            .expect("a string can be written to");
    }
    for op in &program.ops {
        writeln!(text, "{op:?}").expect("a string can be written to");
    }
    text
}

/// The program for people, one line an operation.
pub fn listing(program: &Program) -> String {
    let mut text = format!("program {} tokens {}\n", program.name, program.tokens);
    for (index, op) in program.ops.iter().enumerate() {
        if index == program.forward_ops && index > 0 {
            text.push_str("-- backward\n");
        }
        let layer = program.op_layers[index].map_or(String::from("  -"), |l| format!("{l:>3}"));
        writeln!(text, "{index:>5} {layer} {}", op_line(program, op))
            .expect("a string can be written to");
    }
    text
}

/// One operation in words.
pub fn op_line(program: &Program, op: &Op) -> String {
    if let Op::MatMul(matmul) = op {
        return matmul_line(program, matmul);
    }
    let access = op.access();
    let names =
        |ids: &[BufferId]| ids.iter().map(|&id| shaped(program, id)).collect::<Vec<_>>().join(", ");
    let mut line = format!("{} {} <- {}", op.name(), names(&access.writes), names(&access.reads));
    match op {
        Op::Collective(c) => {
            let kind = match &c.kind {
                CollectiveKind::TreeSum { leaves, .. } => format!("tree of {leaves} leaves"),
                CollectiveKind::OwnerRows { .. } => "rows of owners".into(),
                CollectiveKind::GatherTokens => "gather tokens".into(),
                CollectiveKind::ExchangeColumns { .. } => "exchange columns".into(),
                CollectiveKind::GatherColumns { .. } => "gather columns".into(),
                CollectiveKind::Collect { .. } => "collect".into(),
                CollectiveKind::StepSum { .. } => "tree of the step's micro-batches".into(),
                CollectiveKind::GatherSlices { .. } => "gather slices".into(),
                CollectiveKind::ExactSum => "exact sum".into(),
            };
            write!(line, " [{:?}: {kind}]", c.group)
        }
        Op::Norm(o) => write!(line, " [group {} eps {:e}]", o.group, o.eps),
        Op::Rope(o) => write!(line, " [head {} inverse {}]", o.head_dim, o.inverse),
        Op::Attention(o) => {
            write!(
                line,
                " [heads {}/{} x {} scale {} {:?}]",
                o.heads, o.kv_heads, o.head_dim, o.scale, o.keys
            )
        }
        Op::AttentionBackward(o) => {
            write!(line, " [heads {}/{} x {} scale {}]", o.heads, o.kv_heads, o.head_dim, o.scale)
        }
        Op::LogProb(o) => write!(line, " [leaves {} chunk {}]", o.shard.leaves.len(), o.chunk),
        _ => Ok(()),
    }
    .expect("a string can be written to");
    line
}

fn shaped(program: &Program, id: BufferId) -> String {
    let b = program.buffer(id);
    format!("{}:{}[{},{}]", b.name, b.dtype, b.rows, b.cols)
}

fn matmul_line(program: &Program, op: &MatMul) -> String {
    let operand = |o: &Operand| {
        let mut text = program.buffer(o.buffer).name.to_string();
        if let Some(r) = &o.rows {
            write!(text, "[{}..{},:]", r.start, r.end).expect("a string can be written to");
        }
        if let Some(c) = &o.cols {
            write!(text, "[:,{}..{}]", c.start, c.end).expect("a string can be written to");
        }
        if o.transposed {
            text.push('\'');
        }
        text
    };
    let chain = |terms: &[crate::ops::Term]| {
        let products: Vec<String> =
            terms.iter().map(|t| format!("{}·{}", operand(&t.a), operand(&t.b))).collect();
        products.join(" ; ")
    };
    let mut line = format!("MatMul {} {} <- ", op.label, shaped(program, op.out));
    match op.leaves.as_slice() {
        [one] => line.push_str(&chain(one)),
        many => write!(line, "tree of {} leaves ({}, ...)", many.len(), chain(&many[0]))
            .expect("a string can be written to"),
    }
    if !op.tail.is_empty() {
        write!(line, " + ({})", chain(&op.tail)).expect("a string can be written to");
    }
    if op.alpha != 1.0 {
        write!(line, " · {}", op.alpha).expect("a string can be written to");
    }
    match op.init {
        Init::Zero => {}
        Init::Bias(b) => line.push_str(&format!(" + {}", program.buffer(b).name)),
        Init::Accumulate => line.push_str(" + itself"),
    }
    line
}
