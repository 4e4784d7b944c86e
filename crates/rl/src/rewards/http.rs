//! A reward endpoint: one POST a batch, `{"samples": [...]}` with the fields of [`Question`]; it answers
//! `{"rewards": [...]}` in the same order, each a number or an object with `reward`.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::{Fault, Question, excerpt, reward_of};

/// The longest answer, bytes.
const ANSWER_BYTES_LIMIT: u64 = 64 << 20;

/// A server of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address, `http://…`.
    pub url: String,
    /// The most time for one batch.
    pub limit: Duration,
}

#[derive(Serialize)]
struct Asked<'a> {
    samples: &'a [Question<'a>],
}

impl Endpoint {
    pub(super) fn grade(&self, questions: &[Question<'_>]) -> Vec<Result<f64, Fault>> {
        match self.ask(questions) {
            Ok(rewards) => rewards.iter().map(reward_of).collect(),
            Err(fault) => questions.iter().map(|_| Err(fault.clone())).collect(),
        }
    }

    fn ask(&self, questions: &[Question<'_>]) -> Result<Vec<Value>, Fault> {
        let fault = |reason: String| Fault::Endpoint { url: self.url.clone(), reason };
        let body =
            serde_json::to_vec(&Asked { samples: questions }).map_err(|e| fault(e.to_string()))?;
        let config = ureq::Agent::config_builder().timeout_global(Some(self.limit)).build();
        let sent = ureq::Agent::new_with_config(config)
            .post(&self.url)
            .header("content-type", "application/json")
            .send(&body[..]);
        let mut response = sent.map_err(|error| match error {
            ureq::Error::Timeout(_) => Fault::TimedOut { limit_s: self.limit.as_secs_f64() },
            error => fault(error.to_string()),
        })?;
        let read = response.body_mut().with_config().limit(ANSWER_BYTES_LIMIT).read_to_string();
        let text = read.map_err(|error| match error {
            ureq::Error::Timeout(_) => Fault::TimedOut { limit_s: self.limit.as_secs_f64() },
            error => fault(error.to_string()),
        })?;
        let answer: Value =
            serde_json::from_str(&text).map_err(|_| Fault::NotJson { found: excerpt(&text) })?;
        let rewards = answer.get("rewards").and_then(Value::as_array);
        let rewards = rewards.ok_or_else(|| fault("its answer has no list `rewards`".into()))?;
        if rewards.len() != questions.len() {
            let (given, asked) = (rewards.len(), questions.len());
            return Err(fault(format!("it gave {given} rewards for {asked} samples")));
        }
        Ok(rewards.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Map;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Asks a server that answers once, with these bytes after reading the request, or not at all.
    fn ask(answer: Option<&str>, limit: Duration) -> Vec<Result<f64, Fault>> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/grade", listener.local_addr().unwrap());
        let answer = answer.map(str::to_owned);
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut seen = Vec::new();
            let mut part = [0u8; 4096];
            while !String::from_utf8_lossy(&seen).contains("]}") {
                let n = stream.read(&mut part).unwrap_or(0);
                if n == 0 {
                    break;
                }
                seen.extend_from_slice(&part[..n]);
            }
            match answer {
                Some(answer) => stream.write_all(answer.as_bytes()).unwrap(),
                // Hold the connection until the client has given up.
                None => drop(stream.read(&mut part)),
            }
        });
        let fields = Map::new();
        let question = |sample| Question {
            sample,
            prompt: "p",
            completion: "c",
            answer: None,
            fields: &fields,
        };
        let found = Endpoint { url, limit }.grade(&[question(0), question(1)]);
        server.join().unwrap();
        found
    }

    fn ok(body: &str) -> String {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn an_endpoint_answers_in_order() {
        let answer = ok(r#"{"rewards": [0.5, {"reward": 1}]}"#);
        assert_eq!(ask(Some(&answer), LONG), [Ok(0.5), Ok(1.0)]);
    }

    #[test]
    fn what_is_no_number_costs_its_sample_only() {
        let found = ask(Some(&ok(r#"{"rewards": [null, 2]}"#)), LONG);
        assert!(matches!(found[0], Err(Fault::NotANumber { .. })));
        assert_eq!(found[1], Ok(2.0));
    }

    #[test]
    fn answers_that_cannot_be_used_say_why() {
        for (answer, said) in [
            (ok("oops"), "not JSON"),
            (ok("{}"), "no list `rewards`"),
            (ok(r#"{"rewards": [1]}"#), "1 rewards for 2 samples"),
            ("HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n".to_owned(), "500"),
        ] {
            for fault in ask(Some(&answer), LONG) {
                let text = fault.unwrap_err().to_string();
                assert!(text.contains(said), "{text}");
            }
        }
    }

    #[test]
    fn silence_is_cut_short_and_nobody_is_named() {
        let found = ask(None, Duration::from_millis(300));
        assert_eq!(found[0], Err(Fault::TimedOut { limit_s: 0.3 }));
        let nobody = Endpoint { url: "http://127.0.0.1:1/".into(), limit: LONG };
        let fields = Map::new();
        let question =
            Question { sample: 0, prompt: "", completion: "", answer: None, fields: &fields };
        let fault = nobody.grade(&[question]).remove(0).unwrap_err();
        assert!(fault.to_string().contains("http://127.0.0.1:1/"), "{fault}");
    }
}
