//! The settings of a run that is started, or resumed from its record.

use crate::model::Source;
use anyhow::{Context, Result, bail};
use record::Record;
use rl::RlSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use train::{Requested, Settings};

/// Settings with those of training in them.
pub(crate) trait RunSettings: Serialize + DeserializeOwned + Default + Clone {
    /// The kind of run in a record.
    const KIND: &'static str;

    fn training(&mut self) -> &mut Settings;

    /// Paths beside those of training.
    fn other_paths(&mut self) -> Vec<&mut PathBuf>;
}

impl RunSettings for Settings {
    const KIND: &'static str = "train";

    fn training(&mut self) -> &mut Settings {
        self
    }

    fn other_paths(&mut self) -> Vec<&mut PathBuf> {
        Vec::new()
    }
}

impl RunSettings for RlSettings {
    const KIND: &'static str = "rl";

    fn training(&mut self) -> &mut Settings {
        &mut self.train
    }

    fn other_paths(&mut self) -> Vec<&mut PathBuf> {
        self.reward_schema.iter_mut().collect()
    }
}

/// The settings of a file and flags; with `--resume RUN` those of its record and flags. `resume` is what was given with
/// that flag.
pub(crate) fn requested<S: RunSettings>(
    resume: Option<Option<&Path>>,
    config: Option<&Path>,
    flags: &S,
) -> Result<Requested<S>> {
    if let Some(Some(run)) = resume {
        return recorded(run, config, flags.clone());
    }
    let mut requested = Requested::read(config, flags.clone())?;
    if let (Some(None), Some(out)) = (resume, requested.settings.training().out.clone()) {
        keep_date(&mut requested, &of_kind(&out, S::KIND)?, &out);
    }
    Ok(requested)
}

/// A day that was chosen at a run's first start stays the run's, where no other is asked for.
fn keep_date<S: RunSettings>(requested: &mut Requested<S>, record: &Record, folder: &Path) {
    const KEY: &str = "template_date";
    let chosen = record.settings.iter().find(|setting| setting.key == KEY);
    let chosen = chosen.and_then(|setting| setting.resolved.as_str()?.parse().ok());
    let date = &mut requested.settings.training().template_date;
    if date.is_none() && chosen.is_some() {
        *date = chosen;
        let record = folder.join(record::RECORD_FILE);
        requested.sources.insert(KEY.into(), train::Source::File(record));
    }
}

/// The settings of a run's record; flags outrank them. Relative paths in them count from where it was last begun, so
/// that is where this process goes.
fn recorded<S: RunSettings>(
    run: &Path,
    config: Option<&Path>,
    mut flags: S,
) -> Result<Requested<S>> {
    if config.is_some() || flags.training().out.is_some() {
        bail!("--resume {} has the settings already: leave --config and --out out", run.display());
    }
    let folder = std::path::absolute(run_of(run))?;
    let record = of_kind(&folder, S::KIND)?;
    let newest = train::checkpoints(&folder)?.pop().map(|(_, path)| path);
    if let Some(newest) =
        newest.filter(|newest| run_of(run) != run && newest.file_name() != run.file_name())
    {
        bail!(
            "{} is not the run's newest checkpoint, which is {}: name the run to go on from there, or remove later ones",
            run.display(),
            newest.display()
        );
    }
    let training = flags.training();
    let data = training.data.iter_mut().flatten().map(|source| &mut source.path);
    for path in data.chain(training.eval.iter_mut().flatten()) {
        *path = std::path::absolute(&*path)?;
    }
    if let Some(model) = training.model.as_mut().filter(|model| Path::new(model).exists()) {
        let path = std::path::absolute(&*model)?;
        *model = path.to_str().context("--model: its path is not UTF-8")?.to_owned();
    }
    for path in flags.other_paths() {
        *path = std::path::absolute(&*path)?;
    }
    let recorded: Requested<S> = asked(&record, &folder)?;
    let from = &record.directory;
    std::env::set_current_dir(from).with_context(|| {
        format!("{}: the run was last begun there, and its paths count from there", from.display())
    })?;
    Ok(recorded.overridden(flags)?)
}

/// The settings of a run's record, for a look at it: where the folder that it was last begun in has gone, its absolute
/// paths still hold.
pub(crate) fn recorded_settings<S: RunSettings>(
    record: &Record,
    folder: &Path,
) -> Result<Requested<S>> {
    if record.directory.is_dir() {
        std::env::set_current_dir(&record.directory)?;
    }
    asked(record, folder)
}

/// What was asked of a run.
fn asked<S: RunSettings>(record: &Record, folder: &Path) -> Result<Requested<S>> {
    let mut requested = train::requested(record, folder.to_owned()).with_context(|| {
        format!("{}: this version does not have its settings", folder.display())
    })?;
    keep_date(&mut requested, record, folder);
    Ok(requested)
}

/// The record of a run, which must be of a kind.
pub(crate) fn of_kind(folder: &Path, kind: &str) -> Result<Record> {
    let record = Record::read(folder)?;
    if record.kind != kind {
        bail!(
            "{} is a run of `samebit {}`, not of `samebit {kind}`",
            folder.display(),
            record.kind
        );
    }
    Ok(record)
}

/// Environment variable with the file of the signing key.
const SIGN_KEY: &str = "SAMEBIT_SIGN_KEY";

/// The file of the key that signs a finished run: a flag's, else the environment's. One that cannot be read must not show
/// after the last step.
pub(crate) fn signing_key(flag: Option<&Path>) -> Result<Option<PathBuf>> {
    let from_environment = || std::env::var_os(SIGN_KEY).map(PathBuf::from);
    let key = flag.map(Path::to_owned).or_else(from_environment);
    let key = key.map(std::path::absolute).transpose()?;
    if let Some(key) = &key {
        record::read_signing_key(key)?;
    }
    Ok(key)
}

/// Where models are looked for, wherever this process goes.
pub(crate) fn source(source: &Source) -> Result<Source> {
    let cache = source.cache.clone().map_or_else(hub::default_folder, Ok);
    let cache = cache.ok().map(std::path::absolute).transpose()?;
    Ok(Source { cache, ..source.clone() })
}

/// The run of a path that may be one of its checkpoints, as the end of a stopped run names it.
fn run_of(path: &Path) -> &Path {
    let of_checkpoint = || {
        let checkpoints = path.parent()?;
        let is_step = path.file_name()?.to_str()?.starts_with("step-");
        (is_step && checkpoints.ends_with(train::CHECKPOINTS)).then(|| checkpoints.parent())?
    };
    of_checkpoint().unwrap_or(path)
}
