//! What a rank publishes in an exchange: a block that its owner fills and other ranks read.

use crate::block::Block;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The block of one rank. It is filled only while nothing that was published from it is read any more.
#[derive(Clone)]
pub(crate) struct Staging(Arc<Shared>);

struct Shared {
    block: Block,
    /// [`Published`] values that are alive.
    readers: Mutex<usize>,
    unread: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, usize> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Staging {
    pub(crate) fn new(block: Block) -> Staging {
        Staging(Arc::new(Shared { block, readers: Mutex::new(0), unread: Condvar::new() }))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.block.bytes()
    }

    /// Fills the first `count` floats, once nobody reads what was published before, and publishes them.
    ///
    /// # Panics
    /// On more floats than were planned.
    pub(crate) fn publish(&self, count: usize, fill: impl FnOnce(&mut [f32])) -> Published {
        let start = self.0.block.at(0, count * size_of::<f32>()).cast::<f32>();
        let mut readers = self.0.lock();
        while *readers > 0 {
            readers = self.0.unread.wait(readers).unwrap_or_else(PoisonError::into_inner);
        }
        // SAFETY: inside the block, aligned to 64, initialised (zeroed at allocation). Slices of the block exist only here
        // and in `Published` values: there are none of the latter, and the lock keeps out others of the former.
        fill(unsafe { std::slice::from_raw_parts_mut(start, count) });
        *readers += 1;
        drop(readers);
        Published { shared: Arc::clone(&self.0), count }
    }
}

/// Floats that a rank has published: they stay as they are until the last copy of this handle is dropped.
pub struct Published {
    shared: Arc<Shared>,
    count: usize,
}

impl Clone for Published {
    fn clone(&self) -> Published {
        *self.shared.lock() += 1;
        Published { shared: Arc::clone(&self.shared), count: self.count }
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        let mut readers = self.shared.lock();
        *readers -= 1;
        if *readers == 0 {
            self.shared.unread.notify_all();
        }
    }
}

impl Deref for Published {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let start = self.shared.block.at(0, self.count * size_of::<f32>()).cast::<f32>();
        // SAFETY: as in `publish`; nothing writes the block while this value is alive.
        unsafe { std::slice::from_raw_parts(start, self.count) }
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} published floats", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[test]
    fn what_is_read_does_not_change_until_it_is_dropped() {
        let staging = Staging::new(Block::new(64).unwrap());
        let first = staging.publish(2, |values| values.copy_from_slice(&[1.0, 2.0]));
        let again = first.clone();
        let filled = AtomicBool::new(false);
        thread::scope(|scope| {
            let second = scope.spawn(|| {
                let second = staging.publish(3, |values| values.fill(7.0));
                filled.store(true, Ordering::SeqCst);
                second.to_vec()
            });
            drop(first);
            assert_eq!(*again, [1.0, 2.0]);
            assert!(!filled.load(Ordering::SeqCst));
            drop(again);
            assert_eq!(second.join().unwrap(), [7.0; 3]);
        });
    }

    #[test]
    #[should_panic(expected = "outside its block")]
    fn more_than_was_planned_is_not_published() {
        Staging::new(Block::new(64).unwrap()).publish(17, |_| ());
    }
}
