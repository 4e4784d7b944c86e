//! The files of a data set, in memory: their identity, and their rows one by one.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::error::{DataError, Origin, SampleError};
use crate::lines::{SAMPLES_LIMIT, lines};
use crate::parquet_rows;
use crate::prompt::PromptRow;
use crate::sample::{Content, Sample, from_object, object_of};
use crate::source::{self, Source};

/// How a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    JsonLines,
    /// A table with a column a key.
    Parquet,
}

/// A source's bytes. They are read once: what is hashed is what is parsed.
#[derive(Clone, Debug)]
pub struct CorpusFile {
    pub(crate) source: Source,
    pub(crate) path: Arc<Path>,
    pub(crate) format: Format,
    pub(crate) hash: String,
    pub(crate) bytes: Bytes,
}

/// Every file of a data set, read and not yet parsed.
#[derive(Clone, Debug)]
pub struct Corpus {
    files: Vec<CorpusFile>,
}

impl Corpus {
    /// Reads the files of sources whole.
    ///
    /// # Errors
    /// [`DataError::NoFile`], [`DataError::Weight`], [`DataError::SourceTwice`], [`DataError::Read`],
    /// [`DataError::EmptyFile`], [`DataError::Encoding`], [`DataError::NotParquet`].
    pub fn open(sources: &[Source]) -> Result<Corpus, DataError> {
        source::check(sources)?;
        let files = sources.iter().map(CorpusFile::open).collect::<Result<_, _>>()?;
        Ok(Corpus { files })
    }

    /// The files, in order of their sources.
    pub fn files(&self) -> &[CorpusFile] {
        &self.files
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> usize {
        self.files.iter().map(|file| file.bytes.len()).sum()
    }

    /// Parses every sample, in order.
    ///
    /// # Errors
    /// [`DataError`]: the first row that is wrong, by file and line.
    pub fn samples(&self) -> Result<Vec<Sample>, DataError> {
        let rows = self.rows(SAMPLES_LIMIT)?;
        (0..rows.len()).map(|index| rows.sample(index)).collect()
    }

    /// Parses every row as a prompt, in order.
    ///
    /// # Errors
    /// [`DataError`]: a table, or the first row that is wrong, by file and line.
    pub fn prompts(&self) -> Result<Vec<PromptRow>, DataError> {
        if let Some(table) = self.files.iter().find(|file| file.format == Format::Parquet) {
            return Err(DataError::PromptTable { path: table.path.to_path_buf() });
        }
        let rows = self.rows(SAMPLES_LIMIT)?;
        let row = |index| {
            let origin = rows.origin(index);
            let object = rows.object(index).map_err(|error| error.at(&origin))?;
            PromptRow::of(origin, object)
        };
        (0..rows.len()).map(row).collect()
    }

    /// Finds the rows, each to be parsed by whoever takes it.
    pub(crate) fn rows(&self, limit: usize) -> Result<Rows<'_>, DataError> {
        let mut rows = Rows { files: Vec::with_capacity(self.files.len()), starts: vec![0] };
        for file in &self.files {
            let found = match file.format {
                Format::JsonLines => FileRows::Lines(lines(&file.path, &file.bytes)?),
                Format::Parquet => FileRows::Objects(parquet_rows::rows(&file.path, &file.bytes)?),
            };
            let (start, count) = (rows.len(), found.len());
            if count == 0 {
                return Err(DataError::EmptyFile { path: file.path.to_path_buf() });
            }
            if count > limit - start {
                let origin = file.origin(limit - start);
                return Err(DataError::TooManySamples { origin, limit });
            }
            rows.starts.push(start + count);
            rows.files.push((file, found));
        }
        Ok(rows)
    }
}

impl CorpusFile {
    fn open(source: &Source) -> Result<CorpusFile, DataError> {
        let read = |error| DataError::Read { path: source.path.clone(), source: error };
        let bytes = std::fs::read(&source.path).map_err(read)?;
        if bytes.is_empty() {
            return Err(DataError::EmptyFile { path: source.path.clone() });
        }
        let format = format(&source.path, &bytes)?;
        Ok(CorpusFile {
            source: source.clone(),
            path: source.path.as_path().into(),
            format,
            hash: blake3::hash(&bytes).to_hex().to_string(),
            bytes: bytes.into(),
        })
    }

    /// The source that the file is of.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// How it is stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// BLAKE3 of its bytes, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    fn origin(&self, index: usize) -> Origin {
        Origin { file: Arc::clone(&self.path), line: index + 1 }
    }
}

/// What a file's first bytes, and its name, say of it.
fn format(path: &Path, bytes: &[u8]) -> Result<Format, DataError> {
    if bytes.starts_with(parquet_rows::MAGIC) {
        return Ok(Format::Parquet);
    }
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet")) {
        return Err(DataError::NotParquet { path: path.to_owned() });
    }
    let encoding = match bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        // JSON has no character 0, and begins with one of ASCII.
        [0, _, ..] | [_, 0, ..] => Some("UTF-16 or UTF-32"),
        _ => None,
    };
    match encoding {
        None => Ok(Format::JsonLines),
        Some(encoding) => Err(DataError::Encoding { path: path.to_owned(), encoding }),
    }
}

enum FileRows {
    Lines(Vec<Range<usize>>),
    Objects(Vec<Map<String, Value>>),
}

impl FileRows {
    fn len(&self) -> usize {
        match self {
            FileRows::Lines(lines) => lines.len(),
            FileRows::Objects(objects) => objects.len(),
        }
    }
}

/// The rows of a corpus, not yet parsed.
pub(crate) struct Rows<'a> {
    files: Vec<(&'a CorpusFile, FileRows)>,
    /// The first row of each file, then the number of rows.
    starts: Vec<usize>,
}

impl Rows<'_> {
    pub(crate) fn len(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The file of a row, and its place in it.
    pub(crate) fn place(&self, index: usize) -> (usize, usize) {
        let file = self.starts.partition_point(|&start| start <= index) - 1;
        (file, index - self.starts[file])
    }

    pub(crate) fn origin(&self, index: usize) -> Origin {
        let (file, row) = self.place(index);
        self.files[file].0.origin(row)
    }

    /// What a row holds, and its `id`, as JSON, where that is a string or an integer.
    pub(crate) fn parse(&self, index: usize) -> Result<(Content, Option<String>), SampleError> {
        from_object(self.object(index)?)
    }

    /// The object that a row is.
    fn object(&self, index: usize) -> Result<Map<String, Value>, SampleError> {
        let (file, row) = self.place(index);
        match &self.files[file] {
            (file, FileRows::Lines(lines)) => object_of(&file.bytes[lines[row].clone()]),
            (_, FileRows::Objects(objects)) => Ok(objects[row].clone()),
        }
    }

    fn sample(&self, index: usize) -> Result<Sample, DataError> {
        let origin = self.origin(index);
        let (content, _) = self.parse(index).map_err(|error| error.at(&origin))?;
        Ok(Sample { origin, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_samples_than_the_limit_are_refused_where_it_is_passed() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, "{\"text\": \"a\"}\n{\"text\": \"b\"}\n").unwrap();
            Source::new(path)
        };
        let corpus = Corpus::open(&[file("a.jsonl"), file("b.jsonl")]).unwrap();
        assert_eq!(corpus.rows(4).map(|rows| rows.len()).unwrap(), 4);
        let error = corpus.rows(3).err().unwrap().to_string();
        assert!(error.contains("b.jsonl:2: more than 3 samples"), "{error}");
    }
}
