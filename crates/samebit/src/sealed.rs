//! How the seal of a run comes out: for whatever shows a run, compares it or takes its product.

use anyhow::{Result, bail};
use record::{Broken, RECORD_FILE, Record, VerifyingKey};
use serde::Serialize;
use std::path::Path;

/// How a seal came out.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "seal")]
pub(crate) enum Sealed {
    /// There is none: the run goes on, was killed, or failed without room for one.
    None,
    /// Every byte is as it was sealed.
    Intact { root: String, files: usize, signed_by: Option<String> },
    /// It is not.
    Broken { broken: Vec<Broken> },
}

impl Sealed {
    /// Verifies the seal of a run, which a `signer` must have signed where one is given.
    pub(crate) fn of(run: &Path, record: &Record, signer: Option<&VerifyingKey>) -> Result<Sealed> {
        let (seal, mut broken) = record::look_at_seal(run, &record.status, signer)?;
        if seal.is_none() {
            broken.extend(signer.map(|_| Broken::Signer("nobody: there is no seal".into())));
        }
        let Some(seal) = seal.filter(|_| broken.is_empty()) else {
            return Ok(if broken.is_empty() { Sealed::None } else { Sealed::Broken { broken } });
        };
        Ok(Sealed::Intact {
            files: seal.files.len(),
            root: seal.root,
            signed_by: seal.signature.map(|signed| signed.public_key),
        })
    }

    /// Refuses a broken one.
    pub(crate) fn intact(&self, run: &Path) -> Result<()> {
        let Sealed::Broken { broken } = self else { return Ok(()) };
        let said: Vec<String> = broken.iter().map(ToString::to_string).collect();
        bail!("the seal of {} is BROKEN: {}", run.display(), said.join("; "))
    }
}

/// Refuses an adapter or a model that lies in the folder of a run whose seal is broken.
pub(crate) fn check_product(product: &Path) -> Result<()> {
    let place = std::path::absolute(product)?;
    let Some(run) = place.parent().filter(|run| run.join(RECORD_FILE).is_file()) else {
        return Ok(());
    };
    Sealed::of(run, &Record::read(run)?, None)?.intact(run)
}
