//! Opening a Hugging Face folder.

use std::collections::HashSet;
use std::path::Path;

use super::{Checkpoint, RowOrder, TensorInfo};
use crate::config::{self, read_object};
use crate::safetensors::{Header, Index, IndexError, MAX_INDEX_BYTES};
use crate::source::ByteFile;
use crate::{FormatError, ModelConfig};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

pub(super) fn open(path: &Path) -> Result<Checkpoint, FormatError> {
    let config = ModelConfig::from_json_file(&path.join("config.json"))?;
    let mut checkpoint = Checkpoint::new(path, config);
    add_generation_config(&mut checkpoint)?;
    // The order in which transformers looks for weights.
    if path.join(SINGLE).exists() {
        let header = add_file(&mut checkpoint, SINGLE)?;
        add_tensors(&mut checkpoint, header);
    } else if path.join(INDEX).exists() {
        add_shards(&mut checkpoint)?;
    } else {
        let pickled = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
        let pickled = pickled.iter().any(|name| path.join(name).exists());
        return Err(FormatError::NoWeights { path: path.to_owned(), pickled });
    }
    Ok(checkpoint)
}

fn add_generation_config(checkpoint: &mut Checkpoint) -> Result<(), FormatError> {
    let path = checkpoint.path.join("generation_config.json");
    if !path.exists() {
        return Ok(());
    }
    let raw = read_object(&path)?;
    let more =
        config::eos_token_ids(&raw).map_err(|source| FormatError::Config { path, source })?;
    for id in more {
        if !checkpoint.config.eos_token_ids.contains(&id) {
            checkpoint.config.eos_token_ids.push(id);
        }
    }
    checkpoint.generation_config = Some(raw);
    Ok(())
}

/// Opens a safetensors file of the folder and reads its header.
fn add_file(checkpoint: &mut Checkpoint, name: &str) -> Result<Header, FormatError> {
    let file = ByteFile::open(&checkpoint.path.join(name))?;
    let header = Header::read(file.stream(), file.len())
        .map_err(|source| FormatError::Safetensors { path: file.path().to_owned(), source })?;
    checkpoint.files.push(file);
    Ok(header)
}

fn add_tensors(checkpoint: &mut Checkpoint, header: Header) {
    for tensor in header.tensors {
        let info = TensorInfo {
            name: tensor.name,
            dtype: tensor.dtype,
            shape: tensor.shape,
            bytes: tensor.bytes,
        };
        checkpoint.push(info, tensor.offset, RowOrder::AsShown);
    }
}

fn add_shards(checkpoint: &mut Checkpoint) -> Result<(), FormatError> {
    let path = checkpoint.path.join(INDEX);
    let file = ByteFile::open(&path)?;
    let wrong = |source| FormatError::Index { path: path.clone(), source };
    if file.len() > MAX_INDEX_BYTES {
        return Err(wrong(IndexError::TooLarge { found: file.len(), limit: MAX_INDEX_BYTES }));
    }
    let mut json = vec![0; file.len() as usize];
    file.read_at(0, &mut json)?;
    let index = Index::parse(&json).map_err(wrong)?;
    let mut found = HashSet::new();
    for shard in &index.shards {
        if !checkpoint.path.join(shard).exists() {
            return Err(wrong(IndexError::MissingShard { shard: shard.clone() }));
        }
        let header = add_file(checkpoint, shard)?;
        for tensor in &header.tensors {
            if index.shard_of.get(&tensor.name) != Some(shard) {
                let (name, shard) = (tensor.name.clone(), shard.clone());
                return Err(wrong(IndexError::NotInIndex { name, shard }));
            }
            found.insert(tensor.name.clone());
        }
        add_tensors(checkpoint, header);
    }
    // The least name, so that the message is the same each time.
    let lacking = index.shard_of.iter().filter(|(name, _)| !found.contains(*name)).min();
    match lacking {
        Some((name, shard)) => {
            Err(wrong(IndexError::NotInShard { name: name.clone(), shard: shard.clone() }))
        }
        None => Ok(()),
    }
}
