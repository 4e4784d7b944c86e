//! The list before a run: what must hold, each with a figure and what to do where it does not.

use crate::commands::show;
use crate::device;
use crate::kernels;
use crate::output;
use crate::tuning::Tuning;
use anyhow::{Context, Result, bail};
use engine::Engine;
use program::ledger::Bytes;
use record::{Built, Gate, Git, Verdict};
use serde_json::Value;
use std::collections::BTreeSet;
use train::{Space, probe};

/// What the list lets pass and tries besides.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// Run with uncommitted changes in the working directory; the record keeps the patch
    #[arg(long)]
    pub(crate) allow_dirty: bool,
    /// Run the longest sample for real, forward and backward, before the first step
    #[arg(long)]
    pub(crate) smoke: bool,
}

/// A run that could not even be planned: the check that it failed, and why.
pub(crate) struct NotReady {
    pub(crate) check: &'static str,
    pub(crate) error: anyhow::Error,
}

impl NotReady {
    /// What turns an error into the failure of a check.
    pub(crate) fn at<E: Into<anyhow::Error>>(check: &'static str) -> impl FnOnce(E) -> NotReady {
        move |error| NotReady { check, error: error.into() }
    }

    /// As it stands in the list.
    pub(crate) fn gate(&self) -> Gate {
        Gate::failed(self.check, output::message(&self.error), "")
    }
}

impl From<NotReady> for anyhow::Error {
    fn from(not_ready: NotReady) -> anyhow::Error {
        not_ready.error
    }
}

pub(crate) const SETTINGS: &str = "settings resolved";
pub(crate) const SUPERVISED: &str = "supervised tokens";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const STEPS: &str = "steps planned";
const LONGEST: &str = "longest sample fits";

/// Makes the checks for which nothing runs, with an engine whose weights are loaded, on the first rank.
pub(crate) fn standing(
    tuning: &Tuning,
    engine: &Engine<'_>,
    options: Options,
) -> Result<Vec<Gate>> {
    Ok(vec![
        settings(tuning),
        adapters(engine),
        supervised(tuning),
        steps(tuning),
        cache(tuning),
        git(&tuning.surroundings.git, options.allow_dirty),
        program(tuning.surroundings.binary.built.as_ref()),
        disk(tuning, engine)?,
        memory(tuning),
    ])
}

/// Makes those checks that every rank makes together, by running steps. A run afterwards gives the bits that it gives
/// without.
pub(crate) fn trial(
    tuning: &Tuning,
    engine: &mut Engine<'_>,
    options: Options,
) -> Result<Vec<Gate>> {
    engine.forget_kernels();
    let mut checks = probe::probe(engine, &tuning.dataset, &tuning.resolved)?;
    checks.extend(kernels::choices(&tuning.device, &engine.kernels()));
    checks.push(longest(tuning, engine, options.smoke)?);
    Ok(checks)
}

/// Refuses where a check failed, naming each with what to do.
pub(crate) fn refuse_failed(checks: &[Gate]) -> Result<()> {
    let failed: Vec<Gate> =
        checks.iter().filter(|check| check.verdict == Verdict::Failed).cloned().collect();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("{} of {} checks failed\n{}", failed.len(), checks.len(), show::gates(&failed))
}

fn settings(tuning: &Tuning) -> Gate {
    let given = tuning.requested.sources.len();
    Gate::ok(SETTINGS, format!("{given} given, the rest by default; every one is used"))
}

fn adapters(engine: &Engine<'_>) -> Gate {
    let graph = &engine.graph;
    let modules: BTreeSet<&str> =
        graph.params.iter().filter_map(|param| families::lora_module(&param.name)).collect();
    if modules.is_empty() {
        let trained = graph.params.iter().filter(|param| param.trainable).count();
        return Gate::ok("trained tensors", format!("{trained}, every weight of the model"));
    }
    let last = |module: &&str| module.rsplit('.').next().unwrap_or("").to_owned();
    let names: BTreeSet<String> = modules.iter().map(last).collect();
    let names: Vec<String> = names.into_iter().collect();
    let figure =
        format!("{} modules of {} layers: {}", modules.len(), graph.layers, names.join(", "));
    Gate::ok("patterns match", figure)
}

/// Encoding has refused a sample with nothing to learn, so that the least of them says how near it was.
fn supervised(tuning: &Tuning) -> Gate {
    let data = &tuning.dataset;
    let counts = || (0..data.len()).map(|i| data.sample(i).supervised_tokens());
    let (sum, least) = (counts().sum::<usize>(), counts().min().unwrap_or(0));
    let tokens: usize = data.lengths().iter().sum();
    let figure = format!("{sum} of {tokens} in {} samples, at least {least} in each", data.len());
    Gate::ok(SUPERVISED, figure)
}

/// The order was made, and a warm-up longer than the run refused, before the engine.
fn steps(tuning: &Tuning) -> Gate {
    let (steps, r) = (tuning.steps, &tuning.resolved);
    let (batches, tokens) = (r.accumulation.value, r.micro_tokens.value);
    Gate::ok(STEPS, format!("{steps} of {batches} × {tokens} tokens"))
}

/// Where in a record's account of the encode cache that of held-out files is.
pub(crate) const EVALUATION: &str = "evaluation";

/// What the encode cache did; it is keyed by the meaning of what it holds.
fn cache(tuning: &Tuning) -> Gate {
    let name = "encode cache";
    let outcome = &tuning.surroundings.cache;
    let words = |outcome: &Value| {
        let text = |key: &str| outcome[key].as_str().unwrap_or_default().to_owned();
        let (state, key) = (text("state"), text("key"));
        (!key.is_empty()).then(|| format!("{state}, key {key:.16}"))
    };
    let Some(figure) = words(outcome) else {
        return Gate::skipped(name, "the data was encoded without one");
    };
    let held_out = words(&outcome[EVALUATION]).map(|words| format!("; held-out data: {words}"));
    Gate::ok(name, figure + &held_out.unwrap_or_default())
}

/// The state of the working directory: what runs must be known afterwards.
pub(crate) fn git(git: &Git, allow_dirty: bool) -> Gate {
    let name = "code is committed";
    let repository = match git {
        Git::NoRepository => {
            return Gate::skipped(name, "the working directory is in no git repository");
        }
        Git::Unavailable { why } => {
            let advice = "mend what git says, or give --allow-dirty: the record then says that nobody knows the code";
            return Gate::of(name, allow_dirty, format!("unknown: {why}"), advice);
        }
        Git::Repository(repository) => repository,
    };
    let advice = "commit them, or give --allow-dirty: the record then keeps the patch";
    let untracked = repository.untracked;
    let Some(patch) = &repository.patch else {
        return match &repository.commit {
            Some(commit) => Gate::ok(name, format!("{commit:.12}, clean, {untracked} untracked")),
            None => {
                let figure = format!("no commit yet, and {untracked} untracked files");
                Gate::of(name, allow_dirty, figure, advice)
            }
        };
    };
    let commit = repository.commit.as_deref().unwrap_or("no commit yet");
    let figure = format!(
        "{commit:.13} and {} changed files ({}), patch {:.12}",
        patch.files.len(),
        patch.files.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", "),
        patch.blake3
    );
    if patch.is_kept() {
        return Gate::of(name, allow_dirty, figure, advice);
    }
    let figure = format!("{figure}, of {}: too large to keep", Bytes(patch.bytes));
    let advice =
        "commit them, or give --allow-dirty: the record then keeps the hash of the patch alone";
    Gate::of(name, allow_dirty, figure, advice)
}

/// The code of this program: not what a user can commit, but what the record says of it.
fn program(built: Option<&Built>) -> Gate {
    let name = "program has a commit";
    match built {
        None => Gate::skipped(name, "it was built without a repository; the record has its hash"),
        Some(built) if built.changed => {
            Gate::skipped(name, format!("built from {built}; the record has its hash"))
        }
        Some(built) => Gate::ok(name, built.to_string()),
    }
}

fn disk(tuning: &Tuning, engine: &Engine<'_>) -> Result<Gate> {
    let resolved = &tuning.resolved;
    let space = Space::of(engine);
    let kept = resolved.keep_checkpoints.value;
    let needed = space.needed(kept, &resolved.out.value)?;
    let free = record::free_bytes(&resolved.out.value)?;
    let figure = format!(
        "{} for {kept} checkpoints, one being written, the product and the record; {} free",
        Bytes(needed as usize),
        Bytes(free as usize)
    );
    let advice =
        "free some space, keep fewer checkpoints (keep_checkpoints), or choose another folder";
    Ok(Gate::of("disk space", free >= needed, figure, advice))
}

/// The plan was held against the lease and the free memory before the engine was made; here is by how much it fits.
fn memory(tuning: &Tuning) -> Gate {
    let planned = tuning.blueprints.iter().map(|b| b.ledger.total()).max().unwrap_or(0);
    let lease = tuning.resolved.memory.as_ref().map(|chosen| chosen.value.0);
    let lease_words =
        lease.map_or("no lease".to_owned(), |bytes| format!("lease {}", Bytes(bytes)));
    let free =
        device::available_bytes().map_or("unknown".to_owned(), |bytes| Bytes(bytes).to_string());
    let together = match tuning.blueprints.len() {
        1 => String::new(),
        ranks => {
            format!(" on a rank, {} on {ranks} together", Bytes(tuning.planned_bytes()))
        }
    };
    let figure =
        format!("planned {}{together}, {lease_words}, {free} free beside it", Bytes(planned));
    Gate::ok(MEMORY, figure)
}

fn longest(tuning: &Tuning, engine: &mut Engine<'_>, smoke: bool) -> Result<Gate> {
    if smoke {
        let ran = probe::longest(engine, &tuning.dataset, tuning.evaluation.as_ref());
        let ran = ran.context("--smoke: the longest sample")?;
        let held_out =
            ran.held_out.map(|tokens| format!("; held out: {tokens} tokens, run forward"));
        let figure = format!("{} tokens, run forward and backward", ran.trained);
        return Ok(Gate::ok(LONGEST, figure + &held_out.unwrap_or_default()));
    }
    // Encoding left none that is longer.
    let tokens = tuning.dataset.lengths().into_iter().max().unwrap_or(0);
    let budget = tuning.resolved.micro_tokens.value;
    Ok(Gate::ok(LONGEST, format!("{tokens} tokens of {budget} planned (--smoke runs it)")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use record::{PATCH_BYTES_LIMIT, Patch, Repository};

    fn repository(commit: Option<&str>, patch_bytes: Option<usize>) -> Git {
        let patch = patch_bytes.map(|bytes| Patch {
            bytes,
            blake3: "ab".repeat(32),
            files: vec!["a.rs".into()],
            content: Vec::new(),
        });
        Git::Repository(Repository {
            root: "/code".into(),
            commit: commit.map(str::to_owned),
            branch: None,
            patch,
            untracked: 2,
            untracked_named: Vec::new(),
        })
    }

    #[test]
    fn code_that_is_not_known_is_refused_unless_that_is_let_pass() {
        let unavailable = Git::Unavailable { why: "dubious ownership".into() };
        for (state, said) in [
            (unavailable, "unknown: dubious ownership"),
            (repository(None, None), "no commit yet, and 2 untracked files"),
            (repository(None, Some(10)), "no commit yet and 1 changed files (a.rs)"),
            (repository(Some("c0"), Some(PATCH_BYTES_LIMIT)), "c0 and 1 changed files"),
            (repository(Some("c0"), Some(PATCH_BYTES_LIMIT + 1)), "too large to keep"),
        ] {
            let (refused, passed) = (git(&state, false), git(&state, true));
            assert_eq!((refused.verdict, passed.verdict), (Verdict::Failed, Verdict::Ok), "{said}");
            assert!(refused.figure.contains(said), "{}", refused.figure);
            assert!(refused.advice.contains("--allow-dirty"), "{}", refused.advice);
        }
        let kept = git(&repository(Some("c0"), Some(PATCH_BYTES_LIMIT)), true);
        assert!(!kept.figure.contains("too large"), "{}", kept.figure);
    }

    #[test]
    fn a_program_of_no_commit_is_said() {
        let built = |changed| Built { commit: "0123456789abcdef".into(), changed };
        assert_eq!(program(None).verdict, Verdict::Skipped);
        assert_eq!(program(Some(&built(true))).verdict, Verdict::Skipped);
        let clean = program(Some(&built(false)));
        assert_eq!((clean.verdict, &*clean.figure), (Verdict::Ok, "0123456789ab"));
    }

    #[test]
    fn code_that_is_committed_passes_and_no_repository_is_said() {
        assert_eq!(git(&repository(Some("c0"), None), false).verdict, Verdict::Ok);
        assert_eq!(git(&Git::NoRepository, false).verdict, Verdict::Skipped);
    }
}
