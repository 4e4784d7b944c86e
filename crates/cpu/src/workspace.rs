//! The workspace of one operation, cut in typed pieces.

use bytemuck::Pod;

/// Bytes to which every piece is aligned: a cache line.
const LINE: usize = 64;

/// Bytes of a piece of `count` elements, as a plan must count it.
pub(crate) fn bytes_of<T>(count: usize) -> usize {
    (count * size_of::<T>()).next_multiple_of(LINE)
}

/// What is left of the workspace.
pub(crate) struct Workspace<'a> {
    rest: &'a mut [u8],
}

/// The workspace is smaller than the operation needs: it was planned for another
/// executor or another program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl<'a> Workspace<'a> {
    /// The whole of it, which starts on a cache line.
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The next `count` elements; they hold what the last user left.
    pub(crate) fn take<T: Pod>(&mut self, count: usize) -> Result<&'a mut [T], Exhausted> {
        let rest = std::mem::take(&mut self.rest);
        let (piece, rest) = rest.split_at_mut_checked(bytes_of::<T>(count)).ok_or(Exhausted)?;
        self.rest = rest;
        bytemuck::try_cast_slice_mut(&mut piece[..count * size_of::<T>()]).map_err(|_| Exhausted)
    }

    /// The next `most` places, filled in order from `items`; those filled.
    pub(crate) fn collect<T>(
        &mut self,
        most: usize,
        items: impl Iterator<Item = T>,
    ) -> Result<&'a mut [T], Exhausted> {
        const { assert!(!std::mem::needs_drop::<T>() && align_of::<T>() <= LINE) };
        let bytes: &mut [u8] = self.take(bytes_of::<T>(most))?;
        let start = bytes.as_mut_ptr().cast::<T>();
        if !start.is_aligned() {
            return Err(Exhausted);
        }
        let mut count = 0;
        for item in items {
            if count == most {
                return Err(Exhausted);
            }
            // SAFETY: the piece holds `most` places, aligned.
            unsafe { start.add(count).write(item) };
            count += 1;
        }
        // SAFETY: the first `count` places were written and are this slice's alone.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, count) })
    }

    /// What is left, lent for a while.
    pub(crate) fn lend(&mut self) -> Workspace<'_> {
        Workspace { rest: self.rest }
    }

    /// All that is left.
    pub(crate) fn rest(self) -> &'a mut [u8] {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_lie_apart_and_a_piece_too_many_is_refused() {
        let mut words = [0_u64; 24];
        let mut workspace = Workspace::new(bytemuck::cast_slice_mut(&mut words));
        let first: &mut [f32] = workspace.take(3).unwrap();
        let second: &mut [u32] = workspace.take(16).unwrap();
        first.fill(1.0);
        second.fill(7);
        assert_eq!((first[2], second[0]), (1.0, 7));
        assert_eq!(workspace.take::<f32>(17), Err(Exhausted));
    }

    #[test]
    fn collected_items_are_those_given_and_no_more_than_planned() {
        let mut words = [0_u64; 24];
        let mut workspace = Workspace::new(bytemuck::cast_slice_mut(&mut words));
        assert_eq!(workspace.collect(4, [1..2, 3..9].into_iter()), Ok([1..2, 3..9].as_mut_slice()));
        assert_eq!(workspace.collect(1, [1_u8, 2].into_iter()), Err(Exhausted));
    }

    #[test]
    fn planned_bytes_are_those_taken() {
        assert_eq!((bytes_of::<f32>(0), bytes_of::<f32>(1), bytes_of::<f32>(17)), (0, 64, 128));
    }
}
