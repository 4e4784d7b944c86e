//! What can be wrong with settings.

use std::path::PathBuf;

/// A parser's message with the names of Rust's types in words.
pub(super) fn plain(error: &toml::de::Error) -> String {
    let words = [
        ("expected usize", "expected a whole number, not negative"),
        ("expected u64", "expected a whole number, not negative"),
        ("expected u32", "expected a whole number, not negative"),
        ("expected i64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("expected f32", "expected a number"),
        ("expected a sequence", "expected a list"),
        ("floating point `", "number `"),
    ];
    words
        .iter()
        .fold(error.to_string().trim_end().to_owned(), |text, (from, to)| text.replace(from, to))
}

/// Settings that cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is larger than settings are.
    #[error("{} has {bytes} bytes; settings have at most {limit}", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The file is not TOML, or a value has another type than its key takes.
    #[error("{}: {reason}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line, in plain words.
        reason: String,
    },
    /// A key that there is not.
    #[error(
        "{}: unknown key `{key}`; {}", path.display(),
        nearest.as_ref().map_or_else(
            || "--schema prints every key that there is".to_owned(),
            |nearest| format!("did you mean `{nearest}`?")
        )
    )]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The nearest one that there is.
        nearest: Option<String>,
    },
    /// A setting that no file could hold: a path that is not UTF-8, a number over 2^63 - 1.
    #[error("`{key}` ({from}) cannot be recorded: {reason}")]
    Unwritable {
        /// The key; `?` where it cannot be told.
        key: String,
        /// Where it was given.
        from: String,
        /// Why.
        reason: String,
    },
    /// A key that the chosen mode does not read.
    #[error("`{key}` ({from}) is ignored in mode `{mode}`; remove it or choose another mode")]
    Ignored {
        /// The key.
        key: &'static str,
        /// Where it was given.
        from: String,
        /// The mode.
        mode: &'static str,
    },
    /// A day for a chat template that asks for none.
    #[error(
        "`{key}` ({from}) is ignored: the model's chat template does not ask for the date; remove it"
    )]
    NoDate {
        /// The key.
        key: &'static str,
        /// Where it was given.
        from: String,
    },
    /// A key of evaluation where nothing is held out.
    #[error(
        "`{key}` ({from}) needs held-out samples: give `eval` or `eval_fraction`, or remove it"
    )]
    NothingHeldOut {
        /// The key.
        key: &'static str,
        /// Where it was given.
        from: String,
    },
    /// Two keys of which one may be given.
    #[error("`{first}` and `{second}` are both given; they decide the same thing, so give one")]
    Conflict {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
    },
    /// A key without which nothing can run.
    #[error("`{key}` is not given; set it in the settings file or with --{}", key.replace('_', "-"))]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// Degrees that no topology has.
    #[error(transparent)]
    Topology(#[from] program::topology::TopologyError),
    /// A value outside its range.
    #[error("`{key}` is {value} ({from}); it must be {needed}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// Where it was given.
        from: String,
        /// What it must be.
        needed: String,
    },
}
