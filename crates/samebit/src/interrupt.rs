//! Ctrl-C and SIGTERM: the first asks a loop to stop, the second ends the process at once.

use anyhow::{Context, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set when this process is told to stop. To be called once.
pub(crate) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = stop.clone();
    ctrlc::set_handler(move || {
        // The second time, at once.
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
        tell!("stopping after this step, with a checkpoint; once more to stop at once");
    })
    .context("cannot listen for Ctrl-C")?;
    Ok(stop)
}
