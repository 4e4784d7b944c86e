//! A matrix for people.

use crate::matrix::{Cell, Matrix};
use std::fmt::Write;

/// In a few words, what came of a cell.
fn outcome(cell: &Cell) -> String {
    match (&cell.verdict, &cell.failure) {
        (Some(verdict), _) if verdict.same => {
            let stops: usize = verdict.steps.iter().map(|s| s.natural_stops).sum();
            let tokens: usize = verdict.steps.iter().map(|s| s.generated).sum();
            format!("0 of {} values differ ({tokens} tokens, {stops} stops)", verdict.compared)
        }
        (Some(verdict), _) => {
            let first = verdict.differences.first();
            let what = first.map_or(String::new(), |d| format!("step {}: {}", d.step, d.what));
            let origin = verdict.origin.as_ref().map_or(String::new(), |o| {
                format!("; first operation: {} {} ({})", o.phase, o.operation, o.what)
            });
            format!("{} values differ, first {what}{origin}", verdict.differences.len())
        }
        (None, Some(failure)) => format!("failed: {failure}"),
        (None, None) => "not run".into(),
    }
}

/// What was asked, in a line.
fn asked(matrix: &Matrix) -> String {
    let a = &matrix.asked;
    format!(
        "{}; weights {}; {} prompts × {} completions of at most {} tokens; temperature {}, top-k {}, top-p {}, seed {}; \
         divergence {}; lr {}",
        a.arithmetic,
        a.weights,
        a.prompts,
        a.samples,
        a.max_response,
        a.temperature,
        a.top_k,
        a.top_p,
        a.seed,
        a.kl_coef,
        a.lr
    )
}

fn degrees(cell: &Cell) -> [String; 3] {
    let [tp, cp, dp] = cell.train;
    let [rollout_tp, rollout_cp] = cell.rollout;
    [
        format!("tp {tp} cp {cp} dp {dp}"),
        format!("tp {rollout_tp} cp {rollout_cp}"),
        cell.accumulation.to_string(),
    ]
}

/// A Markdown table.
pub fn markdown(matrix: &Matrix) -> String {
    let mut text = format!(
        "# The same bits\n\n{} of {} runs have 0 differing bytes. Model: {}; {} updates each; samebit {}.\n\n{}.\n\n\
         | training | rollout | micro-batches | same | what was found |\n|---|---|---|---|---|\n",
        matrix.passing,
        matrix.total,
        matrix.model,
        matrix.steps,
        matrix.version,
        asked(matrix)
    );
    for cell in &matrix.cells {
        let [train, rollout, accumulation] = degrees(cell);
        let same = if cell.passes() { "yes" } else { "NO" };
        writeln!(
            text,
            "| {train} | {rollout} | {accumulation} | {same} | {} |",
            outcome(cell).replace('|', "\\|")
        )
        .expect("a string can be written to");
    }
    text
}

/// A page that needs no other file.
pub fn html(matrix: &Matrix) -> String {
    let mut rows = String::new();
    for cell in &matrix.cells {
        let [train, rollout, accumulation] = degrees(cell);
        let (class, same) = if cell.passes() { ("same", "yes") } else { ("other", "no") };
        writeln!(
            rows,
            "<tr class=\"{class}\"><td>{train}</td><td>{rollout}</td><td>{accumulation}</td><td>{same}</td>\
             <td>{}</td></tr>",
            escape(&outcome(cell))
        )
        .expect("a string can be written to");
    }
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>The same bits</title><style>\
         body{{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}}\
         table{{border-collapse:collapse;width:100%}}td,th{{text-align:left;padding:.25rem .75rem;\
         border-bottom:1px solid #ddd}}.same td:nth-child(4){{color:#176b2c}}\
         .other td{{background:#fdecea}}</style></head><body><h1>The same bits</h1>\
         <p>{} of {} runs have 0 differing bytes. Model: {}; {} updates each; samebit {}; identity {}.</p><p>{}.</p>\
         <table><thead><tr><th>training</th><th>rollout</th><th>micro-batches</th><th>same</th><th>found</th>\
         </tr></thead><tbody>\n{rows}</tbody></table></body></html>\n",
        matrix.passing,
        matrix.total,
        escape(&matrix.model),
        matrix.steps,
        matrix.version,
        matrix.identity,
        escape(&asked(matrix)),
    )
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
