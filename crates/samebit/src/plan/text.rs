//! A plan for people.

use super::report::PlanReport;
use crate::output::{Table, duration, thousands};
use program::ledger::Bytes;
use std::fmt::Write;

/// The plan as text.
pub(crate) fn render(plan: &PlanReport) -> String {
    let mut text = String::new();
    let mut line = |s: String| {
        text.push_str(&s);
        text.push('\n');
    };
    line(format!("{} · {} · {} layers", plan.model, plan.architecture, plan.layers));
    let mut table = Table::new(&["parameters", ""]);
    for (kind, count) in &plan.parameters {
        table.row([kind.to_string(), thousands(*count)]);
    }
    table.row(["total".into(), thousands(plan.parameters_total)]);
    table.row(["trained".into(), thousands(plan.trainable)]);
    line(format!("\n{}", table.text()));
    for pattern in &plan.patterns {
        let mut s = format!("target `{}` matches {} modules", pattern.pattern, pattern.modules);
        if !pattern.layers_without.is_empty() {
            write!(s, "; layers without one: {:?}", pattern.layers_without)
                .expect("a string can be written to");
        }
        line(s);
    }
    for note in &plan.replicated {
        line(format!("note: {note}"));
    }
    let [tp, cp, dp] = plan.topology;
    line(format!(
        "\nmicro-batch {}, accumulation {}, tp {tp} cp {cp} dp {dp}, width {}: {}",
        if plan.micro_batch * plan.sequence == plan.micro_tokens {
            format!("{} × {} tokens", plan.micro_batch, plan.sequence)
        } else {
            format!("of {} tokens, samples of at most {}", plan.micro_tokens, plan.sequence)
        },
        plan.accumulation,
        plan.width,
        plan.keep
    ));
    let mut table = Table::new(&["memory of a rank", "", "bytes"]);
    for (kind, &bytes) in plan.ledger.iter().filter(|(_, b)| **b > 0) {
        table.row([kind.to_string(), Bytes(bytes).to_string(), thousands(bytes)]);
    }
    let total = plan.ledger_total_bytes;
    table.row(["total".into(), Bytes(total).to_string(), thousands(total)]);
    if let Some(lease) = plan.lease_bytes {
        table.row(["lease".into(), Bytes(lease).to_string(), thousands(lease)]);
    }
    line(table.text());
    if plan.ranks.len() > 1 {
        let mut table = Table::new(&["ranks (tp.cp.dp)", "memory", "bytes"]);
        for group in &plan.ranks {
            let places = group.ranks.iter().map(|[tp, cp, dp]| format!("{tp}.{cp}.{dp}"));
            table.row([
                places.collect::<Vec<_>>().join(" "),
                Bytes(group.total_bytes).to_string(),
                thousands(group.total_bytes),
            ]);
        }
        line(table.text());
    }
    line(format!(
        "loss: whole logits would take {}; {} rows at a time take {}",
        Bytes(plan.head.whole_logits_bytes),
        plan.head.chunk_rows,
        Bytes(plan.head.chunk_bytes)
    ));
    line(work(plan));
    if !plan.table.is_empty() {
        let mut table = Table::new(&["micro-batch × tokens", "memory", "tokens/s", "kept"]);
        for cell in &plan.table {
            table.row([
                format!("{} × {}", cell.micro_batch, cell.sequence),
                Bytes(cell.bytes).to_string(),
                format!("{:.0}", cell.tokens_per_s),
                cell.keep.clone().unwrap_or_else(|| "does not fit".into()),
            ]);
        }
        line(format!("\n{}", table.text()));
    }
    if let Some(serving) = &plan.serving {
        line(crate::serving::text(serving));
    }
    text
}

fn work(plan: &PlanReport) -> String {
    let w = &plan.work;
    let mut text = format!(
        "work: {:.2} GFLOP a token by {}; {:.2} by the program, recomputation included\n",
        w.rule_flops_per_token / 1e9,
        w.rule,
        w.program_flops_per_token / 1e9
    );
    write!(
        text,
        "a step of {} tokens: {} at {:.0} GFLOP/s ({:.0} tokens/s)",
        thousands(w.step_tokens),
        duration(w.step_s),
        w.rate_gflops,
        w.tokens_per_s
    )
    .expect("a string can be written to");
    if let (Some(tokens), Some(steps), Some(flops), Some(seconds)) =
        (w.tokens, w.steps, w.total_flops, w.total_s)
    {
        write!(
            text,
            "\n{} tokens: {} steps, {:.3e} FLOP, {}",
            thousands(tokens as usize),
            thousands(steps as usize),
            flops,
            duration(seconds)
        )
        .expect("a string can be written to");
    }
    text
}
