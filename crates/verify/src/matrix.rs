//! Many pairs of topologies, one file each in an archive, so that a matrix goes on where it stopped.

use crate::compare::{Verdict, verify};
use crate::error::VerifyError;
use crate::seen::{Trace, sha256};
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
    /// SHA-256 of the cell as JSON with this empty: a cell that was edited is run again.
    pub digest: String,
}

impl Cell {
    fn digest_of(&self) -> String {
        let bare = Cell { digest: String::new(), ..self.clone() };
        // A value of this type is always JSON; if it were not, no digest would fit.
        sha256(serde_json::to_vec(&bare).unwrap_or_default())
    }

    /// The cell with its digest.
    #[must_use]
    pub fn sealed(self) -> Cell {
        Cell { digest: self.digest_of(), ..self }
    }

    /// Whether it is what a run of a case wrote.
    fn is_of(&self, case: &Case) -> bool {
        let blank = Cell::blank(case, &self.identity);
        let of_case = (&self.schema, &self.case, self.train, self.rollout, self.accumulation)
            == (&blank.schema, &blank.case, blank.train, blank.rollout, blank.accumulation);
        of_case && self.digest == self.digest_of()
    }

    /// A cell of which nothing is known yet.
    fn blank(case: &Case, identity: &str) -> Cell {
        let (t, r) = (case.pair.train, case.pair.rollout);
        Cell {
            schema: SCHEMA.into(),
            identity: identity.into(),
            case: case.name(),
            train: [t.tp, t.cp, t.dp],
            rollout: [r.tp, r.cp],
            accumulation: case.accumulation,
            verdict: None,
            failure: None,
            digest: String::new(),
        }
    }

    /// Whether every byte was the same.
    pub fn passes(&self) -> bool {
        self.verdict.as_ref().is_some_and(|verdict| verdict.same)
    }
}

/// What was asked of every run of a matrix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// What computed: profile and program.
    pub arithmetic: String,
    /// Hash of the weights before training.
    pub weights: String,
    /// Prompts.
    pub prompts: usize,
    /// Completions of each.
    pub samples: usize,
    /// Most tokens of a completion.
    pub max_response: usize,
    /// Temperature.
    pub temperature: f32,
    /// Most candidates; 0 for all.
    pub top_k: usize,
    /// Smallest set of candidates whose probability reaches this.
    pub top_p: f32,
    /// Seed of the draws.
    pub seed: u64,
    /// Coefficient of the divergence in the loss.
    pub kl_coef: f64,
    /// Learning rate.
    pub lr: f32,
}

impl Asked {
    fn new(work: &Work<'_>, settings: &Settings) -> Asked {
        let sampling = settings.sampling;
        Asked {
            arithmetic: work.arithmetic.clone(),
            weights: work.weights.clone(),
            prompts: work.prompts.len(),
            samples: settings.samples,
            max_response: settings.max_response,
            temperature: sampling.temperature,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            seed: sampling.seed,
            kl_coef: settings.kl_coef,
            lr: settings.hyper.lr,
        }
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
    /// What was asked.
    pub asked: Asked,
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
/// differed is kept beside as `NAME.failed-N.json` and run again, one of another identity as `NAME.other-N.json`, a file that is
/// not what a run of its case wrote as `NAME.edited-N.json` or `NAME.unreadable-N.json`. `told` hears each cell as it is
/// done.
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
        let cell = match passed(&path, case, &identity)? {
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
        asked: Asked::new(work, settings),
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
    let mut cell = Cell::blank(case, identity);
    match verify(work, &settings, case.pair, None, known) {
        Ok((verdict, reference)) => {
            references.entry(case.accumulation).or_insert(reference);
            cell.verdict = Some(verdict);
        }
        Err(error) => cell.failure = Some(error.to_string()),
    }
    cell.sealed()
}

/// The cell of a file, where it passed under this identity. Any other is moved out of the way, under a name that says why
/// it does not count.
fn passed(path: &Path, case: &Case, identity: &str) -> Result<Option<Cell>, VerifyError> {
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(path).map_err(|error| failed(path, error))?;
    let why = match serde_json::from_slice::<Cell>(&text) {
        Err(_) => "unreadable",
        Ok(cell) if !cell.is_of(case) => "edited",
        Ok(cell) if !cell.passes() => "failed",
        Ok(cell) if cell.identity != identity => "other",
        Ok(cell) => return Ok(Some(cell)),
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
