//! An entry's bytes.
//!
//! ```text
//! magic    8 bytes
//! length   u32         of the header
//! header   JSON        key, counts, what it cost
//! lengths  u32 × samples
//! sources  u32 × samples
//! lines    u32 × samples
//! ids      u32 × tokens
//! flags    u8 × tokens  0 or 1
//! hash     32 bytes    BLAKE3 of everything before
//! ```
//!
//! Numbers are little-endian.

use std::io::{self, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{CacheError, CacheKey};
use crate::corpus::Corpus;
use crate::dataset::{Dataset, SourceInfo};
use crate::encode::report;
use crate::report::Counts;

const MAGIC: &[u8; 8] = b"sameENC\x01";
const HASH_BYTES: usize = blake3::OUT_LEN;
/// The most bytes of a header: some hundred for each source.
pub(super) const HEADER_LIMIT: usize = 4 << 20;

/// What an entry says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its key.
    pub key: String,
    /// Samples.
    pub samples: usize,
    /// Tokens of all samples.
    pub tokens: usize,
    /// Seconds that encoding took: what a hit saves.
    pub encode_s: f64,
    /// What encoding found, by source.
    pub counts: Vec<Counts>,
}

impl Entry {
    pub(super) fn of(key: &CacheKey, dataset: &Dataset, encode_s: f64) -> Entry {
        Entry {
            key: key.to_string(),
            samples: dataset.len(),
            tokens: dataset.ids.len(),
            encode_s,
            counts: dataset.report.sources.iter().map(|source| source.counts).collect(),
        }
    }

    fn header(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an entry is an object with string keys")
    }

    /// Bytes of the file that holds it.
    pub(super) fn bytes(&self) -> u64 {
        self.file_bytes(self.header().len()).expect("a data set in memory has a size")
    }

    /// Bytes of a file with a header of so many; none where there can be no such number of samples or tokens.
    fn file_bytes(&self, header: usize) -> Option<u64> {
        let around = MAGIC.len() + size_of::<u32>() + HASH_BYTES;
        Some(self.body_bytes()?.checked_add(header)?.checked_add(around)? as u64)
    }

    /// Bytes between header and hash; none where there can be no such number of samples or tokens.
    fn body_bytes(&self) -> Option<usize> {
        let samples = self.samples.checked_mul(3 * size_of::<u32>())?;
        samples.checked_add(self.tokens.checked_mul(size_of::<u32>() + 1)?)
    }
}

/// Writes an entry.
pub(super) fn write(out: &mut dyn Write, entry: &Entry, dataset: &Dataset) -> io::Result<()> {
    let mut out = Hashed { out, hasher: blake3::Hasher::new() };
    let header = entry.header();
    out.put(MAGIC)?;
    out.put(&(header.len() as u32).to_le_bytes())?;
    out.put(&header)?;
    out.numbers(dataset.lengths().into_iter().map(|length| length as u32))?;
    out.numbers(dataset.rows.iter().map(|row| row.0))?;
    out.numbers(dataset.rows.iter().map(|row| row.1))?;
    out.numbers(dataset.ids.iter().copied())?;
    for flags in dataset.supervised.chunks(CHUNK) {
        out.put(&flags.iter().map(|&flag| u8::from(flag)).collect::<Vec<u8>>())?;
    }
    let hash = out.hasher.finalize();
    out.out.write_all(hash.as_bytes())
}

/// Numbers that are put at once.
const CHUNK: usize = 1 << 16;

struct Hashed<'a> {
    out: &'a mut dyn Write,
    hasher: blake3::Hasher,
}

impl Hashed<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.out.write_all(bytes)
    }

    fn numbers(&mut self, mut numbers: impl Iterator<Item = u32>) -> io::Result<()> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            bytes.extend(numbers.by_ref().take(CHUNK).flat_map(u32::to_le_bytes));
            if bytes.is_empty() {
                return Ok(());
            }
            self.put(&bytes)?;
        }
    }
}

/// Takes an entry's bytes back to the data set, whose files are now those of `corpus`.
pub(super) fn parse(
    path: &Path,
    bytes: &[u8],
    key: &CacheKey,
    corpus: &Corpus,
) -> Result<Dataset, CacheError> {
    let not_an_entry = || CacheError::NotAnEntry { path: path.to_owned() };
    let damaged = || CacheError::Damaged { path: path.to_owned() };
    if !bytes.starts_with(MAGIC) {
        return Err(not_an_entry());
    }
    let (content, hash) = bytes.split_last_chunk::<HASH_BYTES>().ok_or_else(damaged)?;
    if blake3::hash(content) != *hash {
        return Err(damaged());
    }
    let (entry, body) = header(content).ok_or_else(not_an_entry)?;
    if entry.key != key.as_str() {
        return Err(CacheError::OtherKey { path: path.to_owned(), found: entry.key });
    }
    let malformed =
        |reason: &str| CacheError::Malformed { path: path.to_owned(), reason: reason.to_owned() };
    let sources = SourceInfo::of(corpus);
    if Some(body.len()) != entry.body_bytes() || entry.counts.len() != sources.len() {
        return Err(malformed("its parts are not as long as its header says"));
    }
    let mut rest = body;
    let mut numbers = |count: usize| {
        let (part, after) = rest.split_at(count * size_of::<u32>());
        rest = after;
        let words = part.as_chunks::<4>().0.iter();
        words.map(|word| u32::from_le_bytes(*word)).collect::<Vec<u32>>()
    };
    let (lengths, of, lines) =
        (numbers(entry.samples), numbers(entry.samples), numbers(entry.samples));
    let ids = numbers(entry.tokens);
    let mut end = 0;
    let ends: Vec<usize> = lengths
        .iter()
        .map(|&length| {
            end += length as usize;
            end
        })
        .collect();
    if end != entry.tokens || of.iter().any(|&source| source as usize >= sources.len()) {
        return Err(malformed("its samples are not those that its header counts"));
    }
    let report = report(&sources, &entry.counts);
    let supervised = rest.iter().map(|&flag| flag != 0).collect();
    let rows = of.into_iter().zip(lines).collect();
    Ok(Dataset { ids, supervised, ends, rows, sources, report })
}

/// The header, and what follows it.
fn header(content: &[u8]) -> Option<(Entry, &[u8])> {
    let (length, rest) = content.get(MAGIC.len()..)?.split_first_chunk::<4>()?;
    let (header, body) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
    Some((serde_json::from_slice(header).ok()?, body))
}

/// What an entry says of itself, and the bytes that its file then has.
pub(super) struct Claim {
    pub(super) entry: Entry,
    pub(super) bytes: Option<u64>,
}

/// Reads what an entry says of itself, without its samples; none where it is not one.
pub(super) fn read_header(file: &mut dyn Read) -> io::Result<Option<Claim>> {
    let mut head = Vec::new();
    file.take((MAGIC.len() + 4) as u64).read_to_end(&mut head)?;
    let Some(length) = head.strip_prefix(MAGIC).and_then(|rest| rest.first_chunk::<4>()) else {
        return Ok(None);
    };
    let length = u32::from_le_bytes(*length) as usize;
    if length > HEADER_LIMIT {
        return Ok(None);
    }
    let mut header = Vec::new();
    file.take(length as u64).read_to_end(&mut header)?;
    let entry: Option<Entry> = serde_json::from_slice(&header).ok();
    Ok(entry.map(|entry| Claim { bytes: entry.file_bytes(length), entry }))
}
