//! What this program was built from.

use record::{Binary, Built, RecordError};
use train::Surroundings;

/// The release, and the commit that its sources are of.
pub(crate) const VERSION: &str = env!("SAMEBIT_VERSION");

/// The commit that this program's sources are of; `None` where they came without a repository.
pub(crate) fn built() -> Option<Built> {
    let commit = env!("SAMEBIT_COMMIT");
    let changed = env!("SAMEBIT_CHANGED") == "true";
    (!commit.is_empty()).then(|| Built { commit: commit.to_owned(), changed })
}

/// What a run's record holds beside the run, as this process stands.
///
/// # Errors
/// The working directory or the program's file cannot be read.
pub(crate) fn surroundings() -> Result<Surroundings, RecordError> {
    let current = Surroundings::current()?;
    let binary = Binary { built: built(), ..current.binary };
    Ok(Surroundings { binary, ..current })
}
