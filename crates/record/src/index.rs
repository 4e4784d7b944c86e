//! The list of runs under a folder: a SQLite database of what their records say, made and mended from the folders
//! whenever it is asked. It holds nothing that they do not, so that where it cannot be had the folders are read instead.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{RecordError, io};
use crate::record::{RECORD_FILE, Record, find, is_run};
use crate::rows::{self, STEPS_FILE};
use crate::seal::SEAL_FILE;

/// The database in the root of the runs.
pub const INDEX_FILE: &str = ".samebit-runs.sqlite";
/// Levels of folders below the root in which runs are looked for.
const DEPTH: usize = 3;
/// Changes with the table: an index of another version is built again.
const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str =
    "CREATE TABLE runs (path TEXT PRIMARY KEY, stamp TEXT NOT NULL, run TEXT NOT NULL)";

/// What the list says of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    /// Its folder, from the root.
    pub path: PathBuf,
    /// What kind of run.
    pub kind: String,
    /// The state that its record gives: see [`Record::standing`] for one that says `running`.
    pub state: String,
    /// The model reference.
    pub model: String,
    /// The wall clock at its first start.
    pub started: String,
    /// Steps done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
    /// Loss of the first and of the last step.
    pub losses: Option<(f64, f64)>,
    /// Whether it has a seal (which is not verified here).
    #[serde(rename = "has_seal")]
    pub sealed: bool,
    /// Why its record cannot be read, if it cannot.
    pub unreadable: Option<String>,
}

/// The open index of a root.
#[derive(Debug)]
pub struct Index {
    root: PathBuf,
    /// `None` where it cannot be written, or would be in a run.
    database: Option<Connection>,
}

impl Index {
    /// Opens the index of a root, or makes one. One that is damaged, of another version, or asked to be built again is
    /// thrown away first. There is none where the folder cannot be written, holds no run, or is a run's own or in one: a
    /// look at a run leaves no file in what is sealed.
    ///
    /// # Errors
    /// [`RecordError::Io`] for the root.
    pub fn open(root: &Path, rebuild: bool) -> Result<Index, RecordError> {
        let path = root.join(INDEX_FILE);
        let (root, without) = (root.to_owned(), None);
        if lies_in_run(&root)? {
            return Ok(Index { root, database: without });
        }
        if rebuild {
            let _ = fs::remove_file(&path);
        }
        if !path.exists() && find(&root, DEPTH)?.is_empty() {
            return Ok(Index { root, database: without });
        }
        let database = Self::database(&path).or_else(|_| {
            let _ = fs::remove_file(&path);
            Self::database(&path)
        });
        Ok(Index { root, database: database.ok() })
    }

    fn database(path: &Path) -> Result<Connection, rusqlite::Error> {
        let database = prepared(Connection::open(path)?)?;
        // A page that was damaged shows here, and not in the middle of a list.
        database.query_row("PRAGMA quick_check", [], |row| row.get::<_, String>(0)).and_then(
            |said| {
                if said == "ok" { Ok(()) } else { Err(rusqlite::Error::QueryReturnedNoRows) }
            },
        )?;
        Ok(database)
    }

    /// Looks at every run's files again and lists the runs, in order of their folders. Only what changed is read; without
    /// an index, or with one that cannot be written any more (a full disk), everything is.
    ///
    /// # Errors
    /// [`RecordError::Io`] for the root.
    pub fn refresh(&mut self) -> Result<Vec<Listed>, RecordError> {
        let folders = find(&self.root, DEPTH)?;
        let indexed =
            self.database.as_mut().and_then(|database| update(database, &self.root, &folders).ok());
        let read = || {
            let look = |folder: &PathBuf| look(folder, below(&self.root, folder));
            folders.iter().map(look).collect()
        };
        Ok(indexed.unwrap_or_else(read))
    }
}

/// Brings a database up to what the folders hold, and lists them.
fn update(
    database: &mut Connection,
    root: &Path,
    folders: &[PathBuf],
) -> Result<Vec<Listed>, rusqlite::Error> {
    let transaction = database.transaction()?;
    let mut kept = BTreeSet::new();
    let mut listed = Vec::with_capacity(folders.len());
    for folder in folders {
        let path = below(root, folder);
        let key = path.to_string_lossy().into_owned();
        let stamp = stamp(folder);
        let known: Option<String> = transaction
            .query_row(
                "SELECT run FROM runs WHERE path = ?1 AND stamp = ?2",
                params![key, stamp],
                |row| row.get(0),
            )
            .optional()?;
        let run = match known.and_then(|text| serde_json::from_str(&text).ok()) {
            Some(run) => run,
            None => {
                let run = look(folder, path);
                let text = serde_json::to_string(&run).unwrap_or_default();
                transaction.execute(
                    "INSERT OR REPLACE INTO runs (path, stamp, run) VALUES (?1, ?2, ?3)",
                    params![key, stamp, text],
                )?;
                run
            }
        };
        kept.insert(key);
        listed.push(run);
    }
    let known: Vec<String> = {
        let mut paths = transaction.prepare("SELECT path FROM runs")?;
        let paths = paths.query_map([], |row| row.get(0))?;
        paths.collect::<Result<_, _>>()?
    };
    for path in known.iter().filter(|path| !kept.contains(*path)) {
        transaction.execute("DELETE FROM runs WHERE path = ?1", params![path])?;
    }
    transaction.commit()?;
    Ok(listed)
}

/// A folder's path from the root.
fn below<'a>(root: &Path, folder: &'a Path) -> &'a Path {
    folder.strip_prefix(root).unwrap_or(folder)
}

/// Whether a folder is a run's, or lies in one.
fn lies_in_run(folder: &Path) -> Result<bool, RecordError> {
    let place = folder.canonicalize().map_err(io("read", folder))?;
    Ok(place.ancestors().any(is_run))
}

/// A database with the table of this version.
fn prepared(database: Connection) -> Result<Connection, rusqlite::Error> {
    let version: i64 = database.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version != SCHEMA_VERSION {
        database.execute_batch(&format!(
            "DROP TABLE IF EXISTS runs; {SCHEMA}; PRAGMA user_version = {SCHEMA_VERSION};"
        ))?;
    }
    Ok(database)
}

/// Size and time of the files that a line of the list comes from.
fn stamp(folder: &Path) -> String {
    let of = |name: &str| {
        let Ok(data) = fs::metadata(folder.join(name)) else { return "-".to_owned() };
        let modified = data.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        format!("{}@{}", data.len(), modified.unwrap_or_default().as_nanos())
    };
    [RECORD_FILE, STEPS_FILE, SEAL_FILE].map(of).join(" ")
}

/// What the files of a run say.
fn look(folder: &Path, path: &Path) -> Listed {
    match Record::read(folder) {
        Ok(record) => read(folder, path, &record),
        Err(error) => Listed {
            path: path.to_owned(),
            kind: String::new(),
            state: "unreadable".into(),
            model: String::new(),
            started: String::new(),
            step: 0,
            steps: 0,
            losses: None,
            sealed: false,
            unreadable: Some(error.to_string()),
        },
    }
}

fn read(folder: &Path, path: &Path, record: &Record) -> Listed {
    let last: Option<Map<String, Value>> = rows::last(folder, STEPS_FILE).ok().flatten();
    let first: Option<Map<String, Value>> = first_line(folder);
    let number = |row: &Option<Map<String, Value>>, key: &str| row.as_ref()?.get(key)?.as_f64();
    let model = record.setting("model").and_then(|setting| setting.resolved.as_str());
    Listed {
        path: path.to_owned(),
        kind: record.kind.clone(),
        state: record.status.name().to_owned(),
        model: model.unwrap_or_default().to_owned(),
        started: record.sessions.first().map(|s| s.started.clone()).unwrap_or_default(),
        step: number(&last, "step").map_or(0, |step| step as usize),
        steps: record.steps,
        losses: number(&first, "loss").zip(number(&last, "loss")),
        sealed: folder.join(SEAL_FILE).exists(),
        unreadable: None,
    }
}

fn first_line(folder: &Path) -> Option<Map<String, Value>> {
    use std::io::BufRead;
    let file = fs::File::open(folder.join(STEPS_FILE)).ok()?;
    let mut line = String::new();
    std::io::BufReader::new(file).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seal::LOCK_FILE;

    /// Paths that the database holds.
    fn known(index: &Index) -> Vec<String> {
        let database = index.database.as_ref().unwrap();
        let mut paths = database.prepare("SELECT path FROM runs ORDER BY path").unwrap();
        let paths = paths.query_map([], |row| row.get(0)).unwrap();
        paths.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn the_database_holds_the_runs_that_there_are() {
        let root = tempfile::tempdir().unwrap();
        for run in ["a", "b"] {
            fs::create_dir(root.path().join(run)).unwrap();
            fs::write(root.path().join(run).join(RECORD_FILE), "{}").unwrap();
        }
        let mut index = Index::open(root.path(), false).unwrap();
        index.refresh().unwrap();
        assert_eq!(known(&index), ["a", "b"]);
        fs::remove_dir_all(root.path().join("a")).unwrap();
        index.refresh().unwrap();
        assert_eq!(known(&index), ["b"]);
    }

    /// A root with one run, whose record cannot be read.
    fn one_run() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("run/adapter")).unwrap();
        fs::write(root.path().join("run").join(RECORD_FILE), "{}").unwrap();
        root
    }

    #[test]
    fn a_database_that_fails_is_done_without() {
        let root = one_run();
        let mut index = Index::open(root.path(), false).unwrap();
        let listed = index.refresh().unwrap();
        assert_eq!(listed.len(), 1);
        let other = Connection::open(root.path().join(INDEX_FILE)).unwrap();
        other.execute_batch("DROP TABLE runs").unwrap();
        assert!(update(index.database.as_mut().unwrap(), root.path(), &[]).is_err());
        assert_eq!(index.refresh().unwrap(), listed);
    }

    #[test]
    fn no_index_is_made_or_taken_away_in_a_run() {
        let root = one_run();
        let stray = root.path().join("run").join(INDEX_FILE);
        fs::write(&stray, "of another version").unwrap();
        for (place, runs) in [("run", 1), ("run/adapter", 0)] {
            for rebuild in [false, true] {
                let mut index = Index::open(&root.path().join(place), rebuild).unwrap();
                assert!(index.database.is_none());
                assert_eq!(index.refresh().unwrap().len(), runs, "{place}");
            }
        }
        assert_eq!(fs::read(&stray).unwrap(), b"of another version");
        assert_eq!(fs::read_dir(root.path().join("run/adapter")).unwrap().count(), 0);
        assert!(Index::open(root.path(), false).unwrap().database.is_some());
        let error = Index::open(&root.path().join("gone"), false).unwrap_err();
        assert!(matches!(error, RecordError::Io { action: "read", .. }), "{error}");
    }

    #[test]
    fn a_folder_without_runs_gets_no_index() {
        let root = tempfile::tempdir().unwrap();
        assert!(Index::open(root.path(), false).unwrap().refresh().unwrap().is_empty());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn runs_are_looked_for_down_to_a_depth() {
        let root = tempfile::tempdir().unwrap();
        let (near, far) = (root.path().join("1/2/3"), root.path().join("1/2/4/5"));
        for folder in [&near, &far] {
            fs::create_dir_all(folder).unwrap();
            fs::write(folder.join(RECORD_FILE), "{}").unwrap();
        }
        assert_eq!(find(root.path(), DEPTH).unwrap(), [near]);
        assert!(find(root.path(), 0).unwrap().is_empty());
    }

    #[test]
    fn a_run_without_its_record_is_listed_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        let make = |folder: &str, files: &[&str]| {
            fs::create_dir(root.path().join(folder)).unwrap();
            for file in files {
                fs::write(root.path().join(folder).join(file), "").unwrap();
            }
        };
        make("sealed", &[SEAL_FILE]);
        make("killed", &[STEPS_FILE, LOCK_FILE]);
        // What is not a run, and a lock that a run left which never began.
        make("data", &[STEPS_FILE]);
        make("begun", &[LOCK_FILE]);
        fs::create_dir_all(root.path().join("folder").join(RECORD_FILE)).unwrap();
        fs::create_dir(root.path().join("linked")).unwrap();
        let link = root.path().join("linked").join(RECORD_FILE);
        std::os::unix::fs::symlink("nowhere", link).unwrap();
        let listed = Index::open(root.path(), false).unwrap().refresh().unwrap();
        let paths: Vec<_> = listed.iter().map(|run| run.path.to_str().unwrap()).collect();
        assert_eq!(paths, ["folder", "killed", "linked", "sealed"]);
        for run in listed {
            assert_eq!(run.state, "unreadable");
            let why = run.unreadable.unwrap();
            assert!(why.contains("record.json"), "{why}");
        }
    }
}
