//! A program joined with its plan and memory for one run.

use crate::memory::Memory;
use crate::staging::Published;
use half::bf16;
use program::buffer::Live;
use program::{Buffer, BufferId, DType, Kind, Plan, Program};
use std::ops::Range;

/// What an executor sees of one run: buffers by id, limited to live rows.
#[derive(Clone, Copy)]
pub struct Frame<'a> {
    /// The program.
    pub program: &'a Program,
    /// Where its buffers are.
    pub plan: &'a Plan,
    /// Live rows.
    pub live: Live,
    memory: &'a Memory,
}

/// Elements of a float buffer.
#[derive(Clone, Copy, Debug)]
pub enum Elems<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
}

impl<'a> Frame<'a> {
    /// Joins a program, its plan and memory at least as large as the plan, but for released blocks, which nothing that
    /// runs may touch.
    pub fn new(program: &'a Program, plan: &'a Plan, memory: &'a Memory, live: Live) -> Self {
        assert_eq!(program.buffers.len(), plan.placements.len(), "a plan of another program");
        for (kind, bytes) in plan.ledger.rows() {
            let fits = memory.is_released(kind) || memory.bytes(kind) >= bytes;
            assert!(fits, "memory of another plan");
        }
        Frame { program, plan, live, memory }
    }

    /// A buffer's description.
    pub fn buffer(&self, id: BufferId) -> &'a Buffer {
        self.program.buffer(id)
    }

    /// Live rows of a buffer.
    pub fn rows(&self, id: BufferId) -> usize {
        self.live.rows(self.buffer(id))
    }

    /// Columns of a buffer.
    pub fn cols(&self, id: BufferId) -> usize {
        self.buffer(id).cols
    }

    fn live_ptr(&self, id: BufferId, dtype: DType) -> (*mut u8, usize) {
        let buffer = self.buffer(id);
        assert_eq!(buffer.dtype, dtype, "{} read as {dtype}", buffer.name);
        let count = self.live.rows(buffer) * buffer.cols;
        let placement = self.plan.placement(id);
        assert!(
            count * dtype.bytes() <= placement.bytes,
            "{} has no place in the plan",
            buffer.name
        );
        let block = self.memory.block(placement.kind);
        (block.at(placement.offset, count * dtype.bytes()), count)
    }

    /// Live elements of an f32 buffer.
    ///
    /// # Safety
    /// While the slice is used, nothing may write the buffer: no slice from [`Frame::f32_mut`] of it, no other run in the
    /// same memory. Distinct buffers alive at the same operation never overlap (the planner's guarantee).
    pub unsafe fn f32(&self, id: BufferId) -> &'a [f32] {
        let (ptr, count) = self.live_ptr(id, DType::F32);
        // SAFETY: inside its block, aligned to 64, initialised (zeroed at allocation); no writer by the caller's word.
        unsafe { std::slice::from_raw_parts(ptr.cast(), count) }
    }

    /// Live elements of an f32 buffer, to write.
    ///
    /// # Safety
    /// While the slice is used, nothing else may read or write the buffer; see [`Frame::f32`].
    pub unsafe fn f32_mut(&self, id: BufferId) -> &'a mut [f32] {
        let (ptr, count) = self.live_ptr(id, DType::F32);
        // SAFETY: as in `f32`, and no other user of the buffer by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast(), count) }
    }

    /// Live elements of a U32 buffer.
    ///
    /// # Safety
    /// As [`Frame::f32`].
    pub unsafe fn u32(&self, id: BufferId) -> &'a [u32] {
        let (ptr, count) = self.live_ptr(id, DType::U32);
        // SAFETY: as in `f32`.
        unsafe { std::slice::from_raw_parts(ptr.cast(), count) }
    }

    /// Live elements of a bf16 buffer.
    ///
    /// # Safety
    /// As [`Frame::f32`].
    pub unsafe fn bf16(&self, id: BufferId) -> &'a [bf16] {
        let (ptr, count) = self.live_ptr(id, DType::Bf16);
        // SAFETY: as in `f32`.
        unsafe { std::slice::from_raw_parts(ptr.cast(), count) }
    }

    /// Live elements of a bf16 buffer, to write.
    ///
    /// # Safety
    /// As [`Frame::f32_mut`].
    pub unsafe fn bf16_mut(&self, id: BufferId) -> &'a mut [bf16] {
        let (ptr, count) = self.live_ptr(id, DType::Bf16);
        // SAFETY: as in `f32_mut`.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast(), count) }
    }

    /// Live elements of a float buffer of either type.
    ///
    /// # Safety
    /// As [`Frame::f32`].
    pub unsafe fn elems(&self, id: BufferId) -> Elems<'a> {
        match self.buffer(id).dtype {
            // SAFETY: the caller's word.
            DType::Bf16 => Elems::Bf16(unsafe { self.bf16(id) }),
            // SAFETY: the caller's word.
            _ => Elems::F32(unsafe { self.f32(id) }),
        }
    }

    /// The scratch block, to write.
    ///
    /// # Safety
    /// One user at a time: the operation that runs.
    pub unsafe fn workspace(&self) -> &'a mut [u8] {
        let bytes = self.plan.ledger.bytes(Kind::Workspace);
        let ptr = self.memory.block(Kind::Workspace).at(0, bytes);
        // SAFETY: inside its block; one user by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(ptr, bytes) }
    }

    /// A copy of a float buffer's live elements, as f32.
    pub fn load_f32(&self, id: BufferId) -> Vec<f32> {
        // SAFETY: the frame is not shared with a running operation while the host loads (executors run one at a time, and
        // the slice ends here).
        match unsafe { self.elems(id) } {
            Elems::F32(x) => x.to_vec(),
            Elems::Bf16(x) => x.iter().map(|v| v.to_f32()).collect(),
        }
    }

    /// A copy of some elements of a float buffer, as f32.
    pub fn load_f32_range(&self, id: BufferId, range: Range<usize>) -> Vec<f32> {
        // SAFETY: as in `load_f32`.
        match unsafe { self.elems(id) } {
            Elems::F32(x) => x[range].to_vec(),
            Elems::Bf16(x) => x[range].iter().map(|v| v.to_f32()).collect(),
        }
    }

    /// Publishes some elements of a float buffer, as f32, to other ranks. Waits until they have read what was published
    /// before.
    pub fn publish(&self, id: BufferId, range: Range<usize>) -> Published {
        // SAFETY: as in `load_f32`.
        match unsafe { self.elems(id) } {
            Elems::F32(x) => {
                let x = &x[range];
                self.memory.staging().publish(x.len(), |values| values.copy_from_slice(x))
            }
            Elems::Bf16(x) => {
                let x = &x[range];
                self.memory.staging().publish(x.len(), |values| {
                    values.iter_mut().zip(x).for_each(|(value, x)| *value = x.to_f32());
                })
            }
        }
    }

    /// Writes some elements of a float buffer, rounding to nearest even where it is bf16.
    pub fn store_f32_range(&self, id: BufferId, range: Range<usize>, values: &[f32]) {
        match self.buffer(id).dtype {
            DType::Bf16 => {
                // SAFETY: as in `load_f32`.
                let out = unsafe { &mut self.bf16_mut(id)[range] };
                assert_eq!(out.len(), values.len(), "{}", self.buffer(id).name);
                for (out, &value) in out.iter_mut().zip(values) {
                    *out = bf16::from_f32(value);
                }
            }
            // SAFETY: as in `load_f32`.
            _ => unsafe { &mut self.f32_mut(id)[range] }.copy_from_slice(values),
        }
    }

    /// A copy of a U32 buffer's live elements.
    pub fn load_u32(&self, id: BufferId) -> Vec<u32> {
        // SAFETY: as in `load_f32`.
        unsafe { self.u32(id) }.to_vec()
    }

    /// Writes a float buffer's live elements, rounding to nearest even where it is bf16.
    pub fn store_f32(&self, id: BufferId, values: &[f32]) {
        match self.buffer(id).dtype {
            DType::Bf16 => {
                // SAFETY: as in `load_f32`.
                let out = unsafe { self.bf16_mut(id) };
                assert_eq!(out.len(), values.len(), "{}", self.buffer(id).name);
                for (out, &value) in out.iter_mut().zip(values) {
                    *out = bf16::from_f32(value);
                }
            }
            // SAFETY: as in `load_f32`.
            _ => unsafe { self.f32_mut(id) }.copy_from_slice(values),
        }
    }

    /// Writes a U32 buffer's live elements.
    pub fn store_u32(&self, id: BufferId, values: &[u32]) {
        let (ptr, count) = self.live_ptr(id, DType::U32);
        assert_eq!(count, values.len(), "{}", self.buffer(id).name);
        // SAFETY: inside its block and aligned; the host writes while no operation runs.
        unsafe { std::slice::from_raw_parts_mut(ptr.cast::<u32>(), count) }.copy_from_slice(values);
    }
}
