//! The bytes that the memories of one rank hold together.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A ceiling that several memories share, and the most that they have held at once.
#[derive(Debug)]
pub struct Account {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: usize,
    peak: usize,
}

/// A block for which the ceiling leaves no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    pub(crate) held: usize,
    pub(crate) limit: usize,
}

impl Account {
    /// An account of at most `limit` bytes.
    pub fn new(limit: usize) -> Arc<Account> {
        Arc::new(Account { limit, state: Mutex::default() })
    }

    /// Bytes held now.
    pub fn held(&self) -> usize {
        self.state().held
    }

    /// The most bytes held at once since the last call; counting starts anew from what is held now.
    pub fn take_peak(&self) -> usize {
        let mut state = self.state();
        let held = state.held;
        std::mem::replace(&mut state.peak, held)
    }

    pub(crate) fn take(&self, bytes: usize) -> Result<(), NoRoom> {
        let mut state = self.state();
        let (held, limit) = (state.held, self.limit);
        if bytes > limit.saturating_sub(held) {
            return Err(NoRoom { held, limit });
        }
        state.held += bytes;
        state.peak = state.peak.max(state.held);
        Ok(())
    }

    pub(crate) fn give(&self, bytes: usize) {
        let mut state = self.state();
        assert!(bytes <= state.held, "{bytes} bytes given back of {} held", state.held);
        state.held -= bytes;
    }

    // No code runs under the lock that could leave the state half changed.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
