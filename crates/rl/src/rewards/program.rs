//! A reward program: a line of JSON a completion on its standard input, a line a reward on its standard output.
//!
//! The program is started for every batch, so one that dies takes nothing with it. It gets the fields of
//! [`Question`] and answers in the same order, each line a number or an object with `reward`; with `sample` in each, in
//! any order. It ends where its input does. Every wait has a deadline, and nothing of it outlives the batch.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStderr, ChildStdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::answers::settle;
use super::process::Group;
use super::{ANSWER_BYTES_LIMIT, Fault, Grades, Outage, Question, excerpt};

/// The most that is kept of what it says on its error stream, bytes.
const ERROR_BYTES_LIMIT: u64 = 4096;
/// How often a wait for an answer looks whether the program has ended.
const POLL: Duration = Duration::from_millis(20);
/// How long what it said on its error stream is waited for, once it was ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Lines that may wait to be looked at.
const LINES_WAITING: usize = 64;

/// A program of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExternalProgram {
    /// The program and its arguments; not a shell's line.
    pub command: Vec<String>,
    /// The most time for one batch.
    pub limit: Duration,
}

/// What the program printed.
enum Printed {
    /// A line, with its end if it has one.
    Line(Vec<u8>),
    /// More bytes than an answer may have, and no end of the line.
    Endless,
}

/// A batch being graded.
struct Conversation {
    group: Group,
    printed: Receiver<Printed>,
    said: Receiver<String>,
    limit: Duration,
    deadline: Instant,
    samples: usize,
    answers: Vec<Result<Value, Fault>>,
}

impl ExternalProgram {
    pub(super) fn grade(&self, questions: &[Question<'_>]) -> Result<Grades, Outage> {
        let mut conversation = self.begin(questions)?;
        let end = conversation.listen();
        settle(&conversation.answers, questions.len(), end)
    }

    fn begin(&self, questions: &[Question<'_>]) -> Result<Conversation, Outage> {
        let cannot = |reason: String| Outage::CannotRun { program: self.command.join(" "), reason };
        let deadline = Instant::now() + self.limit;
        let mut input = Vec::new();
        for question in questions {
            serde_json::to_writer(&mut input, question).map_err(|e| cannot(e.to_string()))?;
            input.push(b'\n');
        }
        let (name, arguments) =
            self.command.split_first().ok_or_else(|| cannot("no program is named".into()))?;
        let mut group = Group::spawn(name, arguments).map_err(|e| cannot(e.to_string()))?;
        let Some((mut stdin, stdout, stderr)) = group.streams() else {
            unreachable!("all three streams are piped")
        };
        // Threads of their own: a program that reads late or answers early must not block the other side. They end when
        // the group does. A program may leave its input unread.
        thread::spawn(move || stdin.write_all(&input));
        let (sender, said) = mpsc::channel();
        thread::spawn(move || sender.send(read_errors(stderr)));
        let (sender, printed) = mpsc::sync_channel(LINES_WAITING);
        thread::spawn(move || read_lines(stdout, &sender));
        let (limit, samples, answers) = (self.limit, questions.len(), Vec::new());
        Ok(Conversation { group, printed, said, limit, deadline, samples, answers })
    }
}

impl Conversation {
    /// Takes answers until the program's output and the program itself have ended, well or badly.
    fn listen(&mut self) -> Result<(), Outage> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.late());
            }
            match self.printed.recv_timeout(left.min(POLL)) {
                Ok(Printed::Line(line)) => self.take(&line)?,
                Ok(Printed::Endless) => {
                    let number = self.answers.len() + 1;
                    return Err(Outage::LongLine { number, limit: ANSWER_BYTES_LIMIT });
                }
                Err(RecvTimeoutError::Disconnected) => return self.ended(),
                // What a program that has ended left behind must not hold its output open.
                Err(RecvTimeoutError::Timeout) if self.group.has_ended() => {
                    self.group.end();
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn take(&mut self, line: &[u8]) -> Result<(), Outage> {
        let text = String::from_utf8_lossy(line);
        if self.answers.len() < self.samples {
            let found = |_| Fault::NotJson { found: excerpt(&text) };
            self.answers.push(serde_json::from_str(&text).map_err(found));
        } else if !text.trim().is_empty() {
            return Err(Outage::TooMany { samples: self.samples, surplus: excerpt(&text) });
        }
        Ok(())
    }

    fn late(&self) -> Outage {
        let (limit_s, samples) = (self.limit.as_secs_f64(), self.samples);
        match self.answers.len() {
            answered if answered < samples => Outage::TimedOut { limit_s, answered, samples },
            _ => Outage::Lingers { limit_s, samples },
        }
    }

    /// The output is closed: what the program ends with, if it does in time.
    fn ended(&mut self) -> Result<(), Outage> {
        if !self.group.wait(self.deadline) {
            return Err(self.late());
        }
        let status = self.group.end();
        if status.is_some_and(|status| status.success()) {
            return Ok(());
        }
        let answered = self.answers.len();
        // Everyone who could write to the error stream was ended, or has left the group.
        let said = self.said.recv_timeout(LAST_WORDS).unwrap_or_default();
        let said = excerpt(&said);
        let said = if said.is_empty() { said } else { format!(": {said}") };
        let status = status.map_or("its status is not known".into(), |s| s.to_string());
        Err(Outage::Ended { status, answered, samples: self.samples, said })
    }
}

fn read_lines(stdout: ChildStdout, sender: &SyncSender<Printed>) {
    let mut reader = BufReader::new(stdout);
    loop {
        let mut line = Vec::new();
        let limited = &mut (&mut reader).take(ANSWER_BYTES_LIMIT as u64 + 1);
        // A pipe that cannot be read is at its end.
        let printed = match limited.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(read) if read > ANSWER_BYTES_LIMIT => Printed::Endless,
            Ok(_) => Printed::Line(line),
        };
        if sender.send(printed).is_err() {
            return;
        }
    }
}

fn read_errors(mut stderr: ChildStderr) -> String {
    let mut text = Vec::new();
    // What was read counts, whatever ends the stream; the rest is read and dropped, so that the program can go on.
    let _ = (&mut stderr).take(ERROR_BYTES_LIMIT).read_to_end(&mut text);
    let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;
    use std::fs;

    /// What a shell script makes of three completions: 1, 2, 3.
    fn run(script: &str, limit: Duration) -> Result<Grades, Outage> {
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
    const SHORT: Duration = Duration::from_millis(300);

    /// Whether a process runs; one that was ended and not yet reaped does not.
    fn runs(pid: &str) -> bool {
        let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
        status.is_ok_and(|text| !text.contains("State:\tZ"))
    }

    /// Waits for the end of the process whose number is in a file.
    fn is_gone(file: &std::path::Path) -> bool {
        let pid = fs::read_to_string(file).unwrap();
        let start = Instant::now();
        while runs(&pid) && start.elapsed() < LONG {
            thread::sleep(POLL);
        }
        !runs(&pid)
    }

    #[test]
    fn a_program_answers_line_by_line() {
        // Each line holds the completion's number as `"completion":"N"`.
        let script = r#"while read -r line; do n=${line##*'"completion":"'}; echo "{\"reward\": ${n%%'"'*}.5}"; done"#;
        assert_eq!(run(script, LONG).unwrap(), [Ok(1.5), Ok(2.5), Ok(3.5)]);
        let unread = "echo 1; echo 2; echo 3; echo; echo >&2 done";
        assert_eq!(run(unread, LONG).unwrap(), [Ok(1.0), Ok(2.0), Ok(3.0)]);
        assert_eq!(run("echo 1; echo 2; printf 3", LONG).unwrap()[2], Ok(3.0));
    }

    #[test]
    fn answers_that_name_their_samples_come_in_any_order() {
        let script = r#"for n in 2 0 1; do echo "{\"sample\": $n, \"reward\": $n}"; done"#;
        assert_eq!(run(script, LONG).unwrap(), [Ok(0.0), Ok(1.0), Ok(2.0)]);
        let grades = run(r#"echo '{"sample": 1, "reward": 7}'; exit 3"#, LONG).unwrap();
        assert_eq!(grades[1], Ok(7.0));
        assert!(matches!(grades[0], Err(Fault::Unanswered { why: Outage::Ended { .. } })));
    }

    #[test]
    fn more_or_fewer_answers_than_samples_are_nobodys() {
        let outage = run("echo loading; echo 1; echo 2; echo 3", LONG).unwrap_err();
        assert_eq!(outage, Outage::TooMany { samples: 3, surplus: "3".into() });
        let outage = run("echo 1; echo 3", LONG).unwrap_err();
        assert_eq!(outage, Outage::TooFew { answered: 2, samples: 3 });
        let without_end = run("echo 1; echo 2; echo 3; yes ''", SHORT).unwrap_err();
        assert!(matches!(without_end, Outage::Lingers { .. } | Outage::TimedOut { .. }));
    }

    #[test]
    fn an_endless_line_is_not_taken_for_several() {
        let script = "head -c 3000000 /dev/zero | tr '\\0' 1; echo; echo 2; echo 3";
        assert_eq!(
            run(script, LONG).unwrap_err(),
            Outage::LongLine { number: 1, limit: ANSWER_BYTES_LIMIT }
        );
    }

    #[test]
    fn a_crash_tells_how_far_it_came_and_what_it_said() {
        for script in ["echo 1; echo out of luck >&2; exit 3", "kill -9 $$"] {
            let outage = run(script, LONG).unwrap_err();
            assert!(matches!(outage, Outage::Ended { .. }), "{outage}");
            let text = outage.to_string();
            let crashed = text.contains("exit status: 3) after 1 of 3 answers: out of luck");
            assert!(crashed || text.contains("SIGKILL)) after 0 of 3 answers"), "{text}");
        }
        let text = run("echo 1; echo 2; echo 3; exit 1", LONG).unwrap_err().to_string();
        assert!(text.contains("exit status: 1) after 3 of 3"), "{text}");
    }

    #[test]
    fn a_hang_is_cut_short_with_all_that_the_program_started() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let name = file.display();
        for script in [
            format!("echo 1; sleep 600 & echo $! > {name}; wait"),
            format!("echo 1; echo $$ > {name}; exec sleep 600"),
        ] {
            // Time enough for the shell to begin on a busy machine.
            let outage = run(&script, Duration::from_secs(2)).unwrap_err();
            assert_eq!(outage, Outage::TimedOut { limit_s: 2.0, answered: 1, samples: 3 });
            assert!(is_gone(&file), "{script}");
        }
    }

    #[test]
    fn what_a_program_left_behind_holds_nobody_up() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let name = file.display();
        // Of its output, and of its error stream alone.
        for left in ["sleep 600 &", "sleep 600 1>&- &"] {
            let script = format!("echo 1; {left} echo $! > {name}; exit 3");
            let text = run(&script, LONG).unwrap_err().to_string();
            assert!(text.contains("exit status: 3"), "{left} {text}");
            assert!(is_gone(&file), "{left}");
        }
        let script = format!("sleep 600 & echo $! > {name}; echo 1; echo 2; echo 3");
        assert_eq!(run(&script, LONG).unwrap(), [Ok(1.0), Ok(2.0), Ok(3.0)]);
        assert!(is_gone(&file));
    }

    #[test]
    fn a_program_has_a_group_of_its_own() {
        // The fifth field of stat is the process group.
        let script = "cut -d' ' -f5 /proc/$$/stat; echo $$; echo 0";
        let grades = run(script, LONG).unwrap();
        assert_eq!(grades[0], grades[1]);
    }

    #[test]
    fn garbage_and_what_is_no_number_cost_their_sample_only() {
        let found = run("echo 1; echo oops; echo NaN", LONG).unwrap();
        assert_eq!(found[0], Ok(1.0));
        assert_eq!(found[1], Err(Fault::NotJson { found: "oops".into() }));
        assert!(matches!(found[2], Err(Fault::NotJson { .. })));
        let found = run("echo null; echo 2; echo 1e999", LONG).unwrap();
        assert!(matches!(found[0], Err(Fault::NotANumber { .. })));
        assert_eq!(found[1], Ok(2.0));
        assert!(found[2].is_err());
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let fields = Map::new();
        let question =
            Question { sample: 0, prompt: "", completion: "", answer: None, fields: &fields };
        for command in [vec!["/nowhere/grade".to_owned()], vec![]] {
            let program = ExternalProgram { command: command.clone(), limit: LONG };
            let outage = program.grade(std::slice::from_ref(&question)).unwrap_err();
            assert!(matches!(outage, Outage::CannotRun { .. }), "{outage}");
            assert!(outage.to_string().contains(&command.concat()), "{outage}");
        }
    }
}
