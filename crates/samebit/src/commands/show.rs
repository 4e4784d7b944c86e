//! `samebit show`: a run's record in words, with its seal verified.

use crate::output::{self, Table, duration, thousands};
use crate::sealed::Sealed;
use anyhow::{Context, Result, bail};
use program::ledger::Bytes;
use record::{Annotation, Git, Record, RecordError, Session, Standing, Status, Verdict};
use serde::Serialize;
use std::path::PathBuf;

/// Arguments of `samebit show`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The run's folder
    run: PathBuf,
    /// File of the public key that must have signed the seal
    #[arg(long, value_name = "FILE")]
    signer: Option<PathBuf>,
    /// Write the HTML report to a file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Machine-readable: the record, whether it runs, the seal, notes
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown {
    standing: String,
    seal: Sealed,
    annotations: Vec<Annotation>,
    /// Why notes cannot be read, if they cannot.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable_annotations: Option<String>,
    record: Record,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let record = Record::read(&args.run)?;
    let signer = args.signer.as_deref().map(record::read_public_key).transpose()?;
    let seal = Sealed::of(&args.run, &record, signer.as_ref())?;
    if let Some(file) = &args.report {
        let html = record::report::html(&args.run, &record)?;
        std::fs::write(file, html).with_context(|| format!("cannot write {}", file.display()))?;
    }
    // Anybody may write notes: one that is damaged hides no run.
    let (annotations, unreadable_annotations) = match record::annotations(&args.run) {
        Ok(annotations) => (annotations, None),
        Err(error @ RecordError::Malformed { .. }) => (Vec::new(), Some(error.to_string())),
        Err(error) => return Err(error.into()),
    };
    let standing = record.standing().to_string();
    let shown = Shown { standing, seal, annotations, unreadable_annotations, record };
    output::report(args.json, &shown, text)?;
    shown.seal.intact(&args.run)?;
    match shown.unreadable_annotations {
        Some(why) => bail!("{why}; mend the line, or remove it"),
        None => Ok(()),
    }
}

fn text(shown: &Shown) -> String {
    let record = &shown.record;
    let mut text = head(record);
    text += &match &shown.seal {
        Sealed::None => "seal: none\n".to_owned(),
        Sealed::Intact { root, files, signed_by } => {
            let by = signed_by.as_ref().map_or(String::new(), |key| format!(", signed by {key}"));
            format!("seal: intact, {files} files, {root:.16}…{by}\n")
        }
        Sealed::Broken { broken } => {
            let lines: Vec<String> = broken.iter().map(|b| format!("  BROKEN: {b}\n")).collect();
            format!("seal: BROKEN: this is not what was recorded\n{}", lines.concat())
        }
    };
    text += &code(record);
    for change in record.sessions.iter().flat_map(|session| &session.changed) {
        text += &format!("let pass: {change}\n");
    }
    text += "\nsettings\n";
    text += &settings(record);
    text += "\nchecks and gates\n";
    text += &gates(&record.gates);
    text += "\nmemory\n";
    text += &memory(record);
    text += "\narithmetic\n";
    text += &arithmetic(record);
    text += "\nidentity\n";
    for (name, hash) in &record.identity.hashes {
        text += &format!("  {name:16} {hash}\n");
    }
    for at in &record.tensors {
        let name = format!("tensors, step {}", at.step);
        text += &format!("  {name:16} {}\n", at.sha256);
    }
    if let Some(why) = &shown.unreadable_annotations {
        text += &format!("\nnotes that cannot be read: {}\n", plain(why));
    }
    for note in &shown.annotations {
        text += &annotation(note);
    }
    text
}

fn head(record: &Record) -> String {
    let standing = record.standing();
    let mut text = format!("{} {standing}", record.kind);
    text += &match &standing {
        Standing::Dead(why) | Standing::Unknown(why) => format!(": {why}"),
        Standing::As(Status::Finished { step, product, early }) => {
            let early = early.as_ref().map_or(String::new(), |why| format!(", early: {why}"));
            format!(": {step} of {} steps, {}{early}", record.steps, product.display())
        }
        Standing::As(Status::Stopped { step }) => {
            format!(": after {step} of {} steps", record.steps)
        }
        Standing::As(Status::Failed { step, samples, error }) => {
            let at = step.map_or(String::new(), |step| format!(" at step {step}"));
            let samples = match samples.is_empty() {
                true => String::new(),
                false => format!("\nits samples: {}", samples.join(", ")),
            };
            format!("{at}: {error}{samples}")
        }
        Standing::As(Status::Running) => String::new(),
    };
    text.push('\n');
    for session in &record.sessions {
        text += &format!(
            "from step {}: {} to {}, {} ({} jumps of the clock)\n",
            session.from_step,
            session.started,
            session.written,
            duration(session.seconds),
            session.clock_jump_count
        );
    }
    let data = &record.data;
    text += &format!(
        "data: {} samples, {} tokens, {} supervised · {} trained parameters\n",
        thousands(data.samples),
        thousands(data.tokens),
        thousands(data.supervised),
        thousands(record.trained_parameters)
    );
    text
}

/// The code and the machine of each session that had others than the one before.
fn code(record: &Record) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut before = None;
    for session in &record.sessions {
        let lines_now = session_code(session);
        if before.as_ref() != Some(&lines_now) {
            if before.is_some() {
                lines.push(format!("from step {} on:\n", session.from_step));
            }
            lines.push(lines_now.clone());
        }
        before = Some(lines_now);
    }
    lines.concat()
}

fn session_code(session: &Session) -> String {
    let git = match &session.git {
        Git::NoRepository => "no git repository".to_owned(),
        Git::Unavailable { why } => format!("git state unknown: {why}"),
        Git::Repository(repository) => {
            let commit = repository.commit.as_deref().unwrap_or("no commit");
            match &repository.patch {
                None if repository.commit.is_none() => {
                    format!(
                        "no commit yet; {} untracked files, of which nothing is kept",
                        repository.untracked
                    )
                }
                None => format!("{commit}, clean, {} untracked", repository.untracked),
                Some(patch) if patch.is_kept() => {
                    let file = session.patch.as_deref().unwrap_or(record::PATCH_FILE);
                    format!("{commit} DIRTY: {file} ({} files)", patch.files.len())
                }
                Some(patch) => format!(
                    "{commit} DIRTY: {} files; their patch of {} was too large to keep, BLAKE3 {}",
                    patch.files.len(),
                    Bytes(patch.bytes),
                    patch.blake3
                ),
            }
        }
    };
    let machine = &session.machine;
    let built = session.binary.built.as_ref();
    let built =
        built.map_or("of no known commit".to_owned(), |built| format!("built from {built}"));
    format!(
        "code: {git}\nprogram: {built}\nmachine: {}, {}, {} cores, {}\n",
        machine.host, machine.processor, machine.cores, machine.system
    )
}

fn settings(record: &Record) -> String {
    let mut table = Table::left(&["key", "asked", "ran", "why"]);
    let said = |value: &serde_json::Value| match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    for setting in &record.settings {
        table.row([
            setting.key.clone(),
            said(&setting.requested),
            said(&setting.resolved),
            setting.why.clone(),
        ]);
    }
    table.text()
}

/// A line a check, and what to do under one that failed.
pub(crate) fn gates(gates: &[record::Gate]) -> String {
    let width = gates.iter().map(|gate| gate.name.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for gate in gates {
        text += &format!("  {:7}  {:width$}  {}\n", gate.verdict, gate.name, gate.figure);
        if gate.verdict == Verdict::Failed && !gate.advice.is_empty() {
            text += &format!("  {:7}  {:width$}  → {}\n", "", "", gate.advice);
        }
    }
    text
}

/// A table of each distinct rank's bytes, headed by its ranks where there are several.
fn memory(record: &Record) -> String {
    let memory = &record.memory;
    let mut text = String::new();
    for of in &memory.ranks {
        if memory.has_several_ranks() {
            text += &format!("  each of ranks {}\n", of.ranks);
        }
        let mut table = Table::new(&["kind", "planned", "used", "bytes"]);
        for kind in of.kinds.iter().filter(|kind| kind.planned_bytes + kind.used_bytes > 0) {
            table.row([
                kind.kind.clone(),
                Bytes(kind.planned_bytes).to_string(),
                Bytes(kind.used_bytes).to_string(),
                thousands(kind.used_bytes),
            ]);
        }
        text += &table.text();
    }
    if let Some(peak) = memory.peak_resident_bytes {
        text += &format!("  peak resident {} ({})\n", Bytes(peak), thousands(peak));
    }
    if !memory.phases.is_empty() {
        let mut table = Table::new(&["rank and phase", "planned", "used", "bytes"]);
        for of in &memory.phases {
            table.row([
                format!("{} {}", of.rank, of.phase),
                Bytes(of.planned_bytes).to_string(),
                Bytes(of.used_bytes).to_string(),
                thousands(of.used_bytes),
            ]);
        }
        text += &table.text();
    }
    text
}

fn arithmetic(record: &Record) -> String {
    let arithmetic = &record.arithmetic;
    let mut text = format!("  {}\n", arithmetic.device);
    let mut table = Table::left(&["program", "operation", "kernel", "layers", "times"]);
    for kernel in &arithmetic.kernels {
        table.row([
            kernel.program.clone(),
            kernel.op.clone(),
            kernel.kernel.clone(),
            kernel.layers.clone(),
            kernel.times.to_string(),
        ]);
    }
    text += &table.text();
    for layer in &record.adapters {
        let at = layer.layer.map_or("outside layers".to_owned(), |layer| format!("layer {layer}"));
        let names: Vec<&str> =
            layer.modules.iter().map(|m| m.rsplit('.').next().unwrap_or(m)).collect();
        text += &format!(
            "  adapters of {at}: rank {}, scale {}: {}\n",
            layer.rank,
            layer.scale,
            names.join(" ")
        );
    }
    text
}

/// A note in a few lines.
pub(crate) fn annotation(note: &Annotation) -> String {
    let mut text = format!("\nnote of {} by {}\n", plain(&note.at), plain(&note.by));
    for falls in &note.falls {
        text += &format!("  falls:    {}\n", plain(falls));
    }
    for survives in &note.survives {
        text += &format!("  survives: {}\n", plain(survives));
    }
    if !note.note.is_empty() {
        text += &format!("  {}\n", plain(&note.note));
    }
    text
}

/// What anybody may have written, without what would move the cursor or colour the terminal.
fn plain(text: &str) -> String {
    let said =
        |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(said).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[31mé\n\u{9b}"), "a\\u{1b}[31mé\\n\\u{9b}");
    }
}
