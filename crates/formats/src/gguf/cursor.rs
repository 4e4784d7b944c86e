//! Little-endian reads from a stream whose length is known, each checked against the bytes that are
//! left before anything is allocated.

use std::io::Read;

use super::Error;

pub(super) struct Cursor<R> {
    reader: R,
    at: u64,
    len: u64,
}

impl<R: Read> Cursor<R> {
    pub(super) fn new(reader: R, len: u64) -> Self {
        Self { reader, at: 0, len }
    }

    /// Offset from the file's start.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    fn require(&self, needed: u64, what: &'static str) -> Result<(), Error> {
        let remaining = self.len - self.at;
        if needed > remaining {
            return Err(Error::Truncated { what, at: self.at, needed, remaining });
        }
        Ok(())
    }

    pub(super) fn bytes<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        self.require(N as u64, what)?;
        let mut bytes = [0; N];
        self.reader.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A count that is refused over `limit`.
    pub(super) fn count(&mut self, limit: u64, what: &'static str) -> Result<usize, Error> {
        let found = self.u64(what)?;
        if found > limit {
            return Err(Error::OverLimit { what, found, limit });
        }
        usize::try_from(found).map_err(|_| Error::OverLimit { what, found, limit })
    }

    /// `count` bytes.
    pub(super) fn blob(&mut self, count: usize, what: &'static str) -> Result<Vec<u8>, Error> {
        self.require(count as u64, what)?;
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        self.at += count as u64;
        Ok(bytes)
    }

    /// A string: its length in bytes (u64), then UTF-8.
    pub(super) fn string(&mut self, limit: u64, what: &'static str) -> Result<String, Error> {
        let count = self.count(limit, what)?;
        let at = self.at;
        let bytes = self.blob(count, what)?;
        String::from_utf8(bytes).map_err(|_| Error::NotUtf8 { what, at })
    }

    /// Refuses an array of `count` elements of at least `least_bytes` each that the rest of the
    /// file cannot hold: the bound on what a damaged count makes this reader allocate.
    pub(super) fn require_array(
        &self,
        count: usize,
        least_bytes: u64,
        what: &'static str,
    ) -> Result<(), Error> {
        self.require((count as u64).saturating_mul(least_bytes), what)
    }
}
