//! A reward endpoint: one POST a batch, `{"samples": [...]}` with the fields of [`Question`]; it answers
//! `{"rewards": [...]}` in the same order, each a number or an object with `reward`; with `sample` in each, in any order.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::answers::settle;
use super::{ANSWER_BYTES_LIMIT, Grades, Outage, Question, excerpt};

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
    pub(super) fn grade(&self, questions: &[Question<'_>]) -> Result<Grades, Outage> {
        let samples = questions.len();
        let answers = self.ask(questions)?;
        if let Some(surplus) = answers.get(samples) {
            return Err(Outage::TooMany { samples, surplus: excerpt(&surplus.to_string()) });
        }
        let answers: Vec<_> = answers.into_iter().map(Ok).collect();
        settle(&answers, samples, Ok(()))
    }

    fn ask(&self, questions: &[Question<'_>]) -> Result<Vec<Value>, Outage> {
        let fault = |reason: String| Outage::Endpoint { url: self.url.clone(), reason };
        let failed = |error: ureq::Error| match error {
            ureq::Error::Timeout(_) => Outage::TimedOut {
                limit_s: self.limit.as_secs_f64(),
                answered: 0,
                samples: questions.len(),
            },
            error => fault(error.to_string()),
        };
        if !self.url.starts_with("http://") {
            return Err(fault("it must begin with http://; put a proxy before what is not".into()));
        }
        let body =
            serde_json::to_vec(&Asked { samples: questions }).map_err(|e| fault(e.to_string()))?;
        let config = ureq::Agent::config_builder().timeout_global(Some(self.limit)).build();
        let sent = ureq::Agent::new_with_config(config)
            .post(&self.url)
            .header("content-type", "application/json")
            .send(&body[..]);
        let mut response = sent.map_err(failed)?;
        // Room for one answer more than there are samples: for what is around them.
        let limit = ANSWER_BYTES_LIMIT as u64 * (questions.len() as u64 + 1);
        let read = response.body_mut().with_config().limit(limit).read_to_string();
        let text = read.map_err(failed)?;
        let no_list = || {
            fault("it must answer {\"rewards\": [...]}, an answer a sample in order, and has no such list".into())
        };
        let not_json = |_| fault(format!("it answered `{}`, which is not JSON", excerpt(&text)));
        let answer: Value = serde_json::from_str(&text).map_err(not_json)?;
        match answer {
            Value::Object(mut answer) => match answer.remove("rewards") {
                Some(Value::Array(rewards)) => Ok(rewards),
                _ => Err(no_list()),
            },
            _ => Err(no_list()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rewards::Fault;
    use serde_json::Map;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Asks a server that answers once, with these bytes after reading the request, and then ends the connection if it
    /// is to.
    fn ask(answer: &str, ends: bool, limit: Duration) -> Result<Grades, Outage> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/grade", listener.local_addr().unwrap());
        let answer = answer.to_owned();
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
            // A client that has seen enough may have gone.
            let _ = stream.write_all(answer.as_bytes());
            if !ends {
                // Hold the connection until the client has given up.
                let _ = stream.read(&mut part);
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
    fn an_endpoint_answers_in_order_or_by_name() {
        let grades = ask(&ok(r#"{"rewards": [0.5, {"reward": 1}]}"#), true, LONG).unwrap();
        assert_eq!(grades, [Ok(0.5), Ok(1.0)]);
        let named = r#"{"rewards": [{"sample": 1, "reward": 1}, {"sample": 0, "reward": 0.5}]}"#;
        assert_eq!(ask(&ok(named), true, LONG).unwrap(), [Ok(0.5), Ok(1.0)]);
    }

    #[test]
    fn what_is_no_number_costs_its_sample_only() {
        let found = ask(&ok(r#"{"rewards": [null, 2]}"#), true, LONG).unwrap();
        assert!(matches!(found[0], Err(Fault::NotANumber { .. })));
        assert_eq!(found[1], Ok(2.0));
    }

    #[test]
    fn answers_that_cannot_be_used_say_why() {
        let long = format!("{{\"rewards\": [1, 2], \"pad\": \"{}\"}}", "x".repeat(4 << 20));
        for (answer, said) in [
            (ok("oops"), "not JSON"),
            (ok("{}"), "must answer {\"rewards\": [...]}"),
            (ok("[1, 2]"), "must answer {\"rewards\": [...]}"),
            (ok(r#"{"rewards": [1]}"#), "1 answers for 2 samples"),
            (ok(r#"{"rewards": [1, 2, 3]}"#), "more answers than there are samples, 2"),
            (ok(&long), "limit"),
            ("HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n".to_owned(), "500"),
        ] {
            let text = ask(&answer, true, LONG).unwrap_err().to_string();
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn silence_is_cut_short_before_an_answer_and_within_one() {
        let begun = "HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"rewards\": [1,";
        for answer in ["", begun] {
            let outage = ask(answer, false, Duration::from_millis(300)).unwrap_err();
            assert_eq!(outage, Outage::TimedOut { limit_s: 0.3, answered: 0, samples: 2 });
        }
    }

    #[test]
    fn nobody_and_what_is_no_address_are_named() {
        let fields = Map::new();
        let question =
            Question { sample: 0, prompt: "", completion: "", answer: None, fields: &fields };
        for (url, said) in [
            ("http://127.0.0.1:1/", "http://127.0.0.1:1/"),
            ("https://127.0.0.1:1/", "must begin with http://"),
            ("127.0.0.1:1", "must begin with http://"),
            ("http://", "http://"),
        ] {
            let nobody = Endpoint { url: url.into(), limit: LONG };
            let outage = nobody.grade(std::slice::from_ref(&question)).unwrap_err();
            assert!(matches!(outage, Outage::Endpoint { .. }), "{outage}");
            assert!(outage.to_string().contains(said), "{outage}");
        }
    }
}
