//! The page around the plots.

use std::fmt::Write;

use serde_json::Value;

use super::Columns;
use super::plot::{Line, number, plot};
use crate::gate::Verdict;
use crate::git::Git;
use crate::record::{KindBytes, Memory, PhaseBytes, Record, Standing, Status};

/// Plots of fields of `steps.jsonl`: field, title, unit. A field that no line has is left out.
const PLOTS: [(&str, &str, &str); 11] = [
    ("loss", "Loss", "nats a token"),
    ("reward", "Reward", "mean of the step"),
    ("rate", "Rate", "tokens a second"),
    ("grad_norm", "Gradient norm", "before clipping"),
    ("lr", "Learning rate", ""),
    ("measured.kl", "Divergence from the reference", "nats a token"),
    ("entropy", "Entropy", "nats a token"),
    ("pairs.accuracy", "Accuracy", "part of the pairs"),
    ("length", "Completion length", "mean tokens"),
    ("uniform", "Groups of equal rewards", "they teach nothing"),
    ("differing_bytes", "Differing log-prob bytes", "training against rollout"),
];

const STYLE: &str = include_str!("style.css");

/// The whole page.
pub(crate) fn page(record: &Record, steps: &Columns, evals: &Columns) -> String {
    let mut html = String::with_capacity(1 << 16);
    let model = record.setting("model").and_then(|setting| setting.resolved.as_str()).unwrap_or("");
    let title = format!("{} of {}", escaped(&record.kind), escaped(model));
    put(
        &mut html,
        format_args!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style></head><body><main>\
             <h1>{title}</h1>"
        ),
    );
    head(&mut html, record, steps, evals);
    plots(&mut html, steps, evals);
    gates(&mut html, record);
    memory(&mut html, &record.memory);
    settings(&mut html, record);
    kernels(&mut html, record);
    identity(&mut html, record);
    html.push_str("</main></body></html>\n");
    html
}

/// How it stands, in a few figures.
fn head(html: &mut String, record: &Record, steps: &Columns, evals: &Columns) {
    let standing = record.standing();
    let state = standing.to_string();
    let words = match &standing {
        Standing::As(Status::Failed { error, .. }) => error.clone(),
        Standing::As(Status::Finished { early: Some(why), .. }) => format!("stopped early: {why}"),
        Standing::Dead(why) | Standing::Unknown(why) => why.clone(),
        Standing::As(_) => String::new(),
    };
    put(html, format_args!("<p class=\"status {state}\"><b>{state}</b> {}</p>", escaped(&words)));
    let last = |key: &str| steps.get(key).and_then(|points| points.last()).map(|point| point.1);
    let from_to = |columns: &Columns, key: &str| {
        let points = columns.get(key)?;
        Some(format!("{:.4} → {:.4}", points.first()?.1, points.last()?.1))
    };
    let sum =
        |key: &str| steps.get(key).map(|points| points.iter().map(|point| point.1).sum::<f64>());
    html.push_str("<dl>");
    let mut figure = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            put(html, format_args!("<div><dt>{name}</dt><dd>{value}</dd></div>"));
        }
    };
    figure("steps", last("step").map(|step| format!("{step} of {}", record.steps)));
    figure("loss", from_to(steps, "loss"));
    figure("reward", from_to(steps, "reward"));
    figure("held-out loss", from_to(evals, "loss"));
    figure("held-out reward", from_to(evals, "reward"));
    figure("tokens", sum("tokens").map(number));
    figure("hours of steps", sum("seconds").map(|s| format!("{:.2}", s / 3600.0)));
    let rate = sum("tokens").zip(sum("seconds")).filter(|(_, s)| *s > 0.0);
    figure("tokens a second", rate.map(|(tokens, s)| format!("{:.0}", tokens / s)));
    figure("trained parameters", Some(record.trained_parameters.to_string()));
    let data = &record.data;
    let supervised = format!("{} of {}", data.supervised, data.tokens);
    figure("supervised of tokens", (data.supervised > 0).then_some(supervised));
    figure("started", record.sessions.first().map(|session| escaped(&session.started)));
    html.push_str("</dl>");
}

fn plots(html: &mut String, steps: &Columns, evals: &Columns) {
    html.push_str("<section class=\"plots\">");
    for (key, title, unit) in PLOTS {
        let Some(points) = steps.get(key) else { continue };
        let mut lines =
            vec![Line { name: "training", points, class: "a", dots: points.len() <= 60 }];
        if let (Some(points), "loss" | "reward") = (evals.get(key), key) {
            lines.push(Line { name: "held out", points, class: "b", dots: true });
        }
        let Some(drawing) = plot(&lines) else { continue };
        put(
            html,
            format_args!(
                "<figure><figcaption>{title} <small>{unit}</small></figcaption>{drawing}</figure>"
            ),
        );
    }
    html.push_str("</section>");
}

fn gates(html: &mut String, record: &Record) {
    if record.gates.is_empty() {
        return;
    }
    html.push_str("<h2>Checks and gates</h2><table><tr><th>what</th><th></th><th>figure</th><th>times</th></tr>");
    for gate in &record.gates {
        let class = match gate.verdict {
            Verdict::Ok => "ok",
            Verdict::Failed => "failed",
            Verdict::Skipped => "skipped",
        };
        put(
            html,
            format_args!(
                "<tr><td>{}</td><td class=\"{class}\">{}</td><td>{}</td><td class=\"n\">{}</td></tr>",
                escaped(&gate.name),
                gate.verdict,
                escaped(&gate.figure),
                gate.times
            ),
        );
    }
    html.push_str("</table>");
}

/// A table of each distinct rank, then the lease and the peak.
fn memory(html: &mut String, memory: &Memory) {
    html.push_str("<h2>Memory</h2>");
    for of in &memory.ranks {
        if memory.has_several_ranks() {
            put(html, format_args!("<p>Each of ranks {}</p>", escaped(&of.ranks)));
        }
        kinds(html, &of.kinds);
    }
    phases(html, &memory.phases);
    let lease = memory.lease_bytes.map(|lease| format!("lease {}", bytes(lease)));
    let peak = memory.peak_resident_bytes.map(|peak| format!("peak resident {}", bytes(peak)));
    let rest: Vec<String> = lease.into_iter().chain(peak).collect();
    put(html, format_args!("<p>{}</p>", rest.join(" · ")));
}

/// Bars by kind: planned as an outline, used as its filling.
fn kinds(html: &mut String, kinds: &[KindBytes]) {
    let kinds: Vec<_> = kinds.iter().filter(|k| k.planned_bytes.max(k.used_bytes) > 0).collect();
    let most = kinds.iter().map(|k| k.planned_bytes.max(k.used_bytes)).max().unwrap_or(1) as f64;
    html.push_str("<table><tr><th>kind</th><th>planned</th><th>used</th><th></th></tr>");
    for kind in &kinds {
        let width = |bytes: usize| 100.0 * bytes as f64 / most;
        let agrees = if kind.planned_bytes == kind.used_bytes { "" } else { " failed" };
        put(
            html,
            format_args!(
                "<tr><td>{}</td><td class=\"n\">{}</td><td class=\"n{agrees}\">{}</td><td class=\"bar\"><i \
                 style=\"width:{:.1}%\"></i><b style=\"width:{:.1}%\"></b></td></tr>",
                escaped(&kind.kind),
                bytes(kind.planned_bytes),
                bytes(kind.used_bytes),
                width(kind.planned_bytes),
                width(kind.used_bytes),
            ),
        );
    }
    let sum = |of: fn(&KindBytes) -> usize| kinds.iter().map(|k| of(k)).sum::<usize>();
    put(
        html,
        format_args!(
            "<tr><td><b>together</b></td><td class=\"n\">{}</td><td class=\"n\">{}</td><td></td></tr></table>",
            bytes(sum(|k| k.planned_bytes)),
            bytes(sum(|k| k.used_bytes)),
        ),
    );
}

/// What each rank held in each phase.
fn phases(html: &mut String, phases: &[PhaseBytes]) {
    if phases.is_empty() {
        return;
    }
    html.push_str("<table><tr><th>rank</th><th>phase</th><th>planned</th><th>used</th></tr>");
    for of in phases {
        let agrees = if of.planned_bytes == of.used_bytes { "" } else { " failed" };
        put(
            html,
            format_args!(
                "<tr><td class=\"n\">{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n{agrees}\">{}</td></tr>",
                of.rank,
                escaped(&of.phase),
                bytes(of.planned_bytes),
                bytes(of.used_bytes),
            ),
        );
    }
    html.push_str("</table>");
}

fn settings(html: &mut String, record: &Record) {
    html.push_str(
        "<h2>Settings</h2><table><tr><th>key</th><th>asked</th><th>ran</th><th>why</th></tr>",
    );
    for setting in &record.settings {
        put(
            html,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(&setting.key),
                value(&setting.requested),
                value(&setting.resolved),
                escaped(&setting.why)
            ),
        );
    }
    html.push_str("</table>");
}

fn kernels(html: &mut String, record: &Record) {
    let arithmetic = &record.arithmetic;
    put(
        html,
        format_args!(
            "<h2>Arithmetic</h2><p>Profile {}; ran on {}</p><details><summary>{} kernels as they ran</summary><table><tr>\
             <th>program</th><th>operation</th><th>kernel</th><th>layers</th><th>times</th></tr>",
            escaped(&arithmetic.profile),
            escaped(&arithmetic.device),
            arithmetic.kernels.len()
        ),
    );
    for kernel in &arithmetic.kernels {
        put(
            html,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td class=\"n\">{}</td></tr>",
                escaped(&kernel.program),
                escaped(&kernel.op),
                escaped(&kernel.kernel),
                escaped(&kernel.layers),
                kernel.times
            ),
        );
    }
    html.push_str("</table></details>");
}

fn identity(html: &mut String, record: &Record) {
    html.push_str("<h2>Identity</h2><table>");
    let mut row = |name: &str, value: &str| {
        put(
            html,
            format_args!(
                "<tr><td>{}</td><td><code>{}</code></td></tr>",
                escaped(name),
                escaped(value)
            ),
        );
    };
    for (name, hash) in &record.identity.hashes {
        row(name, hash);
    }
    for at in [record.tensors.first(), record.tensors.last()].into_iter().flatten() {
        row(&format!("tensors after step {}", at.step), &at.sha256);
    }
    let code = match &record.git {
        Git::NoRepository => "no git repository".to_owned(),
        Git::Unavailable { why } => format!("unknown: {why}"),
        Git::Repository(repository) => {
            let commit = repository.commit.as_deref().unwrap_or("no commit");
            match &repository.patch {
                None => format!("{commit}, clean"),
                Some(patch) => format!("{commit} with a patch, BLAKE3 {}", patch.blake3),
            }
        }
    };
    row("code", &code);
    let machine = &record.machine;
    row(
        "machine",
        &format!(
            "{}, {}, {} cores, {}",
            machine.host, machine.processor, machine.cores, machine.system
        ),
    );
    html.push_str("</table>");
}

fn value(value: &Value) -> String {
    match value {
        Value::Null => "–".into(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

/// Bytes in binary units.
fn bytes(bytes: usize) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes >= 1 << shift);
    unit.map_or(format!("{bytes} B"), |(name, shift)| {
        format!("{:.2} {name}", bytes as f64 / (1u64 << shift) as f64)
    })
}

/// Text that no reader of HTML takes for marks.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c => out.push(c),
        }
    }
    out
}

fn put(text: &mut String, words: std::fmt::Arguments<'_>) {
    text.write_fmt(words).expect("a string can be written to");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_escaped_and_bytes_have_units() {
        assert_eq!(escaped("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
        assert_eq!([bytes(5), bytes(2048), bytes(3 << 30)], ["5 B", "2.00 KiB", "3.00 GiB"]);
        assert_eq!(value(&Value::Null), "–");
    }
}
