//! A process by its number *and* its start: numbers are used again, so a number alone cannot tell that a run is dead.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Where the system tells of processes.
const PROC: &str = "/proc";
/// Field of `/proc/PID/stat` with the start, in ticks since boot, counted after the command's closing parenthesis.
const START_FIELD: usize = 19;
/// Field with the state, likewise.
const STATE_FIELD: usize = 0;

/// One process of one boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Its number.
    pub pid: u32,
    /// When it started, ticks since boot. Absent where the system does not tell.
    pub start_ticks: Option<u64>,
    /// The boot that the ticks count from.
    pub boot: Option<String>,
    /// The machine's name: a run of another machine cannot be looked up here.
    pub host: String,
}

/// Whether a process is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "life", content = "why")]
pub enum Life {
    /// It runs.
    Alive,
    /// It does not.
    Dead(String),
    /// It cannot be told from here.
    Unknown(String),
}

impl ProcessId {
    /// This process.
    pub fn current() -> ProcessId {
        Self::of(std::process::id(), Path::new(PROC))
    }

    fn of(pid: u32, proc: &Path) -> ProcessId {
        ProcessId {
            pid,
            start_ticks: stat(pid, proc).map(|stat| stat.start_ticks),
            boot: boot(proc),
            host: host(),
        }
    }

    /// Whether it still runs: the same number, of the same start, of the same boot, on this machine.
    pub fn life(&self) -> Life {
        self.life_in(Path::new(PROC))
    }

    fn life_in(&self, proc: &Path) -> Life {
        let here = host();
        if self.host != here {
            return Life::Unknown(format!("it ran on {}, and this is {here}", self.host));
        }
        let Some(start) = self.start_ticks else {
            return Life::Unknown("the system did not tell when it started".into());
        };
        if self.boot != boot(proc) {
            return Life::Dead("the machine was started again since".into());
        }
        match stat(self.pid, proc) {
            None => Life::Dead(format!("there is no process {}", self.pid)),
            Some(stat) if stat.start_ticks != start => {
                Life::Dead(format!("process {} is another one, started later", self.pid))
            }
            Some(stat) if stat.is_gone => {
                Life::Dead(format!("process {} ended and waits for its parent", self.pid))
            }
            Some(_) => Life::Alive,
        }
    }
}

struct Stat {
    start_ticks: u64,
    /// A zombie, or being removed.
    is_gone: bool,
}

fn stat(pid: u32, proc: &Path) -> Option<Stat> {
    let text = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    // The command may hold spaces and parentheses; fields begin after its last one.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Some(Stat {
        start_ticks: fields.get(START_FIELD)?.parse().ok()?,
        is_gone: matches!(*fields.get(STATE_FIELD)?, "Z" | "X" | "x"),
    })
}

fn boot(proc: &Path) -> Option<String> {
    let id = fs::read_to_string(proc.join("sys/kernel/random/boot_id")).ok()?;
    Some(id.trim().to_owned())
}

/// The machine's name.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    /// A `/proc` with one process of a strange name.
    fn proc(pid: u32, state: char, start: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let random = folder.path().join("sys/kernel/random");
        fs::create_dir_all(&random).unwrap();
        fs::write(random.join("boot_id"), "boot-1\n").unwrap();
        let entry = folder.path().join(pid.to_string());
        fs::create_dir(&entry).unwrap();
        let middle = "0 ".repeat(18);
        let text = format!("{pid} (same) bit) 7) {state} {middle}{start} 0 0\n");
        fs::write(entry.join("stat"), text).unwrap();
        folder
    }

    #[test]
    fn this_process_is_alive_and_an_ended_one_is_dead() {
        let me = ProcessId::current();
        assert!(me.start_ticks.is_some() && me.boot.is_some(), "{me:?}");
        assert_eq!(me.life(), Life::Alive);
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let id = ProcessId::of(child.id(), Path::new(PROC));
        assert_eq!(id.life(), Life::Alive);
        child.kill().unwrap();
        // Not yet waited for: a zombie, which still has its number and its start.
        let limit = Instant::now() + Duration::from_secs(20);
        while id.life() == Life::Alive && Instant::now() < limit {
            std::thread::yield_now();
        }
        assert!(matches!(id.life(), Life::Dead(why) if why.contains("waits for its parent")));
        child.wait().unwrap();
        assert!(matches!(id.life(), Life::Dead(why) if why.contains("there is no process")));
    }

    #[test]
    fn a_number_that_is_used_again_is_dead() {
        let folder = proc(7, 'R', 100);
        let id = ProcessId::of(7, folder.path());
        assert_eq!(id.start_ticks, Some(100));
        assert_eq!(id.life_in(folder.path()), Life::Alive);
        let later = proc(7, 'R', 101);
        let life = id.life_in(later.path());
        assert!(matches!(&life, Life::Dead(why) if why.contains("another one")), "{life:?}");
    }

    #[test]
    fn a_process_of_another_boot_or_that_is_gone_is_dead() {
        let folder = proc(7, 'R', 100);
        let id = ProcessId::of(7, folder.path());
        fs::write(folder.path().join("sys/kernel/random/boot_id"), "boot-2\n").unwrap();
        assert!(matches!(id.life_in(folder.path()), Life::Dead(why) if why.contains("again")));
        for state in ['Z', 'X'] {
            let gone = proc(7, state, 100);
            assert!(matches!(id.life_in(gone.path()), Life::Dead(_)), "{state}");
        }
        for state in ['S', 'D', 'T'] {
            let there = proc(7, state, 100);
            assert_eq!(id.life_in(there.path()), Life::Alive, "{state}");
        }
    }

    #[test]
    fn the_machine_is_known_by_its_name() {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(ProcessId::current().host, name.trim());
    }

    #[test]
    fn what_cannot_be_told_is_not_guessed() {
        let folder = proc(7, 'R', 100);
        let id = ProcessId::of(7, folder.path());
        let elsewhere = ProcessId { host: "another".into(), ..id.clone() };
        assert!(matches!(elsewhere.life_in(folder.path()), Life::Unknown(_)));
        let untold = ProcessId { start_ticks: None, ..id };
        assert!(matches!(untold.life_in(folder.path()), Life::Unknown(_)));
    }
}
