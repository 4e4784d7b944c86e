//! What an adapter was trained on, in a file beside the ones that peft reads.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Error, ORIGIN_FILE};
use crate::FormatError;
use crate::config::read_object;

/// What an adapter was trained on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The base's fingerprint ([`crate::Checkpoint::fingerprint`]).
    pub base_weights: String,
    /// The base's model reference as it was given.
    pub base_model: String,
}

impl Origin {
    /// Reads the file of an adapter's folder; `None` where there is none, as in adapters of other programs.
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, FormatError> {
        let path = folder.join(ORIGIN_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let object = read_object(&path)?;
        serde_json::from_value(Value::Object(object)).map(Some).map_err(|error| {
            FormatError::Adapter { path, source: Error::BadOrigin { reason: error.to_string() } }
        })
    }
}
