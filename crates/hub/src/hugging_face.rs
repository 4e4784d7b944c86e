//! Repositories of the Hugging Face hub.
//!
//! A branch is first resolved to its commit, and everything is then read at that commit, so that a model never mixes
//! two. The `hf-hub` crate downloads into its own cache layout (blobs, and snapshots that link to them); it trusts the
//! connection, so sizes and hashes are checked here. A commit whose files are all there and checked gets a marker, and
//! only what has a marker is used without asking the hub.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo, Metadata};
use hf_hub::{Cache, RepoType};

use crate::cache::{self, not_writable};
use crate::repo_files::{self, Weights};
use crate::{HubError, Kind, Options, Repo, Resolved, sha256};

/// One repository in the cache.
struct Place {
    cache: Cache,
    repo: Repo,
    /// Folder of the markers of this repository.
    markers: PathBuf,
}

/// How much of a repository is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All that a model needs.
    Model,
    /// Its configuration, which says its sizes.
    Configuration,
}

pub(crate) fn resolve(
    repo: &Repo,
    wanted: Wanted,
    options: &Options<'_>,
) -> Result<Resolved, HubError> {
    let root = options.cache_dir.join("hub");
    let place = Place {
        markers: root.join("complete").join(repo.id.replace('/', "--")),
        cache: Cache::new(root.clone()),
        repo: repo.clone(),
    };
    // A commit never changes, so a whole one needs no question.
    if is_commit(&repo.revision) || options.offline {
        if let Some(found) = place.there(&place.known_commit()?, wanted) {
            return Ok(found);
        }
        if options.offline {
            return Err(HubError::NotCached {
                identity: format!("hf:{}@{}", repo.id, repo.revision),
                cache: options.cache_dir.clone(),
            });
        }
    }
    cache::make_folder(&place.markers)?;
    let _lock = cache::lock(&place.markers.join(".lock"))?;
    let api = api(root, options)?;
    let list = api
        .repo(place.hf_repo(&repo.revision))
        .info()
        .map_err(|error| place.list_failed(&error))?;
    let commit = list.sha;
    if !is_commit(&commit) {
        return Err(place.unusable(format!("the hub gives the commit {commit:?}")));
    }
    if place.there(&commit, wanted).is_none() {
        let present = list.siblings.into_iter().map(|file| file.rfilename);
        let fetch = Fetch {
            place: &place,
            repo: api.repo(place.hf_repo(&commit)),
            api: &api,
            commit: &commit,
            options,
        };
        match wanted {
            Wanted::Model => fetch.all(&present.collect())?,
            Wanted::Configuration => fetch.configuration(&present.collect())?,
        }
        cache::write_whole(&place.marker(&commit, wanted), b"")?;
    }
    cache::write_whole(&place.reference(), commit.as_bytes())?;
    place.there(&commit, wanted).ok_or_else(|| place.unusable("its snapshot is gone".to_owned()))
}

fn api(root: PathBuf, options: &Options<'_>) -> Result<Api, HubError> {
    let mut builder = ApiBuilder::from_cache(Cache::new(root))
        .with_progress(false)
        .with_token(options.token.clone());
    if let Some(endpoint) = &options.hub_endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    builder.build().map_err(|error| HubError::Network {
        what: "anything".to_owned(),
        repo: "the hub".to_owned(),
        reason: error.to_string(),
    })
}

/// A full commit hash.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| b.is_ascii_hexdigit())
}

impl Place {
    fn hf_repo(&self, revision: &str) -> hf_hub::Repo {
        hf_hub::Repo::with_revision(self.repo.id.clone(), RepoType::Model, revision.to_owned())
    }

    /// Where the commit of a branch is remembered. Commits have 40 digits, so the two never meet.
    fn reference(&self) -> PathBuf {
        let name = self.repo.revision.replace('/', "--");
        self.markers.join(format!("ref--{name}"))
    }

    /// The commit that the revision names, as far as is known here; empty when it is not.
    fn known_commit(&self) -> Result<String, HubError> {
        if is_commit(&self.repo.revision) {
            return Ok(self.repo.revision.clone());
        }
        let path = self.reference();
        match fs::read_to_string(&path) {
            Ok(commit) => Ok(commit),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            Err(source) => Err(HubError::Read { path, source }),
        }
    }

    fn snapshot(&self, commit: &str) -> PathBuf {
        self.cache.repo(self.hf_repo(commit)).pointer_path(commit)
    }

    /// What says that everything wanted of a commit is there and checked.
    fn marker(&self, commit: &str, wanted: Wanted) -> PathBuf {
        match wanted {
            Wanted::Model => self.markers.join(commit),
            Wanted::Configuration => self.markers.join(format!("config--{commit}")),
        }
    }

    /// The model at `commit`, where all that is wanted of it is in the cache.
    fn there(&self, commit: &str, wanted: Wanted) -> Option<Resolved> {
        let path = self.snapshot(commit);
        let marked = |wanted| self.marker(commit, wanted).is_file();
        let whole = is_commit(commit)
            && (marked(wanted) || marked(Wanted::Model))
            && path.join(repo_files::CONFIG).is_file();
        whole.then(|| Resolved {
            path,
            kind: Kind::Folder,
            identity: format!("hf:{}@{commit}", self.repo.id),
        })
    }

    fn unusable(&self, reason: String) -> HubError {
        HubError::RepoContents { repo: self.repo.id.clone(), reason }
    }

    /// What it means that the list of files could not be had.
    fn list_failed(&self, error: &ApiError) -> HubError {
        match status(error) {
            Some(404) => HubError::NoSuchRepo {
                repo: self.repo.id.clone(),
                revision: self.repo.revision.clone(),
            },
            _ => self.failed("the list of files", error),
        }
    }

    /// What it means that a file could not be had.
    fn failed(&self, what: &str, error: &ApiError) -> HubError {
        let repo = self.repo.id.clone();
        match status(error) {
            Some(status @ (401 | 403)) => HubError::Denied { repo, status },
            _ => HubError::Network { what: what.to_owned(), repo, reason: error.to_string() },
        }
    }
}

/// The HTTP status of an answer that is an error.
fn status(error: &ApiError) -> Option<u16> {
    match error {
        ApiError::RequestError(request) => match **request {
            ureq::Error::StatusCode(status) => Some(status),
            _ => None,
        },
        _ => None,
    }
}

/// The download of one commit.
struct Fetch<'a> {
    place: &'a Place,
    api: &'a Api,
    repo: ApiRepo,
    commit: &'a str,
    options: &'a Options<'a>,
}

impl Fetch<'_> {
    /// Downloads every file that the model needs.
    fn all(&self, present: &BTreeSet<String>) -> Result<(), HubError> {
        let unusable = |reason| self.place.unusable(reason);
        let weights = repo_files::weights(present).map_err(unusable)?;
        for name in repo_files::small_files(present).map_err(unusable)? {
            self.file(&name)?;
        }
        let files = match weights {
            Weights::Single(name) => vec![name],
            Weights::Sharded => {
                let path = self.file(repo_files::INDEX)?;
                let index = fs::read(&path).map_err(|source| HubError::Read { path, source })?;
                repo_files::shards(&index, present).map_err(unusable)?
            }
        };
        for name in files {
            self.file(&name)?;
        }
        Ok(())
    }

    /// Downloads the configuration alone.
    fn configuration(&self, present: &BTreeSet<String>) -> Result<(), HubError> {
        repo_files::small_files(present).map_err(|reason| self.place.unusable(reason))?;
        self.file(repo_files::CONFIG).map(|_| ())
    }

    /// Downloads one file, or checks the one that is there; gives its path in the snapshot.
    fn file(&self, name: &str) -> Result<PathBuf, HubError> {
        if !repo_files::is_safe(name) {
            return Err(self.place.unusable(format!("its file name {name:?} leaves the folder")));
        }
        let failed = |error: ApiError| self.place.failed(name, &error);
        let announced = self.api.metadata(&self.repo.url(name)).map_err(failed)?;
        // Both become parts of paths.
        if announced.commit_hash() != self.commit {
            return Err(self.place.unusable(format!(
                "{name} is served at commit {:?}, not {}",
                announced.commit_hash(),
                self.commit
            )));
        }
        if !repo_files::is_safe(announced.etag()) || announced.etag().contains('/') {
            return Err(self
                .place
                .unusable(format!("{name} has the entity tag {:?}", announced.etag())));
        }
        let blobs = self.place.cache.repo(self.place.hf_repo(self.commit));
        let blob = blobs.blob_path(announced.etag());
        let pointer = self.place.snapshot(self.commit).join(name);
        // Left by a run that ended between download and check.
        if pointer.exists() && check(&pointer, name, &announced).is_ok() {
            return Ok(pointer);
        }
        remove(&pointer)?;
        if blob.exists() && check(&blob, name, &announced).is_err() {
            remove(&blob)?;
        }
        // A partial file as long as the whole one cannot be resumed: there is nothing left to ask for.
        let partial = blob.with_extension("part");
        if fs::metadata(&partial).is_ok_and(|found| found.len() >= announced.size() as u64) {
            remove(&partial)?;
        }
        let progress = Bar { options: self.options, started: false };
        let path = self.repo.download_with_progress(name, progress).map_err(failed)?;
        if let Err(error) = check(&path, name, &announced) {
            remove(&path)?;
            remove(&blob)?;
            return Err(error);
        }
        Ok(path)
    }
}

/// Compares a file with what the hub announced: its size and, for large files, whose entity tag is one, its SHA-256.
fn check(path: &Path, name: &str, announced: &Metadata) -> Result<(), HubError> {
    let read = |source| HubError::Read { path: path.to_owned(), source };
    let mismatch =
        |what, found, expected| HubError::Mismatch { file: name.to_owned(), what, found, expected };
    let bytes = fs::metadata(path).map_err(read)?.len();
    if bytes != announced.size() as u64 {
        let expected = announced.size().to_string();
        return Err(mismatch("size in bytes", bytes.to_string(), expected));
    }
    let etag = announced.etag();
    if etag.len() == 64 && etag.bytes().all(|b| b.is_ascii_hexdigit()) {
        let found = sha256::of_file(path).map_err(read)?;
        if !found.eq_ignore_ascii_case(etag) {
            return Err(mismatch("SHA-256", found, etag.to_owned()));
        }
    }
    Ok(())
}

fn remove(path: &Path) -> Result<(), HubError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(not_writable(path)(error))
        }
        _ => Ok(()),
    }
}

/// The client's progress as ours. The client begins a resumed file twice.
struct Bar<'a> {
    options: &'a Options<'a>,
    started: bool,
}

impl hf_hub::api::Progress for Bar<'_> {
    fn init(&mut self, size: usize, filename: &str) {
        if !std::mem::replace(&mut self.started, true) {
            self.options.progress.start(filename, Some(size as u64));
        }
    }

    fn update(&mut self, size: usize) {
        self.options.progress.advance(size as u64);
    }

    fn finish(&mut self) {
        self.options.progress.finish();
    }
}
