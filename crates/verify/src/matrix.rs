//! Many pairs of topologies, one file each in an archive, so that a matrix goes on where it stopped.

use crate::compare::{Verdict, verify};
use crate::error::VerifyError;
use crate::seen::Trace;
use crate::work::{Pair, Settings, Work};
use program::Topology;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Schema of the archive's files.
pub const SCHEMA: &str = "samebit.verify/2";

/// One run of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// The topologies.
    pub pair: Pair,
    /// Logical micro-batches of a step.
    pub accumulation: usize,
}

impl Case {
    /// A name for files.
    pub fn name(&self) -> String {
        let (t, r) = (self.pair.train, self.pair.rollout);
        format!("t{}x{}x{}-r{}x{}-a{}", t.tp, t.cp, t.dp, r.tp, r.cp, self.accumulation)
    }
}

/// The cases of the matrix: training TP × CP = 8 with every rollout TP × CP ≤ 8 in powers of two (40 pairs), then data
/// ranks 2 and 4 and accumulation 2 and 4.
pub fn cases(width: usize) -> Vec<Case> {
    let topology = |tp, cp, dp| Topology { tp, cp, dp, width };
    let powers = [1, 2, 4, 8];
    let mut cases = Vec::new();
    for tp in powers {
        for rollout_tp in powers {
            for rollout_cp in powers.into_iter().filter(|cp| rollout_tp * cp <= 8) {
                let rollout = topology(rollout_tp, rollout_cp, 1);
                let pair = Pair { train: topology(tp, 8 / tp, 1), rollout };
                cases.push(Case { pair, accumulation: 2 });
            }
        }
    }
    for (train, accumulation) in [
        ((1, 1, 2), 2),
        ((2, 2, 2), 2),
        ((1, 1, 4), 4),
        ((2, 1, 4), 4),
        ((1, 2, 2), 4),
        ((2, 2, 1), 4),
    ] {
        let pair = Pair { train: topology(train.0, train.1, train.2), rollout: topology(2, 2, 1) };
        cases.push(Case { pair, accumulation });
    }
    cases
}

/// One case with what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// [`SCHEMA`].
    pub schema: String,
    /// Hash of model, settings and version: a cell of another identity is run again.
    pub identity: String,
    /// [`Case::name`].
    pub case: String,
    /// Training degrees: tp, cp, dp.
    pub train: [usize; 3],
    /// Rollout degrees: tp, cp.
    pub rollout: [usize; 2],
    /// Logical micro-batches of a step.
    pub accumulation: usize,
    /// What was found; absent where the run failed.
    pub verdict: Option<Verdict>,
    /// Why the run proves nothing.
    pub failure: Option<String>,
}

impl Cell {
    /// Whether every byte was the same.
    pub fn passes(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.same)
    }
}

/// A matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Matrix {
    /// [`SCHEMA`].
    pub schema: String,
    /// The model.
    pub model: String,
    /// Version of samebit.
    pub version: String,
    /// Hash of model, settings and version.
    pub identity: String,
    /// Updates of each run.
    pub steps: usize,
    /// Runs in all.
    pub total: usize,
    /// Runs in which every byte was the same.
    pub passing: usize,
    /// The runs that are done.
    pub cells: Vec<Cell>,
}

/// Runs cases, or takes them from the archive where they passed there under the same identity. A run that failed or
/// differed is kept beside as `NAME.failed-N.json` and run again, one of another identity as `NAME.other-N.json`. `told`
/// hears each cell as it is done.
///
/// # Errors
/// A case that cannot run, before any does; an archive that cannot be written.
pub fn matrix(
    work: &Work<'_>,
    settings: &Settings,
    cases: &[Case],
    archive: &Path,
    told: &mut dyn FnMut(&Cell, usize),
) -> Result<Matrix, VerifyError> {
    for case in cases {
        case.pair.check()?;
        Settings { accumulation: case.accumulation, ..*settings }.check(work)?;
    }
    let identity = work.identity(settings);
    fs::create_dir_all(archive).map_err(|error| failed(archive, error))?;
    let mut references: BTreeMap<usize, Trace> = BTreeMap::new();
    let mut cells = Vec::new();
    for case in cases {
        let path = archive.join(format!("{}.json", case.name()));
        let cell = match passed(&path, &identity)? {
            Some(cell) => cell,
            None => {
                let cell = run(work, settings, case, &identity, &mut references);
                write(&path, &cell)?;
                cell
            }
        };
        told(&cell, cells.len() + 1);
        cells.push(cell);
    }
    Ok(Matrix {
        schema: SCHEMA.into(),
        model: work.name.clone(),
        version: env!("CARGO_PKG_VERSION").into(),
        identity,
        steps: settings.steps,
        total: cases.len(),
        passing: cells.iter().filter(|cell| cell.passes()).count(),
        cells,
    })
}

fn run(
    work: &Work<'_>,
    settings: &Settings,
    case: &Case,
    identity: &str,
    references: &mut BTreeMap<usize, Trace>,
) -> Cell {
    let settings = Settings { accumulation: case.accumulation, ..*settings };
    let known = references.get(&case.accumulation);
    let (verdict, failure) = match verify(work, &settings, case.pair, None, known) {
        Ok((verdict, reference)) => {
            references.entry(case.accumulation).or_insert(reference);
            (Some(verdict), None)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    let (t, r) = (case.pair.train, case.pair.rollout);
    Cell {
        schema: SCHEMA.into(),
        identity: identity.into(),
        case: case.name(),
        train: [t.tp, t.cp, t.dp],
        rollout: [r.tp, r.cp],
        accumulation: case.accumulation,
        verdict,
        failure,
    }
}

/// The cell of a file, where it passed under this identity. Any other is moved out of the way, under a name that says why
/// it does not count.
fn passed(path: &Path, identity: &str) -> Result<Option<Cell>, VerifyError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(path).map_err(|error| failed(path, error))?;
    let cell: Cell = serde_json::from_slice(&text).map_err(|error| failed(path, error))?;
    let why = match (cell.passes(), cell.identity == identity) {
        (true, true) => return Ok(Some(cell)),
        (true, false) => "other",
        (false, _) => "failed",
    };
    let free = (1..).map(|n| path.with_extension(format!("{why}-{n}.json")));
    let target = free.into_iter().find(|target| !target.exists());
    target
        .map_or(Ok(()), |target| fs::rename(path, target))
        .map_err(|error| failed(path, error))?;
    Ok(None)
}

fn write(path: &Path, cell: &Cell) -> Result<(), VerifyError> {
    let text = serde_json::to_vec_pretty(cell).map_err(|error| failed(path, error))?;
    let staged = path.with_extension("writing");
    fs::write(&staged, text).map_err(|error| failed(&staged, error))?;
    fs::rename(&staged, path).map_err(|error| failed(path, error))
}

fn failed(path: &Path, reason: impl ToString) -> VerifyError {
    VerifyError::Archive { path: path.display().to_string(), reason: reason.to_string() }
}
