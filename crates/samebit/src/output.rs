//! Reports: aligned tables for people, JSON for programs.

use anyhow::Result;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether anything was printed to standard output.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// Whether the command has printed a report, or a part of it.
pub(crate) fn has_reported() -> bool {
    REPORTED.load(Ordering::Relaxed)
}

/// An error with its causes. A typed error's message often holds its cause's, which is then not said again.
pub(crate) fn message(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// Prints a report as JSON, or as its text.
pub(crate) fn report<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<()> {
    REPORTED.store(true, Ordering::Relaxed);
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, value)?;
        writeln!(out)?;
    } else {
        out.write_all(text(value).as_bytes())?;
    }
    Ok(())
}

/// Prints a value as one line of JSON.
pub(crate) fn line<T: Serialize>(value: &T) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string(value)?))
}

/// Prints to standard output; an error where nobody reads it.
pub(crate) fn print(text: &str) -> Result<()> {
    REPORTED.store(true, Ordering::Relaxed);
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Tells on the error stream what the owner must see and what stops nothing.
pub(crate) fn warn(text: &str) {
    tell!("warning: {text}");
}

/// A table with aligned columns; the first column is aligned left, the others right, or left in a table of words.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    words: bool,
}

impl Table {
    pub(crate) fn new(header: &[&str]) -> Table {
        Table { rows: vec![header.iter().map(|h| h.to_string()).collect()], words: false }
    }

    /// A table of words: every column is aligned left.
    pub(crate) fn left(header: &[&str]) -> Table {
        Table { words: true, ..Table::new(header) }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// The table, each line indented by two spaces.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |c: usize| {
            self.rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::from(" ");
            for (c, cell) in row.iter().enumerate() {
                let pad = widths[c] - cell.chars().count();
                if c == 0 || self.words {
                    let gap = if c == 0 { "" } else { " " };
                    write!(line, "{gap} {cell}{}", " ".repeat(pad))
                        .expect("a string can be written to");
                } else {
                    write!(line, "  {}{cell}", " ".repeat(pad))
                        .expect("a string can be written to");
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// A count with thousands separated.
pub(crate) fn thousands(n: usize) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

/// A duration for people.
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s {
        0..=119 => format!("{seconds:.1} s"),
        120..=7199 => format!("{} min {:02} s", s / 60, s % 60),
        7200..=172_799 => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
        _ => format!("{:.1} days", seconds / 86400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow!("not a number").context("line 3: not a number").context("data.jsonl");
        assert_eq!(message(&error), "data.jsonl: line 3: not a number");
    }

    #[test]
    fn thousands_are_separated() {
        assert_eq!(thousands(43_646_976), "43,646,976");
        assert_eq!(thousands(999), "999");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["kind", "bytes"]);
        table.row(["weights".into(), "1".into()]);
        table.row(["x".into(), "1000".into()]);
        assert_eq!(table.text(), "  kind     bytes\n  weights      1\n  x         1000\n");
    }
}
