//! The seal of a run that has ended, however it did: a hash of every file, and a hash of those. One changed byte breaks it.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use ed25519_dalek::{Signature, Signer, SigningKey, VerifyingKey};
use serde::{Deserialize, Serialize};

use crate::annotation::ANNOTATIONS_FILE;
use crate::durable::{self, WRITING};
use crate::error::{RecordError, io};
use crate::machine::hash_file;
use crate::record::{RECORD_FILE, Record, Status};

/// The seal's file.
pub const SEAL_FILE: &str = "seal.json";
/// A seal that waits for its record to say that the run has ended, or that it goes on again.
const WAITING_FILE: &str = "seal.waiting.json";
/// The file that a process locks while it works on a run.
pub const LOCK_FILE: &str = "run.lock";
/// Files beside the sealed ones: notes may be added and the lock taken after the end.
const BESIDE: [&str; 4] = [SEAL_FILE, WAITING_FILE, LOCK_FILE, ANNOTATIONS_FILE];
/// Folders in folders that are sealed: more than a run has, and fewer than links in a circle.
const DEPTH_LIMIT: usize = 16;

/// The seal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seal {
    /// BLAKE3 of every file of the run, by its path from the run's folder; of what links lead to, too.
    pub files: BTreeMap<String, String>,
    /// BLAKE3 over the path and the hash of all of them, in order, each after its length (u64, little-endian).
    pub root: String,
    /// Who vouches for it.
    pub signature: Option<Signed>,
}

/// A signature of the root, ed25519.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signed {
    /// The public key, in hexadecimal.
    pub public_key: String,
    /// The signature of the root's hexadecimal digits, in hexadecimal.
    pub signature: String,
}

/// What is wrong with a sealed run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "broken", content = "what")]
pub enum Broken {
    /// A file has other bytes.
    Changed(String),
    /// A file is gone.
    Missing(String),
    /// A file was added.
    Added(String),
    /// The seal cannot be read.
    Unreadable(String),
    /// The root is not the hash of the list of files.
    Root,
    /// The signature is not the key's, or no signature.
    Signature(String),
    /// It is signed by another key than the one asked for, or by none.
    Signer(String),
    /// The run has ended, and its seal is gone.
    NoSeal,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Unreadable(why) => write!(f, "{why}"),
            Broken::Changed(file) => write!(f, "{file} was changed"),
            Broken::Missing(file) => write!(f, "{file} is missing"),
            Broken::Added(file) => write!(f, "{file} was added"),
            Broken::Root => f.write_str("the list of files in the seal was changed"),
            Broken::Signature(why) => write!(f, "the signature is wrong: {why}"),
            Broken::Signer(who) => write!(f, "it is signed by {who}"),
            Broken::NoSeal => f.write_str("the run has ended and there is no seal"),
        }
    }
}

/// Writes the record of a run that has ended, and its seal.
///
/// The seal goes first, under the name of one that waits, and takes its own name last. A run that is killed between the
/// two still says that it runs, so that it is looked up, found dead and resumed; a record that says how the run ended has
/// a seal, or has lost it; and one that says that it runs has none: whoever writes that into a sealed record breaks it.
///
/// # Errors
/// [`RecordError::NotEnded`], [`RecordError::Io`], [`RecordError::Unsealable`]. The record of a failed or stopped run is
/// written all the same; a run that cannot be sealed is not finished.
pub fn conclude(
    folder: &Path,
    record: &Record,
    key: Option<&SigningKey>,
) -> Result<Seal, RecordError> {
    if record.status == Status::Running {
        return Err(RecordError::NotEnded { path: folder.to_owned() });
    }
    let text = durable::json(&folder.join(RECORD_FILE), record)?;
    let sealed = seal(folder, &text, key);
    if sealed.is_ok() || !matches!(record.status, Status::Finished { .. }) {
        durable::write(folder, RECORD_FILE, &text)?;
    }
    if sealed.is_ok() {
        rename(folder, WAITING_FILE, SEAL_FILE)?;
    }
    sealed
}

/// Sets the seal of a run aside that goes on, before its record says that it runs: until then it is the run's.
///
/// # Errors
/// [`RecordError::Io`].
pub fn set_seal_aside(folder: &Path) -> Result<(), RecordError> {
    match folder.join(SEAL_FILE).exists() {
        true => rename(folder, SEAL_FILE, WAITING_FILE),
        false => Ok(()),
    }
}

/// Takes the seal away from a run that goes on, once its record says that it runs.
///
/// # Errors
/// [`RecordError::Io`].
pub fn unseal(folder: &Path) -> Result<(), RecordError> {
    for path in [SEAL_FILE, WAITING_FILE].map(|name| folder.join(name)) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io("remove", &path)(error));
            }
            _ => {}
        }
    }
    durable::sync_folder(folder)
}

fn rename(folder: &Path, from: &str, to: &str) -> Result<(), RecordError> {
    let path = folder.join(from);
    fs::rename(&path, folder.join(to)).map_err(io("rename", &path))?;
    durable::sync_folder(folder)
}

/// Seals a folder in which the record will be `record`.
fn seal(folder: &Path, record: &[u8], key: Option<&SigningKey>) -> Result<Seal, RecordError> {
    let mut files = hashes(folder)?;
    files.insert(RECORD_FILE.to_owned(), blake3::hash(record).to_hex().to_string());
    let root = root(&files);
    let signature = key.map(|key| Signed {
        public_key: hex(key.verifying_key().as_bytes()),
        signature: hex(&key.sign(root.as_bytes()).to_bytes()),
    });
    let seal = Seal { files, root, signature };
    durable::write_json(folder, WAITING_FILE, &seal)?;
    Ok(seal)
}

/// Reads the seal of a run in a state; `None` where it has none. One that waits is that of a run that has ended: where the
/// record says that it goes on, it is nobody's.
///
/// # Errors
/// [`RecordError::Io`], [`RecordError::Malformed`].
pub fn read_seal(folder: &Path, status: &Status) -> Result<Option<Seal>, RecordError> {
    let waits = (*status != Status::Running).then_some(WAITING_FILE);
    let mut paths = [Some(SEAL_FILE), waits].into_iter().flatten().map(|name| folder.join(name));
    paths.find(|path| path.exists()).map(|path| durable::read_json(&path)).transpose()
}

/// What is wrong with the seal of a run in a state, and the seal; neither where it has none.
///
/// # Errors
/// [`RecordError::Io`].
pub fn look_at_seal(
    folder: &Path,
    status: &Status,
    signer: Option<&VerifyingKey>,
) -> Result<(Option<Seal>, Vec<Broken>), RecordError> {
    match read_seal(folder, status) {
        Ok(Some(seal)) => {
            let broken = seal.verify(folder, signer)?;
            Ok((Some(seal), broken))
        }
        Ok(None) => Ok((None, status.is_sealed().then_some(Broken::NoSeal).into_iter().collect())),
        Err(error @ RecordError::Malformed { .. }) => {
            Ok((None, vec![Broken::Unreadable(error.to_string())]))
        }
        Err(error) => Err(error),
    }
}

impl Seal {
    /// Everything that is not as it was sealed; empty where every byte is. With a `signer`, it must be that key's.
    ///
    /// # Errors
    /// [`RecordError::Io`] for a folder that cannot be read.
    pub fn verify(
        &self,
        folder: &Path,
        signer: Option<&VerifyingKey>,
    ) -> Result<Vec<Broken>, RecordError> {
        let mut broken = Vec::new();
        let found = hashes(folder)?;
        for (file, sealed) in &self.files {
            match found.get(file) {
                None => broken.push(Broken::Missing(file.clone())),
                Some(hash) if hash != sealed => broken.push(Broken::Changed(file.clone())),
                Some(_) => {}
            }
        }
        let added = found.keys().filter(|file| !self.files.contains_key(*file));
        broken.extend(added.map(|file| Broken::Added(file.clone())));
        if root(&self.files) != self.root {
            broken.push(Broken::Root);
        }
        if let Some(Err(why)) = self.signature.as_ref().map(|signed| signed.check(&self.root)) {
            broken.push(Broken::Signature(why));
        }
        if let Some(signer) = signer {
            let asked = hex(signer.as_bytes());
            match &self.signature {
                None => broken.push(Broken::Signer("nobody".into())),
                Some(signed) if signed.public_key != asked => {
                    broken.push(Broken::Signer(signed.public_key.clone()));
                }
                Some(_) => {}
            }
        }
        Ok(broken)
    }
}

impl Signed {
    fn check(&self, root: &str) -> Result<(), String> {
        let key = bytes::<32>(&self.public_key).ok_or("the public key has not 64 digits")?;
        let key = VerifyingKey::from_bytes(&key).map_err(|error| error.to_string())?;
        let signature = bytes::<64>(&self.signature).ok_or("it has not 128 digits")?;
        key.verify_strict(root.as_bytes(), &Signature::from_bytes(&signature))
            .map_err(|_| "it is not this key's signature of these files".to_owned())
    }
}

/// Reads a signing key: a file with 64 hexadecimal digits, such as `openssl rand -hex 32` writes.
///
/// # Errors
/// [`RecordError::Io`], [`RecordError::Key`].
pub fn read_signing_key(path: &Path) -> Result<SigningKey, RecordError> {
    Ok(SigningKey::from_bytes(&read_key(path, "signing")?))
}

/// Reads a public key: a file with 64 hexadecimal digits, as in a seal.
///
/// # Errors
/// [`RecordError::Io`], [`RecordError::Key`].
pub fn read_public_key(path: &Path) -> Result<VerifyingKey, RecordError> {
    VerifyingKey::from_bytes(&read_key(path, "public")?).map_err(|error| RecordError::Key {
        path: path.to_owned(),
        kind: "public",
        reason: error.to_string(),
    })
}

fn read_key(path: &Path, kind: &'static str) -> Result<[u8; 32], RecordError> {
    let text = fs::read_to_string(path).map_err(io("read", path))?;
    let text = text.trim();
    bytes(text).ok_or_else(|| RecordError::Key {
        path: path.to_owned(),
        kind,
        reason: format!("it holds {} characters, or others than digits", text.chars().count()),
    })
}

/// BLAKE3 of every sealed file, by path. Links are followed: what lies behind them is what the run is made of.
fn hashes(folder: &Path) -> Result<BTreeMap<String, String>, RecordError> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![(folder.to_owned(), String::new(), 0)];
    while let Some((place, prefix, depth)) = waiting.pop() {
        for entry in fs::read_dir(&place).map_err(io("read", &place))? {
            let entry = entry.map_err(io("read", &place))?;
            let path = entry.path();
            let unsealable = |reason| RecordError::Unsealable { path: path.clone(), reason };
            let name = entry.file_name();
            let name = name.to_str().ok_or_else(|| unsealable("its name is not UTF-8"))?;
            // Half a file that a killed process left: nobody reads it, and a run that goes on removes it.
            if name.starts_with(WRITING) {
                continue;
            }
            let name = format!("{prefix}{name}");
            if BESIDE.contains(&name.as_str()) {
                continue;
            }
            let kind = fs::metadata(&path).map_err(io("read", &path))?.file_type();
            if kind.is_file() {
                found.insert(name, hash_file(&path)?);
            } else if !kind.is_dir() {
                return Err(unsealable("it is neither a file nor a folder"));
            } else if depth == DEPTH_LIMIT {
                return Err(unsealable("it lies too deep, or links go in a circle"));
            } else {
                waiting.push((path, format!("{name}/"), depth + 1));
            }
        }
    }
    Ok(found)
}

fn root(files: &BTreeMap<String, String>) -> String {
    let mut hasher = blake3::Hasher::new();
    // With their lengths: no two lists have the same bytes, whatever names hold.
    for part in files.iter().flat_map(|(file, hash)| [file, hash]) {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let mut out = [0; N];
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(out)
}
