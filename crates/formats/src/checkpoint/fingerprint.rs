//! What a checkpoint's weights are, as one hash.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};

use super::{Checkpoint, TensorInfo};
use crate::FormatError;

/// Numbers hashed at a time, at least.
const TILE_ELEMENTS: usize = 1 << 16;

impl Checkpoint {
    /// `sha256:` and the hash of the model's numbers: over the lines `name shape hash`, sorted by name, of its tensors,
    /// where a tensor's hash is that of its numbers as little-endian f32 in Hugging Face row order. How the numbers are
    /// stored (shards, safetensors or GGUF, bf16 or f32) therefore does not matter; one changed number does. The head of
    /// a tied model is its embedding and is left out.
    ///
    /// Reads everything, on up to `threads` threads; `progress` is told the tensors that are done.
    ///
    /// # Errors
    /// As [`Checkpoint::read_rows_f32`].
    pub fn fingerprint(
        &self,
        threads: usize,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<String, FormatError> {
        let tied = self.config().tie_word_embeddings;
        let mut tensors: Vec<&TensorInfo> =
            self.tensors().iter().filter(|t| !(tied && t.name == "lm_head.weight")).collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let lines = Mutex::new(vec![String::new(); tensors.len()]);
        let work = || -> Result<(), FormatError> {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(tensor) = tensors.get(at) else { return Ok(()) };
                let line = format!("{} {:?} {:x}\n", tensor.name, tensor.shape, self.hash(tensor)?);
                lines.lock().unwrap_or_else(|poisoned| poisoned.into_inner())[at] = line;
                progress(done.fetch_add(1, Ordering::Relaxed) + 1);
            }
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        let lines = lines.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut all = Sha256::new();
        lines.iter().for_each(|line| all.update(line));
        Ok(format!("sha256:{:x}", all.finalize()))
    }

    fn hash(&self, tensor: &TensorInfo) -> Result<sha2::digest::Output<Sha256>, FormatError> {
        let mut hash = Sha256::new();
        let width = tensor.row_elements();
        let tile = (TILE_ELEMENTS / width.max(1)).max(1);
        let mut numbers = vec![0f32; tile.min(tensor.rows()) * width];
        for begin in (0..tensor.rows()).step_by(tile) {
            let end = (begin + tile).min(tensor.rows());
            let numbers = &mut numbers[..(end - begin) * width];
            self.read_rows_f32(&tensor.name, begin..end, numbers)?;
            hash.update(bytemuck::cast_slice::<f32, u8>(numbers));
        }
        Ok(hash.finalize())
    }
}
