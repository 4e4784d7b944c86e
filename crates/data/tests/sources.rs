//! Several sources, samples that are too long, and files that are wrong.

mod common;

use std::path::PathBuf;

use common::{BOS, END, Fixture, encode, id, ids, learnt};
use data::{Corpus, Counts, DataError, Dataset, Encoder, SampleError, Source, TooLong};

/// A conversation of exchanges `q`/`a`, each of one letter.
fn chat(system: bool, exchanges: &[&str]) -> String {
    let mut messages = Vec::new();
    if system {
        messages.push(r#"{"role": "system", "content": "s"}"#.to_owned());
    }
    for exchange in exchanges {
        let (q, a) = exchange.split_at(1);
        messages.push(format!(r#"{{"role": "user", "content": "{q}"}}"#));
        messages.push(format!(r#"{{"role": "assistant", "content": "{a}"}}"#));
    }
    format!(r#"{{"messages": [{}]}}"#, messages.join(", "))
}

fn total(dataset: &Dataset) -> Counts {
    dataset.report().total
}

fn shortened(
    fixture: &Fixture,
    line: &str,
    max_length: usize,
    too_long: TooLong,
) -> Option<Dataset> {
    let encoder = Encoder { max_length, too_long, ..fixture.encoder() };
    match encode(&encoder, &fixture.corpus(&[line])) {
        Ok(dataset) => Some(dataset),
        Err(DataError::AllDropped { dropped: 1, .. }) => None,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn left_keeps_the_end_of_every_shape() {
    let fixture = Fixture::new(true);
    let dataset = shortened(&fixture, r#"{"text": "abcdef"}"#, 4, TooLong::Left).unwrap();
    assert_eq!(dataset.sample(0).ids, [BOS, id('e'), id('f'), END]);
    assert_eq!(dataset.sample(0).supervised, [false, false, true, true]);
    let counts = total(&dataset);
    assert_eq!((counts.shortened, counts.cut_tokens, counts.cut_supervised), (1, 4, 5));
    assert_eq!((counts.tokens, counts.supervised, counts.tokens_read()), (4, 2, 8));

    let pair = r#"{"prompt": "abcd", "completion": "ef"}"#;
    let dataset = shortened(&Fixture::new(false), pair, 4, TooLong::Left).unwrap();
    assert_eq!(dataset.sample(0).ids, [id('d'), id('e'), id('f'), END]);
    let counts = total(&dataset);
    assert_eq!((counts.cut_tokens, counts.cut_supervised), (3, 0));
}

#[test]
fn middle_drops_the_oldest_exchanges_that_it_must_and_keeps_the_system() {
    let fixture = Fixture::new(false);
    let lengths: Vec<usize> = (1..=4)
        .map(|count| {
            let line = chat(true, &["ab", "cd", "ef", "gh"][4 - count..]);
            fixture.encode(&[&line]).unwrap().lengths()[0]
        })
        .collect();
    let whole = chat(true, &["ab", "cd", "ef", "gh"]);
    for count in 1..=4 {
        for room in [lengths[count - 1], lengths[count - 1] + 1] {
            let dataset = shortened(&fixture, &whole, room, TooLong::Middle).unwrap();
            let expected =
                fixture.encode(&[&chat(true, &["ab", "cd", "ef", "gh"][4 - count..])]).unwrap();
            assert_eq!(dataset.sample(0), expected.sample(0), "{count} exchanges in {room}");
            let counts = total(&dataset);
            assert_eq!(counts.shortened, usize::from(count < 4));
            assert_eq!(counts.cut_tokens, lengths[3] - lengths[count - 1]);
            assert_eq!(counts.cut_supervised, 2 * (4 - count), "a letter and its end each");
        }
    }
    assert!(shortened(&fixture, &whole, lengths[0] - 1, TooLong::Middle).is_none());
}

#[test]
fn middle_drops_what_is_no_conversation_and_what_it_leaves_nothing_of() {
    let fixture = Fixture::new(false);
    for line in [r#"{"text": "abcdef"}"#, r#"{"prompt": "abcd", "completion": "ef"}"#] {
        assert!(shortened(&fixture, line, 4, TooLong::Middle).is_none());
    }
    let last = r#"{"role": "assistant", "content": "d", "train": false}"#;
    let only_first_learnt =
        chat(false, &["ab", "cd"]).replace(r#"{"role": "assistant", "content": "d"}"#, last);
    let length = fixture.encode(&[&only_first_learnt]).unwrap().lengths()[0];
    assert!(shortened(&fixture, &only_first_learnt, length - 1, TooLong::Middle).is_none());
    assert!(shortened(&fixture, &only_first_learnt, length, TooLong::Middle).is_some());
    // Three exchanges, of which the middle one alone is learnt: dropping one is right, two too many.
    let third = r#"{"role": "assistant", "content": "f", "train": false}"#;
    let middle_learnt =
        chat(false, &["ab", "cd", "ef"]).replace(r#"{"role": "assistant", "content": "f"}"#, third);
    let dataset = shortened(&fixture, &middle_learnt, length, TooLong::Middle).unwrap();
    assert_eq!(learnt(&dataset, 0), [ids("d"), vec![END]].concat());
}

fn file(fixture: &Fixture, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = fixture.folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn sources_are_counted_apart_and_duplicates_wherever_they_are() {
    let fixture = Fixture::new(false);
    let one = file(&fixture, "one.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"abcdef\"}\n");
    let two =
        file(&fixture, "two.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n{\"text\": \"cd\"}\n");
    let sources = [
        Source { name: "first".into(), weight: 2.0, ..Source::new(one) },
        Source::new(two.clone()),
    ];
    let corpus = Corpus::open(&sources).unwrap();
    let encoder = Encoder { max_length: 4, too_long: TooLong::Drop, ..fixture.encoder() };
    let dataset = encode(&encoder, &corpus).unwrap();
    let report = dataset.report();
    let rows: Vec<_> = report
        .sources
        .iter()
        .map(|s| {
            (
                s.name.as_str(),
                s.weight,
                s.counts.samples,
                s.counts.dropped_tokens,
                s.counts.duplicates,
            )
        })
        .collect();
    let path = two.display().to_string();
    assert_eq!(rows, [("first", 2.0, 1, 7, 0), (path.as_str(), 1.0, 3, 0, 2)]);
    assert_eq!((report.total.dropped, report.total.dropped_supervised), (1, 6));
    let places: Vec<_> = (0..4).map(|i| (dataset.source_of(i), dataset.origin(i).line)).collect();
    assert_eq!(places, [(0, 1), (1, 1), (1, 2), (1, 3)]);
}

#[test]
fn an_id_given_twice_in_a_file_is_refused_and_in_two_files_is_not() {
    let fixture = Fixture::new(false);
    let with = |id: &str| format!("{{\"text\": \"a\", \"id\": {id}}}\n");
    let one = file(&fixture, "one.jsonl", with("1") + &with("\"1\"") + &with("[1]") + &with("[1]"));
    let two = file(&fixture, "two.jsonl", with("2") + &with("1"));
    let open = |paths: &[PathBuf]| Corpus::open(&Source::of_files(paths)).unwrap();
    encode(&fixture.encoder(), &open(&[one, two])).unwrap();
    let twice = file(&fixture, "twice.jsonl", with("7") + &with("8") + &with("7"));
    let error = encode(&fixture.encoder(), &open(&[twice])).unwrap_err();
    assert!(
        matches!(&error, DataError::DuplicateId { origin, first: 1, .. } if origin.line == 3),
        "{error}"
    );
}

#[test]
fn two_bos_are_refused_and_one_is_not() {
    let fixture = Fixture::new(true);
    let error = fixture.refusal(r#"{"text": "<s><s>ab"}"#);
    assert!(matches!(error, SampleError::TwoBos), "{error}");
    fixture.encode(&[r#"{"text": "<s>ab"}"#]).unwrap();
    fixture.encode(&[r#"{"text": "<s>a<s>b"}"#]).unwrap();
}

#[test]
fn files_of_another_encoding_are_refused_by_name() {
    let fixture = Fixture::new(false);
    let line = "{\"text\": \"caf\u{e9}\"}\n";
    let utf16 = |bytes: fn(u16) -> [u8; 2], mark: &[u8]| {
        let units = line.encode_utf16().flat_map(bytes);
        mark.iter().copied().chain(units).collect::<Vec<u8>>()
    };
    for bytes in [
        utf16(u16::to_le_bytes, &[0xff, 0xfe]),
        utf16(u16::to_be_bytes, &[0xfe, 0xff]),
        utf16(u16::to_le_bytes, &[]),
        utf16(u16::to_be_bytes, &[]),
        line.chars().flat_map(|c| u32::from(c).to_le_bytes()).collect(),
        [0xff, 0xfe, 0, 0]
            .into_iter()
            .chain(line.chars().flat_map(|c| u32::from(c).to_le_bytes()))
            .collect(),
    ] {
        let path = file(&fixture, "other.jsonl", bytes);
        let error = data::read(&[path]).unwrap_err();
        assert!(matches!(error, DataError::Encoding { .. }), "{error}");
        assert!(error.to_string().contains("other.jsonl is UTF-"), "{error}");
    }
    let latin1: Vec<u8> = line.chars().map(|c| u32::from(c) as u8).collect();
    let error = data::read(&[file(&fixture, "latin1.jsonl", latin1)]).unwrap_err().to_string();
    assert!(error.contains("latin1.jsonl:1: byte 13 of the line is not UTF-8"), "{error}");
    data::read(&[file(&fixture, "good.jsonl", line)]).unwrap();
}

#[test]
fn files_that_are_missing_or_empty_are_named() {
    let fixture = Fixture::new(false);
    for text in ["", "\n", " \n\n"] {
        let error = data::read(&[file(&fixture, "empty.jsonl", text)]).unwrap_err();
        assert!(matches!(error, DataError::EmptyFile { .. }), "{error}");
    }
    let missing = data::read(&[fixture.folder.path().join("missing.jsonl")]).unwrap_err();
    assert!(matches!(missing, DataError::Read { .. }), "{missing}");
    assert!(missing.to_string().contains("missing.jsonl"), "{missing}");
    assert!(matches!(data::read(&[]), Err(DataError::NoFile)));
}

#[test]
fn files_are_read_in_order_and_errors_name_the_line() {
    let fixture = Fixture::new(false);
    let one = file(&fixture, "one.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    let two = file(&fixture, "two.jsonl", "{\"text\": \"c\"}\n");
    let samples = data::read(&[one.clone(), two]).unwrap();
    let texts: Vec<_> = samples.iter().map(|s| s.content.clone()).collect();
    assert_eq!(texts, ["a", "b", "c"].map(|t| data::Content::Text(t.into())));
    assert_eq!((samples[1].origin.line, samples[2].origin.line), (2, 1));
    let bad = file(&fixture, "bad.jsonl", "{\"text\": \"a\"}\n{\"text\": 1}\n");
    let error = data::read(&[one, bad]).unwrap_err().to_string();
    assert!(error.contains("bad.jsonl:2: "), "{error}");
}
