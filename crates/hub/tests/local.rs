//! References to models on this machine.

use std::fs;
use std::path::Path;

use hub::{HubError, Kind, Options, Resolved};

fn options(cache: &Path) -> Options<'static> {
    Options {
        cache_dir: cache.to_owned(),
        offline: true,
        hub_endpoint: None,
        token: None,
        python: "/nonexistent/python3".into(),
        progress: &(),
    }
}

fn resolve(path: &Path) -> Result<Resolved, HubError> {
    hub::resolve(path.to_str().unwrap(), &options(path))
}

#[test]
fn a_folder_or_a_gguf_file_is_its_own_place() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), "{}").unwrap();
    let found = resolve(folder.path()).unwrap();
    assert_eq!((found.kind, found.path), (Kind::Folder, folder.path().canonicalize().unwrap()));

    let file = folder.path().join("a:b.GGUF");
    fs::write(&file, "GGUF").unwrap();
    let found = resolve(&file).unwrap();
    assert_eq!(found.kind, Kind::Gguf);
    assert_eq!(found.identity, file.canonicalize().unwrap().display().to_string());
}

#[test]
fn what_is_no_model_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let missing = resolve(&folder.path().join("missing")).unwrap_err();
    assert!(matches!(missing, HubError::NotFound { .. }), "{missing}");
    assert!(missing.to_string().contains("hf:OWNER/NAME"), "{missing}");
    let empty = resolve(folder.path()).unwrap_err();
    assert!(matches!(empty, HubError::NoConfig { .. }), "{empty}");
    let file = folder.path().join("model.bin");
    fs::write(&file, "x").unwrap();
    let other = resolve(&file).unwrap_err();
    assert!(matches!(other, HubError::NotAModel { .. }), "{other}");
    let below = resolve(&file.join("x")).unwrap_err();
    assert!(matches!(below, HubError::Read { .. } | HubError::NotFound { .. }), "{below}");
}

#[test]
fn a_bare_repository_name_is_pointed_to_the_hub() {
    let cache = tempfile::tempdir().unwrap();
    let error = hub::resolve("Qwen/Qwen3-0.6B", &options(cache.path())).unwrap_err();
    assert!(error.to_string().contains("did you mean hf:Qwen/Qwen3-0.6B?"), "{error}");
}
