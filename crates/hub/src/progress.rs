//! What is told how far a download is.

/// Receives the progress of downloads; the binary draws bars from it.
pub trait Progress {
    /// A piece of work begins: its name, and its size in bytes where that is known.
    fn start(&self, what: &str, bytes: Option<u64>);
    /// That many more bytes are done.
    fn advance(&self, bytes: u64);
    /// The piece of work is done.
    fn finish(&self);
}

/// Silence.
impl Progress for () {
    fn start(&self, _: &str, _: Option<u64>) {}
    fn advance(&self, _: u64) {}
    fn finish(&self) {}
}
