//! A program in a process group of its own, of which nothing runs on when it is done with.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// How often a wait looks.
const POLL: Duration = Duration::from_millis(5);
/// How long the end of a killed process is waited for: it comes at once, unless the kernel itself is stuck.
const KILLED: Duration = Duration::from_secs(1);

/// A program and all that it started, but for what has left the group.
///
/// A group of its own keeps a terminal's Ctrl-C from it, which is this process's to answer, and lets everything of it
/// be ended together. Dropping it does so.
pub(super) struct Group {
    child: Child,
    /// The exit status, once the program was reaped: the group's number may then be another's.
    ended: Option<Option<ExitStatus>>,
}

impl Group {
    /// Starts a program, all three streams piped to this process.
    pub(super) fn spawn(name: &str, arguments: &[String]) -> io::Result<Group> {
        let child = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        Ok(Group { child, ended: None })
    }

    /// Its streams, for the first who asks.
    pub(super) fn streams(&mut self) -> Option<(ChildStdin, ChildStdout, ChildStderr)> {
        Some((self.child.stdin.take()?, self.child.stdout.take()?, self.child.stderr.take()?))
    }

    /// Whether the program itself has ended; it is left unreaped, so that the group's number stays its own.
    pub(super) fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let pid = Pid::from_child(&self.child);
        self.ended.is_some() || !matches!(waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// Waits for the program's end, at most until `deadline`; tells whether it came.
    pub(super) fn wait(&self, deadline: Instant) -> bool {
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return false;
            }
            thread::sleep(POLL);
        }
        true
    }

    /// Ends whatever of the group still runs; the program's exit status, if it could be had.
    pub(super) fn end(&mut self) -> Option<ExitStatus> {
        if let Some(status) = self.ended {
            return status;
        }
        // The only error is that there is nobody left to kill.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let status = if self.wait(Instant::now() + KILLED) { self.child.wait().ok() } else { None };
        self.ended = Some(status);
        status
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}
