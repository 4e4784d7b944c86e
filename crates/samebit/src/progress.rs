//! Progress bars on the terminal's error stream; nothing where it is not a terminal, beyond a line for each task.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::cell::RefCell;
use std::io::IsTerminal;

/// A bar over bytes.
pub(crate) fn bytes(what: &str, total: u64, quiet: bool) -> ProgressBar {
    bar(what, total, quiet, "{msg:24} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}")
}

/// A bar over counted things.
pub(crate) fn count(what: &str, total: u64, quiet: bool) -> ProgressBar {
    bar(what, total, quiet, "{msg:24} {bar:30} {pos}/{len} {per_sec} {eta}")
}

/// A bar over training steps, whose message tells loss and rate.
pub(crate) fn steps(total: u64, quiet: bool) -> ProgressBar {
    bar("training", total, quiet, "{bar:24} {pos}/{len} {eta_precise} {msg}")
}

fn bar(what: &str, total: u64, quiet: bool, template: &str) -> ProgressBar {
    let hidden = quiet || !std::io::stderr().is_terminal();
    let target = if hidden { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
    let bar = ProgressBar::with_draw_target(Some(total), target);
    let style = ProgressStyle::with_template(template).expect("a template of this file is valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what.to_string());
    bar
}

/// Download progress of model references.
#[derive(Default)]
pub(crate) struct Downloads {
    quiet: bool,
    bar: RefCell<Option<ProgressBar>>,
}

impl Downloads {
    pub(crate) fn new(quiet: bool) -> Downloads {
        Downloads { quiet, bar: RefCell::new(None) }
    }
}

impl hub::Progress for Downloads {
    fn start(&self, what: &str, total: Option<u64>) {
        *self.bar.borrow_mut() = Some(bytes(what, total.unwrap_or(0), self.quiet));
    }

    fn advance(&self, more: u64) {
        if let Some(bar) = &*self.bar.borrow() {
            bar.inc(more);
        }
    }

    fn finish(&self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
