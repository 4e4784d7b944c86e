//! The report: one HTML file with plots as inline SVG, which opens without a network and without scripts.

mod page;
mod plot;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::durable;
use crate::error::RecordError;
use crate::record::Record;
use crate::rows::{self, EVALS_FILE, SECONDS, STEPS_FILE};

/// The report's file.
pub const REPORT_FILE: &str = "report.html";

/// Numbers by name, each a point a line: `(step, value)`.
pub(crate) type Columns = BTreeMap<String, Vec<(f64, f64)>>;

/// Makes the report of a run's folder, whose record is given.
///
/// # Errors
/// As [`rows::read`].
pub fn html(folder: &Path, record: &Record) -> Result<String, RecordError> {
    let steps = columns(&rows::read(folder, STEPS_FILE)?);
    let evals = columns(&rows::read(folder, EVALS_FILE)?);
    Ok(page::page(record, &steps, &evals))
}

/// Writes the report into the run's folder.
///
/// # Errors
/// As [`html`] and [`durable::write`].
pub fn write(folder: &Path, record: &Record) -> Result<(), RecordError> {
    durable::write(folder, REPORT_FILE, html(folder, record)?.as_bytes())
}

/// The numbers of lines by field, over the field `step`; those of an object by its name and theirs: `measured.kl`.
fn columns(lines: &[Map<String, Value>]) -> Columns {
    let mut columns = Columns::new();
    for line in lines {
        let Some(step) = line.get("step").and_then(Value::as_f64) else { continue };
        let mut point = |key: String, value: &Value| {
            if let Some(number) = value.as_f64() {
                columns.entry(key).or_default().push((step, number));
            }
        };
        for (key, value) in line {
            match value {
                Value::Object(parts) => {
                    parts.iter().for_each(|(part, value)| point(format!("{key}.{part}"), value));
                }
                value => point(key.clone(), value),
            }
        }
    }
    // A step of several parts has its seconds in them.
    if let Some(total) = columns.get("seconds.total").cloned() {
        columns.insert(SECONDS.to_owned(), total);
    }
    rates(&mut columns);
    columns
}

/// Adds tokens a second, where tokens and seconds are logged.
fn rates(columns: &mut Columns) {
    let (Some(tokens), Some(seconds)) = (columns.get("tokens"), columns.get(SECONDS)) else {
        return;
    };
    let pairs = tokens.iter().zip(seconds).filter(|(_, second)| second.1 > 0.0);
    let rate = pairs.map(|(tokens, seconds)| (tokens.0, tokens.1 / seconds.1)).collect();
    columns.insert("rate".to_owned(), rate);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rate_is_tokens_over_seconds_where_time_passed() {
        let line = |step: usize, seconds: f64| {
            let line = json!({"step": step, "tokens": 100, "seconds": seconds, "note": "x"});
            line.as_object().unwrap().clone()
        };
        let columns = columns(&[line(1, 0.5), line(2, 0.0), line(3, 4.0)]);
        assert_eq!(columns["rate"], [(1.0, 200.0), (3.0, 25.0)]);
        assert!(!columns.contains_key("note"));
    }
}
