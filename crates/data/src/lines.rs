//! Lines of a file, with limits.

use std::ops::Range;
use std::path::Path;

use crate::error::{DataError, Origin, SampleError};

/// The most bytes of a line: more than any context holds, and little enough for memory.
pub const LINE_BYTES_LIMIT: usize = 64 << 20;
/// The most samples of a data set.
pub const SAMPLES_LIMIT: usize = 1 << 27;

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Where each line is that is not blank. Lines end in `\n` or `\r\n`; blank ones may stand at the end, so line `n` is the
/// `n`th of these.
pub(crate) fn lines(path: &Path, bytes: &[u8]) -> Result<Vec<Range<usize>>, DataError> {
    let origin = |line: usize| Origin { file: path.into(), line };
    if bytes.starts_with(BYTE_ORDER_MARK) {
        return Err(SampleError::ByteOrderMark.at(&origin(1)));
    }
    let mut found = Vec::new();
    let mut blank = None;
    let mut start = 0;
    for (index, line) in bytes.split_inclusive(|&byte| byte == b'\n').enumerate() {
        let range = start..start + line.len();
        start = range.end;
        if line.len() > LINE_BYTES_LIMIT {
            return Err(SampleError::LineTooLong { limit: LINE_BYTES_LIMIT }.at(&origin(index + 1)));
        }
        if line.trim_ascii().is_empty() {
            blank.get_or_insert(index + 1);
            continue;
        }
        if let Some(blank) = blank {
            return Err(SampleError::BlankLine.at(&origin(blank)));
        }
        found.push(range);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Result<Vec<&str>, DataError> {
        let found = lines(Path::new("data.jsonl"), bytes)?;
        Ok(found
            .into_iter()
            .map(|line| std::str::from_utf8(&bytes[line]).unwrap().trim())
            .collect())
    }

    fn refusal(bytes: &[u8]) -> (usize, SampleError) {
        match texts(bytes) {
            Err(DataError::Sample { origin, source }) => (origin.line, source),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_end_as_they_do_and_blank_ones_may_end_the_file() {
        assert_eq!(texts(b"a\r\nb\nc\n\n \r\n").unwrap(), ["a", "b", "c"]);
        assert_eq!(texts(b"a").unwrap(), ["a"]);
        assert_eq!(texts(b"").unwrap(), [""; 0]);
    }

    #[test]
    fn a_blank_line_before_a_sample_is_refused_where_it_stands() {
        assert!(matches!(refusal(b"a\n\n\nb\n"), (2, SampleError::BlankLine)));
    }

    #[test]
    fn a_byte_order_mark_is_refused() {
        assert!(matches!(refusal(b"\xEF\xBB\xBFa\n"), (1, SampleError::ByteOrderMark)));
    }

    #[test]
    fn a_line_over_the_limit_is_refused_and_one_at_it_is_not() {
        let mut bytes = vec![b'a'; LINE_BYTES_LIMIT];
        assert_eq!(texts(&bytes).unwrap().len(), 1);
        bytes.push(b'a');
        assert!(matches!(refusal(&bytes), (1, SampleError::LineTooLong { .. })));
        bytes[0] = b'\n';
        assert!(matches!(refusal(&bytes), (1, SampleError::BlankLine)));
    }
}
