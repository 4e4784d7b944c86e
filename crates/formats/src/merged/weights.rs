//! A base's weights with an adapter added, read tile by tile.

use std::collections::HashMap;
use std::ops::Range;

use super::MergeError;
use crate::peft::{Adapter, Module};
use crate::{Checkpoint, FormatError, TensorInfo};

/// The head's weight, which a tied model does not have of its own.
const HEAD: &str = "lm_head.weight";

/// A base and, where there is one, an adapter of which every module is a matrix of that base.
#[derive(Debug)]
pub struct Weights<'a> {
    checkpoint: &'a Checkpoint,
    adapter: Option<&'a Adapter>,
    /// What the adapter changes, by tensor name.
    modules: HashMap<String, &'a Module>,
}

impl<'a> Weights<'a> {
    /// Pairs a base with an adapter. Nothing is read yet.
    ///
    /// # Errors
    /// [`FormatError::Merge`] where the adapter changes something that the base does not have as a matrix of its own.
    pub fn new(
        checkpoint: &'a Checkpoint,
        adapter: Option<&'a Adapter>,
    ) -> Result<Self, FormatError> {
        let mut modules = HashMap::new();
        for module in adapter.map_or(&[][..], Adapter::modules) {
            check(checkpoint, module).map_err(|source| FormatError::Merge {
                path: checkpoint.path().to_owned(),
                source,
            })?;
            modules.insert(format!("{}.weight", module.name), module);
        }
        Ok(Self { checkpoint, adapter, modules })
    }

    /// The base.
    pub fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// The tensors of the result: those of the base, without the head of a tied model.
    pub fn tensors(&self) -> impl Iterator<Item = &'a TensorInfo> + use<'a> {
        let tied = self.checkpoint.config().tie_word_embeddings;
        self.checkpoint.tensors().iter().filter(move |tensor| !(tied && tensor.name == HEAD))
    }

    /// Prepares one tensor for reading; the adapter's part of it is read here.
    ///
    /// # Errors
    /// [`FormatError::Io`].
    pub fn tensor(&self, info: &'a TensorInfo) -> Result<Tensor<'a>, FormatError> {
        let change = match (self.adapter, self.modules.get(&info.name)) {
            (Some(adapter), Some(module)) => Some(Change::read(adapter, module)?),
            _ => None,
        };
        Ok(Tensor { checkpoint: self.checkpoint, info, change })
    }
}

fn check(checkpoint: &Checkpoint, module: &Module) -> Result<(), MergeError> {
    let name = format!("{}.weight", module.name);
    if name == HEAD && checkpoint.config().tie_word_embeddings {
        return Err(MergeError::TiedHead);
    }
    let expected = [module.out_features, module.in_features];
    match checkpoint.tensor(&name) {
        None => Err(MergeError::NoSuchModule { module: module.name.clone() }),
        Some(tensor) if tensor.shape != expected => Err(MergeError::WrongShape {
            module: module.name.clone(),
            adapter: expected,
            base: tensor.shape.clone(),
        }),
        Some(_) => Ok(()),
    }
}

/// One tensor of the result.
#[derive(Debug)]
pub struct Tensor<'a> {
    checkpoint: &'a Checkpoint,
    info: &'a TensorInfo,
    change: Option<Change>,
}

impl Tensor<'_> {
    /// Reads rows: those of the base with `scale · B·A` added in f32, where the adapter changes the tensor. `out` takes
    /// the rows one after another.
    ///
    /// # Errors
    /// As [`Checkpoint::read_rows_f32`].
    pub fn read_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), FormatError> {
        self.checkpoint.read_rows_f32(&self.info.name, rows.clone(), out)?;
        if let Some(change) = &self.change {
            for (row, out) in rows.zip(out.chunks_mut(self.info.row_elements())) {
                change.add_to(row, out);
            }
        }
        Ok(())
    }
}

/// What an adapter adds to a matrix.
#[derive(Debug)]
struct Change {
    /// `[rank, in]`.
    a: Vec<f32>,
    /// `[out, rank]`.
    b: Vec<f32>,
    rank: usize,
    scale: f32,
}

impl Change {
    fn read(adapter: &Adapter, module: &Module) -> Result<Self, FormatError> {
        let mut a = vec![0f32; module.rank * module.in_features];
        let mut b = vec![0f32; module.out_features * module.rank];
        adapter.read_a(module, &mut a)?;
        adapter.read_b(module, &mut b)?;
        Ok(Self { a, b, rank: module.rank, scale: module.scale as f32 })
    }

    /// `out += scale · b·A` for one row: the product is summed alone, over ranks ascending, then added.
    fn add_to(&self, row: usize, out: &mut [f32]) {
        let width = out.len();
        let mut sum = vec![0f32; width];
        for (k, &b) in self.b[row * self.rank..][..self.rank].iter().enumerate() {
            for (sum, &a) in sum.iter_mut().zip(&self.a[k * width..][..width]) {
                *sum += b * a;
            }
        }
        for (out, sum) in out.iter_mut().zip(sum) {
            *out += self.scale * sum;
        }
    }
}
