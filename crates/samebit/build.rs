//! Tells the program which commit it was built from, and whether the sources were changed since.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn git(folder: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(folder).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

fn main() {
    let root =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("../..");
    let crates = fs::read_dir(root.join("crates")).expect("this crate is one of them").flatten();
    let mut sources: Vec<PathBuf> = crates.map(|entry| entry.path().join("src")).collect();
    sources.extend(["Cargo.toml", "Cargo.lock"].map(|file| root.join(file)));
    // A commit or a checkout is a line there.
    let head =
        ["HEAD", "logs/HEAD"].iter().filter_map(|of| git(&root, &["rev-parse", "--git-path", of]));
    let head: Vec<PathBuf> =
        head.map(|path| root.join(path)).filter(|path| path.exists()).collect();
    for path in sources.iter().chain(&head).filter(|path| path.exists()) {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    let tracked = ["status", "--porcelain", "--", "crates", "Cargo.toml", "Cargo.lock"];
    let built_from = git(&root, &["rev-parse", "HEAD"]).zip(git(&root, &tracked));
    let (commit, changed) =
        built_from.map_or((String::new(), false), |(commit, status)| (commit, !status.is_empty()));
    let release = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    let version = match (commit.is_empty(), changed) {
        (true, _) => release,
        (false, false) => format!("{release} ({commit:.12})"),
        (false, true) => format!("{release} ({commit:.12}, with uncommitted changes)"),
    };
    println!("cargo:rustc-env=SAMEBIT_VERSION={version}");
    println!("cargo:rustc-env=SAMEBIT_COMMIT={commit}");
    println!("cargo:rustc-env=SAMEBIT_CHANGED={changed}");
}
