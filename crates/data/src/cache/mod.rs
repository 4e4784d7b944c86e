//! The encode cache: data sets on disk, by what they mean.
//!
//! A folder with a file an entry, named by its [`CacheKey`]. An entry is verified whole on every read, written beside its
//! place and renamed, and the entries used longest ago go when all together are over the limit. Nothing that is wrong
//! with a cache stops a run: the data is encoded again, and the [`CacheOutcome`] says so.

mod entry;
mod error;
mod key;
#[cfg(test)]
mod tests;

pub use entry::Entry;
pub use error::CacheError;
pub use key::CacheKey;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use crate::corpus::Corpus;
use crate::dataset::Dataset;

const EXTENSION: &str = "encoded";
/// What files are called while they are written.
const WRITING: &str = ".writing-";
/// Age of a file that was being written when its process ended.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// A folder of encoded data sets.
#[derive(Clone, Debug)]
pub struct EncodeCache {
    folder: PathBuf,
    limit_bytes: u64,
}

/// How the cache served a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CacheOutcome {
    /// What happened.
    pub state: CacheState,
    /// The key; none where the cache was off.
    pub key: Option<String>,
    /// Bytes of the entry that was read or written; 0 where there is none now.
    pub bytes: u64,
    /// Seconds of looking up, reading and verifying.
    pub lookup_s: f64,
    /// Seconds of encoding; none on a hit.
    pub encode_s: Option<f64>,
    /// What the owner must see: a damaged entry, a folder that cannot be written.
    pub warnings: Vec<String>,
}

/// What the cache did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// The data set was read from its entry.
    Hit,
    /// There was no entry; there is one now.
    Miss,
    /// The entry was wrong and was written anew.
    Rebuilt,
    /// The data set was encoded and could not be kept.
    Unwritable,
    /// The cache was not asked.
    Off,
}

impl CacheState {
    /// As a word.
    pub fn name(self) -> &'static str {
        match self {
            CacheState::Hit => "hit",
            CacheState::Miss => "miss",
            CacheState::Rebuilt => "rebuilt",
            CacheState::Unwritable => "unwritable",
            CacheState::Off => "off",
        }
    }
}

impl CacheOutcome {
    /// The outcome of a run that asked no cache.
    pub fn off(encode_s: f64, warning: Option<String>) -> CacheOutcome {
        CacheOutcome {
            state: CacheState::Off,
            key: None,
            bytes: 0,
            lookup_s: 0.0,
            encode_s: Some(encode_s),
            warnings: warning.into_iter().collect(),
        }
    }
}

/// An entry as it lies in the folder.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryInfo {
    /// Its key.
    pub key: String,
    /// Its size.
    pub bytes: u64,
    /// When it was last read or written.
    pub used: SystemTime,
    /// What it says of itself; none where it is no entry of this version.
    pub entry: Option<Entry>,
}

/// What pruning removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Entries that are gone.
    pub removed: usize,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Entries that are left.
    pub kept: usize,
    /// Their bytes.
    pub kept_bytes: u64,
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError::Io { action, path, source }
}

impl EncodeCache {
    /// A cache in a folder, which need not exist, of at most so many bytes.
    pub fn new(folder: impl Into<PathBuf>, limit_bytes: u64) -> EncodeCache {
        EncodeCache { folder: folder.into(), limit_bytes }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: &CacheKey) -> PathBuf {
        self.folder.join(key.as_str()).with_extension(EXTENSION)
    }

    /// The data set of a key, which is the corpus's: from its entry, or else from `encode`, and then kept.
    ///
    /// # Errors
    /// What `encode` gives; never for what is wrong with the cache.
    pub fn get_or_encode<E>(
        &self,
        key: &CacheKey,
        corpus: &Corpus,
        encode: impl FnOnce() -> Result<Dataset, E>,
    ) -> Result<(Dataset, CacheOutcome), E> {
        let start = Instant::now();
        let loaded = self.load(key, corpus);
        let lookup_s = start.elapsed().as_secs_f64();
        let (mut state, mut warnings) = (CacheState::Miss, Vec::new());
        match loaded {
            Ok(Some((dataset, bytes))) => {
                let (state, key) = (CacheState::Hit, Some(key.to_string()));
                let outcome =
                    CacheOutcome { state, key, bytes, lookup_s, encode_s: None, warnings };
                return Ok((dataset, outcome));
            }
            Ok(None) => {}
            Err(problem) => {
                state = CacheState::Rebuilt;
                warnings.push(format!("{problem}; the data is encoded again"));
            }
        }
        let start = Instant::now();
        let dataset = encode()?;
        let encode_s = start.elapsed().as_secs_f64();
        let bytes = self.store(key, &dataset, encode_s).unwrap_or_else(|problem| {
            state = CacheState::Unwritable;
            warnings.push(format!("{problem}; the encoded data is not kept for the next run"));
            0
        });
        if bytes > 0
            && let Err(problem) = self.prune_to(self.limit_bytes, Some(key))
        {
            warnings.push(format!("{problem}; the encode cache may grow past its limit"));
        }
        let key = Some(key.to_string());
        let encode_s = Some(encode_s);
        Ok((dataset, CacheOutcome { state, key, bytes, lookup_s, encode_s, warnings }))
    }

    /// Reads and verifies an entry; none where there is none.
    fn load(&self, key: &CacheKey, corpus: &Corpus) -> Result<Option<(Dataset, u64)>, CacheError> {
        let path = self.path(key);
        let about = match fs::metadata(&path) {
            Ok(about) => about,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io("read", &path)(error)),
        };
        // A pipe would be waited for, and a file of another length than it says is not read to its end.
        if !about.is_file() && !about.is_dir() {
            return Err(CacheError::NotAnEntry { path });
        }
        let mut file = File::open(&path).map_err(io("read", &path))?;
        match entry::read_header(&mut file).map_err(io("read", &path))? {
            None if about.len() > entry::HEADER_LIMIT as u64 => {
                return Err(CacheError::NotAnEntry { path });
            }
            Some(claim) if claim.bytes != Some(about.len()) => {
                return Err(CacheError::Damaged { path });
            }
            // A small one is read, to say what is wrong with it.
            _ => {}
        }
        let bytes = fs::read(&path).map_err(io("read", &path))?;
        let dataset = entry::parse(&path, &bytes, key, corpus)?;
        // Only says when it was used; in a folder that cannot be written there is nothing to prune either.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Ok(Some((dataset, bytes.len() as u64)))
    }

    /// Writes an entry; gives its size.
    fn store(&self, key: &CacheKey, dataset: &Dataset, encode_s: f64) -> Result<u64, CacheError> {
        let (path, folder) = (self.path(key), &self.folder);
        let entry = Entry::of(key, dataset, encode_s);
        let bytes = entry.bytes();
        if bytes > self.limit_bytes {
            return Err(CacheError::OverLimit { bytes, limit: self.limit_bytes });
        }
        fs::create_dir_all(folder).map_err(io("create", folder))?;
        let mut builder = tempfile::Builder::new();
        // As any file, so that the cache can be shared: what the umask leaves of it.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let staged = builder.prefix(WRITING).tempfile_in(folder);
        let mut out = BufWriter::new(staged.map_err(io("create a file in", folder))?);
        entry::write(&mut out, &entry, dataset).map_err(io("write", &path))?;
        out.flush().map_err(io("write", &path))?;
        let staged = out.into_inner().map_err(|error| io("write", &path)(error.into_error()))?;
        staged.as_file().sync_all().map_err(io("sync", &path))?;
        staged.persist(&path).map_err(|error| io("rename a file to", &path)(error.error))?;
        Ok(bytes)
    }

    /// The entries, the one used last first.
    ///
    /// # Errors
    /// [`CacheError::Io`]. A folder that is not there has none.
    pub fn list(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let mut entries = Vec::new();
        for (path, metadata) in self.files()? {
            if path.extension().is_none_or(|extension| extension != EXTENSION) {
                continue;
            }
            let mut file = File::open(&path).map_err(io("open", &path))?;
            let claim = entry::read_header(&mut file).map_err(io("read", &path))?;
            entries.push(EntryInfo {
                key: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                bytes: metadata.len(),
                used: metadata.modified().map_err(io("read", &path))?,
                entry: claim.map(|claim| claim.entry),
            });
        }
        entries.sort_by(|a, b| b.used.cmp(&a.used).then_with(|| a.key.cmp(&b.key)));
        Ok(entries)
    }

    /// Removes the entries used longest ago until the rest have at most `limit_bytes`, and files that were being written
    /// a day ago.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn prune(&self, limit_bytes: u64) -> Result<Pruned, CacheError> {
        self.prune_to(limit_bytes, None)
    }

    /// As [`prune`](Self::prune); one entry stays whatever its age.
    fn prune_to(&self, limit_bytes: u64, stays: Option<&CacheKey>) -> Result<Pruned, CacheError> {
        let mut pruned = Pruned::default();
        let mut entries = self.list()?;
        // First, so that it is counted before any that may go.
        entries.sort_by_key(|info| stays.is_none_or(|key| info.key != key.as_str()));
        let mut full = false;
        for info in entries {
            // Once one goes, all that were used before it go: a small one does not outlive a newer one by its size.
            full |= pruned.kept_bytes + info.bytes > limit_bytes;
            if !full {
                pruned.kept += 1;
                pruned.kept_bytes += info.bytes;
                continue;
            }
            let path = self.folder.join(&info.key).with_extension(EXTENSION);
            remove(&path)?;
            pruned.removed += 1;
            pruned.removed_bytes += info.bytes;
        }
        for (path, metadata) in self.files()? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let age = metadata.modified().ok().and_then(|modified| modified.elapsed().ok());
            if name.starts_with(WRITING) && age.is_some_and(|age| age >= ABANDONED) {
                remove(&path)?;
            }
        }
        Ok(pruned)
    }

    /// The files of the folder; one that another process removes meanwhile is none.
    fn files(&self) -> Result<Vec<(PathBuf, fs::Metadata)>, CacheError> {
        let folder = match fs::read_dir(&self.folder) {
            Ok(folder) => folder,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io("read", &self.folder)(error)),
        };
        let mut files = Vec::new();
        for file in folder {
            let path = file.map_err(io("read", &self.folder))?.path();
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_file() => files.push((path, metadata)),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(io("read", &path)(error)),
            }
        }
        Ok(files)
    }
}

/// Removes a file that may be gone already.
fn remove(path: &Path) -> Result<(), CacheError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("remove", path)(error))
        }
        _ => Ok(()),
    }
}
