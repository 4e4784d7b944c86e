//! Hashes of what decides how a model's text is encoded: they join a run's identity, so that a resumed run names what
//! changed, and not only that the encoded data did.

use crate::model::Model;
use anyhow::{Context, Result};
use std::collections::BTreeMap;

/// Where keys of a GGUF file about text begin.
const GGUF_PREFIX: &str = "tokenizer.";
const GGUF_TEMPLATE: &str = "tokenizer.chat_template";

/// BLAKE3 by what it is of: `tokenizer`, and `template` (for a folder with `tokenizer_config.json`, which may hold the
/// template and names special tokens).
pub(crate) fn of(model: &Model) -> Result<BTreeMap<String, String>> {
    let (mut tokenizer, mut template) = (blake3::Hasher::new(), blake3::Hasher::new());
    if let Some(metadata) = model.checkpoint.gguf_metadata() {
        for (key, value) in metadata.iter().filter(|(key, _)| key.starts_with(GGUF_PREFIX)) {
            let of = if key.starts_with(GGUF_TEMPLATE) { &mut template } else { &mut tokenizer };
            of.update(format!("{key} {value:?}\n").as_bytes());
        }
    } else {
        let folder = model.checkpoint.path();
        let add = |hasher: &mut blake3::Hasher, name: &str| -> Result<()> {
            let path = folder.join(name);
            if path.is_file() {
                hasher.update(name.as_bytes());
                hasher.update(&std::fs::read(&path).with_context(|| path.display().to_string())?);
            }
            Ok(())
        };
        add(&mut tokenizer, "tokenizer.json")?;
        add(&mut template, "tokenizer_config.json")?;
        add(&mut template, "chat_template.jinja")?;
    }
    let hex = |hasher: blake3::Hasher| hasher.finalize().to_hex().to_string();
    Ok([("tokenizer".to_owned(), hex(tokenizer)), ("template".to_owned(), hex(template))].into())
}
