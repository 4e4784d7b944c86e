//! The machine that a run ran on, and the binary that it ran.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{RecordError, io};
use crate::process;

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub host: String,
    /// The processor's name, as the system tells it.
    pub processor: String,
    /// Threads that this process may use at once.
    pub cores: usize,
    /// Memory, bytes; absent where the system does not tell.
    pub memory_bytes: Option<u64>,
    /// The operating system, with its kernel's version.
    pub system: String,
}

impl Machine {
    /// This machine.
    pub fn current() -> Machine {
        let name = rustix::system::uname();
        let info = |path: &str, key: &str| {
            let text = fs::read_to_string(path).ok()?;
            let value = text.lines().find_map(|line| line.strip_prefix(key)?.split_once(':'))?.1;
            Some(value.trim().to_owned())
        };
        let memory = info("/proc/meminfo", "MemTotal");
        let kib = memory.and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        Machine {
            host: process::host(),
            processor: info("/proc/cpuinfo", "model name")
                .unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.map(|kib| kib * 1024),
            system: format!(
                "{} {}",
                name.sysname().to_string_lossy(),
                name.release().to_string_lossy()
            ),
        }
    }
}

/// A program file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Binary {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// BLAKE3 of its bytes, in hexadecimal.
    pub blake3: String,
    /// What it was built from, where it knows.
    #[serde(default)]
    pub built: Option<Built>,
}

/// The sources of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Their commit.
    pub commit: String,
    /// Whether they were changed since.
    pub changed: bool,
}

impl std::fmt::Display for Built {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changed = if self.changed { ", with uncommitted changes" } else { "" };
        write!(f, "{:.12}{changed}", self.commit)
    }
}

impl Binary {
    /// The program that runs now: the file that was loaded, even where another has its name by now.
    ///
    /// # Errors
    /// [`RecordError::Io`].
    pub fn current() -> Result<Binary, RecordError> {
        let link = Path::new("/proc/self/exe");
        let named = std::env::current_exe().map_err(io("find", link))?;
        let file = if link.exists() { link } else { &named };
        let bytes = fs::metadata(file).map_err(io("read", file))?.len();
        Ok(Binary { bytes, blake3: hash_file(file)?, path: named, built: None })
    }
}

/// BLAKE3 of a file, in hexadecimal.
///
/// # Errors
/// [`RecordError::Io`].
pub fn hash_file(path: &Path) -> Result<String, RecordError> {
    let mut hasher = blake3::Hasher::new();
    let file = File::open(path).map_err(io("read", path))?;
    hasher.update_reader(file).map_err(io("read", path))?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// The most memory that this process has held, bytes, where the system tells.
pub fn peak_resident_bytes() -> Option<usize> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_changed_since_its_commit_says_so() {
        let built = |changed| Built { commit: "0123456789abcdef".into(), changed };
        assert_eq!(built(false).to_string(), "0123456789ab");
        assert_eq!(built(true).to_string(), "0123456789ab, with uncommitted changes");
    }

    #[test]
    fn this_machine_says_what_it_is() {
        let machine = Machine::current();
        assert!(machine.cores > 0 && !machine.processor.is_empty() && !machine.host.is_empty());
        assert!(machine.system.contains(' '), "{}", machine.system);
        let told = rustix::system::sysinfo();
        let told = told.totalram as u64 * u64::from(told.mem_unit);
        assert!(machine.memory_bytes.is_none_or(|bytes| bytes / 1024 == told / 1024), "{told}");
    }

    #[test]
    fn the_peak_is_at_least_what_was_just_held() {
        const HELD_BYTES: usize = 16 << 20;
        let held = std::hint::black_box(vec![1u8; HELD_BYTES]);
        let peak = peak_resident_bytes().unwrap();
        assert!(peak >= held.len(), "{peak}");
        let memory = Machine::current().memory_bytes.unwrap();
        assert!(peak as u64 <= memory, "{peak} of {memory}");
    }

    #[test]
    fn the_binary_is_hashed_as_it_runs() {
        let binary = Binary::current().unwrap();
        let named = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(binary.bytes, named.len() as u64);
        assert_eq!(binary.blake3, blake3::hash(&named).to_hex().to_string());
    }
}
