//! A reward program: a line of JSON a completion on its standard input, a line a reward on its standard output.
//!
//! The program is started for every batch, so one that dies takes nothing with it. It gets the fields of
//! [`Question`] and answers in the same order, each line a number or an object with `reward`.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::{Fault, Question, excerpt, reward_of};

/// The longest line that a program may answer with, bytes.
const LINE_BYTES_LIMIT: u64 = 1 << 20;
/// The most that is kept of what it says on its error stream, bytes.
const ERROR_BYTES_LIMIT: u64 = 4096;

/// A program of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalProgram {
    /// The program and its arguments; not a shell's line.
    pub command: Vec<String>,
    /// The most time for one batch.
    pub limit: Duration,
}

impl ExternalProgram {
    pub(super) fn grade(&self, questions: &[Question<'_>]) -> Vec<Result<f64, Fault>> {
        let cannot = |reason: String| Fault::CannotRun { program: self.command.join(" "), reason };
        let all = |fault: Fault| questions.iter().map(|_| Err(fault.clone())).collect();
        let Some((name, arguments)) = self.command.split_first() else {
            return all(cannot("no program is named".into()));
        };
        let spawned = Command::new(name)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = match spawned {
            Ok(child) => child,
            Err(error) => return all(cannot(error.to_string())),
        };
        let mut input = Vec::new();
        for question in questions {
            if let Err(error) = serde_json::to_writer(&mut input, question) {
                return all(cannot(error.to_string()));
            }
            input.push(b'\n');
        }
        let rewards = self.converse(&mut child, input, questions.len());
        // Whatever it still does, it is done here.
        let _ = child.kill();
        let _ = child.wait();
        rewards
    }

    fn converse(&self, child: &mut Child, input: Vec<u8>, count: usize) -> Vec<Result<f64, Fault>> {
        let deadline = Instant::now() + self.limit;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            unreachable!("all three streams are piped")
        };
        // Threads of their own: a program that reads late or answers early must not block the other side. They end when
        // the program does.
        thread::spawn(move || stdin.write_all(&input));
        let said = thread::spawn(move || {
            let mut text = Vec::new();
            let mut stderr = stderr;
            let _ = (&mut stderr).take(ERROR_BYTES_LIMIT).read_to_end(&mut text);
            // The rest is read and dropped, so that the program can go on.
            let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            String::from_utf8_lossy(&text).into_owned()
        });
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            let mut reader = BufReader::new(stdout);
            for _ in 0..count {
                let mut line = Vec::new();
                match (&mut reader).take(LINE_BYTES_LIMIT).read_until(b'\n', &mut line) {
                    Ok(1..) if sender.send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        let mut rewards = Vec::with_capacity(count);
        let end = loop {
            if rewards.len() == count {
                return rewards;
            }
            match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => rewards.push(reward(&line)),
                Err(RecvTimeoutError::Timeout) => {
                    break Fault::TimedOut { limit_s: self.limit.as_secs_f64() };
                }
                Err(RecvTimeoutError::Disconnected) => break ended(child, deadline, said),
            }
        };
        rewards.resize(count, Err(end));
        rewards
    }
}

fn reward(line: &[u8]) -> Result<f64, Fault> {
    let text = String::from_utf8_lossy(line);
    match serde_json::from_str(&text) {
        Ok(value) => reward_of(&value),
        Err(_) => Err(Fault::NotJson { found: excerpt(&text) }),
    }
}

/// The program closed its output: what it ended with, if it ends in time.
fn ended(child: &mut Child, deadline: Instant, said: thread::JoinHandle<String>) -> Fault {
    const POLL: Duration = Duration::from_millis(5);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let said = said.join().unwrap_or_default();
                let said = excerpt(&said);
                let said = if said.is_empty() { said } else { format!(": {said}") };
                return Fault::Ended { status: status.to_string(), said };
            }
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            _ => return Fault::Ended { status: "output closed".into(), said: String::new() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;

    /// What a shell script makes of three completions: 1, 2, 3.
    fn run(script: &str, limit: Duration) -> Vec<Result<f64, Fault>> {
        let command = ["sh", "-c", script].map(str::to_owned).to_vec();
        let fields = Map::new();
        let questions: Vec<Question<'_>> = ["1", "2", "3"]
            .iter()
            .enumerate()
            .map(|(sample, completion)| Question {
                sample,
                prompt: "p",
                completion,
                answer: None,
                fields: &fields,
            })
            .collect();
        ExternalProgram { command, limit }.grade(&questions)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_answers_line_by_line() {
        // Each line holds the completion's number as `"completion":"N"`.
        let script = r#"while read -r line; do n=${line##*'"completion":"'}; echo "{\"reward\": ${n%%'"'*}.5}"; done"#;
        assert_eq!(run(script, LONG), [Ok(1.5), Ok(2.5), Ok(3.5)]);
        assert_eq!(run("echo 1; echo 2; echo 3", LONG), [Ok(1.0), Ok(2.0), Ok(3.0)]);
    }

    #[test]
    fn a_crash_names_the_sample_it_came_at() {
        let found = run("echo 1; echo out of luck >&2; exit 3", LONG);
        assert_eq!(found[0], Ok(1.0));
        for fault in &found[1..] {
            let text = fault.clone().unwrap_err().to_string();
            assert!(text.contains("exit status: 3") && text.contains("out of luck"), "{text}");
        }
    }

    #[test]
    fn a_hang_is_cut_short() {
        let found = run("echo 1; exec sleep 600", Duration::from_millis(300));
        assert_eq!(found[1], Err(Fault::TimedOut { limit_s: 0.3 }));
        assert_eq!(found[2], found[1]);
        // On a busy machine the shell may not even begin in time.
        assert!(found[0] == Ok(1.0) || found[0] == found[1]);
    }

    #[test]
    fn garbage_and_what_is_no_number_cost_their_sample_only() {
        let found = run("echo 1; echo oops; echo NaN", LONG);
        assert_eq!(found[0], Ok(1.0));
        assert_eq!(found[1], Err(Fault::NotJson { found: "oops".into() }));
        assert!(matches!(found[2], Err(Fault::NotJson { .. })));
        let found = run("echo null; echo 2; echo 1e999", LONG);
        assert!(matches!(found[0], Err(Fault::NotANumber { .. })));
        assert_eq!(found[1], Ok(2.0));
        assert!(found[2].is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let program = ExternalProgram { command: vec!["/nowhere/grade".into()], limit: LONG };
        let fields = Map::new();
        let question =
            Question { sample: 0, prompt: "", completion: "", answer: None, fields: &fields };
        let fault = program.grade(&[question]).remove(0).unwrap_err();
        assert!(fault.to_string().contains("/nowhere/grade"), "{fault}");
    }
}
