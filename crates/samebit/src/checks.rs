//! The list before a run: what must hold, each with a figure and what to do where it does not.

use crate::commands::show;
use crate::device;
use crate::kernels;
use crate::tuning::Tuning;
use anyhow::{Result, bail};
use engine::Engine;
use program::ledger::Bytes;
use record::{Gate, Git, Verdict};
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

/// Makes every check, with an engine whose weights are loaded, on the first rank; the others [`trial`]. A run afterwards
/// gives the bits that it gives without.
pub(crate) fn run(tuning: &Tuning, engine: &mut Engine<'_>, options: Options) -> Result<Vec<Gate>> {
    let mut checks = vec![
        settings(tuning),
        adapters(engine),
        supervised(tuning),
        cache(tuning),
        git(&tuning.surroundings.git, options.allow_dirty),
        disk(tuning, engine)?,
        memory(tuning),
    ];
    checks.extend(trial(tuning, engine, options)?);
    Ok(checks)
}

/// Those checks that every rank makes together, by running steps.
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
    Gate::ok("settings resolved", format!("{given} given, the rest by default; every one is used"))
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

fn supervised(tuning: &Tuning) -> Gate {
    let data = &tuning.dataset;
    let counts: Vec<usize> = (0..data.len()).map(|i| data.sample(i).supervised_tokens()).collect();
    let (zero, sum) = (counts.iter().filter(|&&n| n == 0).count(), counts.iter().sum::<usize>());
    let tokens: usize = data.lengths().iter().sum();
    Gate::of(
        "supervised tokens",
        zero == 0 && sum > 0,
        format!("{sum} of {tokens} in {} samples; {zero} samples have none", data.len()),
        "samples without supervised tokens teach nothing: look at their roles and `train` flags",
    )
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

fn disk(tuning: &Tuning, engine: &Engine<'_>) -> Result<Gate> {
    let resolved = &tuning.resolved;
    let space = Space::of(engine);
    let kept = resolved.keep_checkpoints.value;
    let needed = space.needed(kept);
    let free = record::free_bytes(&resolved.out.value)?;
    let figure = format!(
        "{} for {kept} checkpoints, one being written and the product; {} free",
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
    let good = lease.is_none_or(|lease| planned <= lease);
    let figure = format!("planned {}, {lease_words}, {free} free beside it", Bytes(planned));
    Gate::of("memory", good, figure, "lower micro_tokens or raise `memory`")
}

fn longest(tuning: &Tuning, engine: &mut Engine<'_>, smoke: bool) -> Result<Gate> {
    let name = "longest sample fits";
    if smoke {
        let tokens = probe::longest(engine, &tuning.dataset)?;
        return Ok(Gate::ok(name, format!("{tokens} tokens, run forward and backward")));
    }
    let tokens = tuning.dataset.lengths().into_iter().max().unwrap_or(0);
    let budget = tuning.resolved.micro_tokens.value;
    let figure = format!("{tokens} tokens of {budget} planned (--smoke runs it)");
    Ok(Gate::of(name, tokens <= budget, figure, "raise micro_tokens or lower max_length"))
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
    fn code_that_is_committed_passes_and_no_repository_is_said() {
        assert_eq!(git(&repository(Some("c0"), None), false).verdict, Verdict::Ok);
        assert_eq!(git(&Git::NoRepository, false).verdict, Verdict::Skipped);
    }
}
