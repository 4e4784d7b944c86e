//! Gives the encode cache the identity of the code that encodes: a hash over the sources of this crate and of `text`, and
//! over the versions of all dependencies. Whoever changes a mask cannot forget to say so.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Every file under a folder, in order of their paths.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut entries =
        fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        if path.is_dir() { found.extend(files(&path)?) } else { found.push(path) }
    }
    Ok(found)
}

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let (text, lock) = (root.join("../text/src"), root.join("../../Cargo.lock"));
    let mut hasher = blake3::Hasher::new();
    for place in [root.join("src"), text] {
        println!("cargo:rerun-if-changed={}", place.display());
        for file in files(&place)? {
            let name = file.strip_prefix(&place).expect("it is under there");
            let bytes = fs::read(&file)?;
            hasher
                .update(format!("{} {}\n", name.display(), bytes.len()).as_bytes())
                .update(&bytes);
        }
    }
    println!("cargo:rerun-if-changed={}", lock.display());
    hasher.update(&fs::read(lock)?);
    println!("cargo:rustc-env=SAMEBIT_ENCODER={}", hasher.finalize().to_hex());
    Ok(())
}
