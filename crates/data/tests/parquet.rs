//! Parquet files as pyarrow writes them (`scripts/goldens/parquet.py`), against the same samples in JSON Lines.

use std::path::{Path, PathBuf};

use data::{ColumnError, Content, Corpus, DataError, Format, Sample, Source};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet").join(name)
}

fn contents(name: &str) -> Vec<Content> {
    let samples: Vec<Sample> = data::read(&[golden(name)]).unwrap();
    for (index, sample) in samples.iter().enumerate() {
        assert_eq!(sample.origin.line, index + 1);
    }
    samples.into_iter().map(|sample| sample.content).collect()
}

#[test]
fn a_table_holds_the_samples_that_lines_hold() {
    for name in ["chats", "chats_as_json", "calls", "pairs", "texts"] {
        let (table, lines) =
            (contents(&format!("{name}.parquet")), contents(&format!("{name}.jsonl")));
        assert_eq!(table, lines, "{name}");
    }
    let corpus = Corpus::open(&[Source::new(golden("pairs.parquet"))]).unwrap();
    assert_eq!(corpus.files()[0].format(), Format::Parquet);
}

fn refusal(name: &str) -> (ColumnError, String) {
    let error = data::read(&[golden(name)]).unwrap_err();
    let said = error.to_string();
    assert!(said.contains(name), "{said}");
    match error {
        DataError::Parquet { source, .. } => (source, said),
        other => panic!("{other}"),
    }
}

#[test]
fn columns_that_are_missing_or_of_another_type_are_named() {
    let (error, said) = refusal("refused_other_columns.parquet");
    assert!(matches!(error, ColumnError::Missing { .. }), "{said}");
    assert!(said.contains("question, answer"), "{said}");
    assert!(matches!(refusal("refused_half.parquet").0, ColumnError::Missing { .. }));
    let nested = "a list of structs, or strings of JSON";
    for (name, column, needed, found) in [
        ("numbers", "text", "strings", "INT64"),
        ("bytes", "text", "strings", "BYTE_ARRAY"),
        ("dates", "messages", nested, "a list or struct"),
    ] {
        let (error, said) = refusal(&format!("refused_{name}.parquet"));
        let ColumnError::Type { column: c, needed: n, found: f } = error else { panic!("{said}") };
        assert_eq!((c.as_str(), n, f.as_str()), (column, needed, found), "{said}");
    }
    let (error, said) = refusal("refused_broken_json.parquet");
    assert!(matches!(error, ColumnError::Json { row: 2, .. }), "{said}");
    let empty = data::read(&[golden("refused_empty.parquet")]);
    assert!(matches!(empty, Err(DataError::EmptyFile { .. })), "{empty:?}");
}

#[test]
fn prompts_are_read_from_lines_and_not_from_a_table() {
    let prompts = |name: &str| {
        let corpus = Corpus::open(&[Source::new(golden(name))]).unwrap();
        corpus.prompts().map(|rows| rows.len())
    };
    let error = prompts("pairs.parquet").unwrap_err();
    assert!(matches!(&error, DataError::PromptTable { path } if path.ends_with("pairs.parquet")));
    assert!(error.to_string().contains("convert the table"), "{error}");
    assert!(prompts("pairs.jsonl").unwrap() > 0);
}

#[test]
fn a_file_that_is_no_table_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    std::fs::write(&path, r#"{"text": "a"}"#).unwrap();
    let error = data::read(std::slice::from_ref(&path)).unwrap_err();
    assert!(matches!(error, DataError::NotParquet { .. }), "{error}");
}

/// Damage anywhere is an error or changes nothing that is read; it never panics.
#[test]
fn a_damaged_table_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let whole = std::fs::read(golden("chats.parquet")).unwrap();
    let mut refused = 0;
    let mut check = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        refused += usize::from(data::read(std::slice::from_ref(&path)).is_err());
    };
    for at in (0..whole.len()).step_by(7) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        check(&bytes);
        check(&whole[..at]);
    }
    assert!(refused > whole.len() / 7, "every cut file, and more: {refused}");
}
