//! Lines of a file, with limits.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use crate::error::{DataError, Origin, SampleError};

/// The most bytes of a line: more than any context holds, and little enough for memory.
pub const LINE_BYTES_LIMIT: usize = 64 << 20;
/// The most samples of a data set.
pub const SAMPLES_LIMIT: usize = 1 << 27;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Calls `take` with every line that is not blank. Lines end in `\n` or `\r\n`; blank ones may stand at the end.
pub(crate) fn each_line(
    path: &Path,
    take: &mut dyn FnMut(Origin, &str) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let read_error = |source| DataError::Read { path: path.to_owned(), source };
    let file: Arc<Path> = path.into();
    let mut reader = BufReader::with_capacity(1 << 18, File::open(path).map_err(read_error)?);
    let mut line = Vec::new();
    let mut blank: Option<Origin> = None;
    for number in 1.. {
        line.clear();
        let origin = Origin { file: Arc::clone(&file), line: number };
        let limit = LINE_BYTES_LIMIT as u64 + 1;
        let mut limited = (&mut reader).take(limit);
        let read = limited.read_until(b'\n', &mut line).map_err(read_error)?;
        if read == 0 {
            break;
        }
        let text = line_text(number, &line).map_err(|error| error.at(&origin))?;
        if text.trim().is_empty() {
            blank.get_or_insert(origin);
            continue;
        }
        if let Some(blank) = &blank {
            return Err(SampleError::BlankLine.at(blank));
        }
        take(origin, text)?;
    }
    Ok(())
}

fn line_text(number: usize, line: &[u8]) -> Result<&str, SampleError> {
    if line.len() > LINE_BYTES_LIMIT {
        return Err(SampleError::LineTooLong { limit: LINE_BYTES_LIMIT });
    }
    if number == 1 && line.starts_with(BYTE_ORDER_MARK) {
        return Err(SampleError::ByteOrderMark);
    }
    std::str::from_utf8(line).map_err(|error| SampleError::NotUtf8 { byte: error.valid_up_to() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Result<Vec<(usize, String)>, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.jsonl");
        std::fs::write(&path, bytes).unwrap();
        let mut found = Vec::new();
        each_line(&path, &mut |origin, text| {
            found.push((origin.line, text.trim().to_owned()));
            Ok(())
        })?;
        Ok(found)
    }

    fn refusal(bytes: &[u8]) -> (usize, SampleError) {
        match lines(bytes) {
            Err(DataError::Sample { origin, source }) => (origin.line, source),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_are_counted_from_one_and_may_end_blank() {
        let found = lines(b"a\r\nb\nc\n\n \r\n").unwrap();
        assert_eq!(found, [(1, "a".into()), (2, "b".into()), (3, "c".into())]);
        assert_eq!(lines(b"a").unwrap(), [(1, "a".into())]);
        assert_eq!(lines(b"").unwrap(), []);
    }

    #[test]
    fn a_blank_line_before_a_sample_is_refused_where_it_stands() {
        assert!(matches!(refusal(b"a\n\n\nb\n"), (2, SampleError::BlankLine)));
    }

    #[test]
    fn other_encodings_are_refused() {
        assert!(matches!(refusal(b"a\nb\xffc\n"), (2, SampleError::NotUtf8 { byte: 1 })));
        assert!(matches!(refusal(b"\xEF\xBB\xBFa\n"), (1, SampleError::ByteOrderMark)));
        assert!(matches!(refusal(b"\xFF\xFE{\0"), (1, SampleError::NotUtf8 { byte: 0 })));
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_one_at_it_is_not() {
        let mut bytes = vec![b'a'; LINE_BYTES_LIMIT];
        assert_eq!(lines(&bytes).unwrap().len(), 1);
        bytes.push(b'a');
        assert!(matches!(refusal(&bytes), (1, SampleError::LineTooLong { .. })));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = each_line(Path::new("/nowhere/data.jsonl"), &mut |_, _| Ok(())).unwrap_err();
        assert!(error.to_string().contains("/nowhere/data.jsonl"), "{error}");
    }
}
