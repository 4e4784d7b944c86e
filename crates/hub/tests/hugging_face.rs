//! Repositories of the hub, served by a server on this machine.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{COMMIT, File, Hub};
use hub::{HubError, Kind, Options, Resolved};

const CONFIG: (&str, &[u8]) = ("config.json", b"{\"model_type\": \"llama\"}");
const TOKENIZER: (&str, &[u8]) = ("tokenizer.json", b"{\"version\": \"1.0\"}");
const README: (&str, &[u8]) = ("README.md", b"read me");
const INDEX: (&str, &[u8]) = (
    "model.safetensors.index.json",
    br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}}"#,
);

/// Weights that take more than one read.
fn weights() -> Vec<u8> {
    (0..300_000_u32).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn options<'a>(hub: &Hub, cache: &Path) -> Options<'a> {
    Options {
        cache_dir: cache.to_owned(),
        offline: false,
        hub_endpoint: Some(hub.endpoint.clone()),
        token: None,
        python: "/nonexistent/python3".into(),
        progress: &(),
    }
}

fn resolve(hub: &Hub, cache: &Path) -> Result<Resolved, HubError> {
    hub::resolve("hf:owner/name", &options(hub, cache))
}

fn offline(hub: &Hub, cache: &Path) -> Result<Resolved, HubError> {
    let mut options = options(hub, cache);
    options.offline = true;
    hub::resolve("hf:owner/name", &options)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> =
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn snapshot(cache: &Path) -> PathBuf {
    cache.join("hub/models--owner--name/snapshots").join(COMMIT)
}

#[test]
fn a_configuration_comes_without_the_weights() {
    let content = weights();
    let hub = Hub::start(&[CONFIG, TOKENIZER, ("model.safetensors", &content)]);
    let cache = tempfile::tempdir().unwrap();
    let found = hub::resolve_config("hf:owner/name", &options(&hub, cache.path())).unwrap();
    assert_eq!(found.identity, format!("hf:owner/name@{COMMIT}"));
    assert_eq!(names(&found.path), ["config.json"]);
    let mut disconnected = options(&hub, cache.path());
    disconnected.offline = true;
    assert_eq!(hub::resolve_config("hf:owner/name", &disconnected).unwrap(), found);
    // It is no whole model, and becomes one when that is asked for.
    assert!(matches!(offline(&hub, cache.path()), Err(HubError::NotCached { .. })));
    let whole = resolve(&hub, cache.path()).unwrap();
    assert_eq!(names(&whole.path), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(hub::resolve_config("hf:owner/name", &options(&hub, cache.path())).unwrap(), whole);
}

#[test]
fn a_model_is_downloaded_once_and_only_what_it_needs() {
    let content = weights();
    let hub = Hub::start(&[CONFIG, TOKENIZER, README, ("model.safetensors", &content)]);
    let cache = tempfile::tempdir().unwrap();
    let found = resolve(&hub, cache.path()).unwrap();
    assert_eq!(found.kind, Kind::Folder);
    assert_eq!(found.identity, format!("hf:owner/name@{COMMIT}"));
    assert_eq!(names(&found.path), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(found.path.join("model.safetensors")).unwrap(), content);
    assert_eq!(fs::read(found.path.join("config.json")).unwrap(), CONFIG.1);

    assert_eq!(resolve(&hub, cache.path()).unwrap(), found);
    assert_eq!(offline(&hub, cache.path()).unwrap(), found);
    assert_eq!(hub.ranges("config.json").len(), 1);

    // A whole commit needs no question at all.
    hub.state.lock().unwrap().status = Some(500);
    let by_commit = hub::resolve(&format!("hf:owner/name@{COMMIT}"), &options(&hub, cache.path()));
    assert_eq!(by_commit.unwrap(), found);
    assert!(matches!(resolve(&hub, cache.path()), Err(HubError::Network { .. })));
}

#[test]
fn shards_come_as_the_index_names_them() {
    let content = weights();
    let files = [
        CONFIG,
        INDEX,
        ("model-1.safetensors", &content[..1000]),
        ("model-2.safetensors", &content[1000..]),
        ("model-3.safetensors", b"not named"),
    ];
    let hub = Hub::start(&files);
    let cache = tempfile::tempdir().unwrap();
    let found = resolve(&hub, cache.path()).unwrap();
    assert_eq!(
        names(&found.path),
        [
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json"
        ]
    );

    hub.state.lock().unwrap().files.remove("model-2.safetensors");
    let other = tempfile::tempdir().unwrap();
    let error = resolve(&hub, other.path()).unwrap_err();
    assert!(
        matches!(&error, HubError::RepoContents { reason, .. } if reason.contains("model-2")),
        "{error}"
    );
}

#[test]
fn a_branch_that_moves_gives_the_new_commit() {
    let hub = Hub::start(&[CONFIG, ("model.safetensors", b"old")]);
    let cache = tempfile::tempdir().unwrap();
    let old = resolve(&hub, cache.path()).unwrap();
    {
        let mut state = hub.state.lock().unwrap();
        state.commit = "f".repeat(40);
        let new = File { content: b"new".to_vec(), large: true };
        state.files.insert("model.safetensors".to_owned(), new);
    }
    let new = resolve(&hub, cache.path()).unwrap();
    assert_ne!(new.identity, old.identity);
    assert_eq!(fs::read(new.path.join("model.safetensors")).unwrap(), b"new");
    assert_eq!(fs::read(old.path.join("model.safetensors")).unwrap(), b"old");
    assert_eq!(offline(&hub, cache.path()).unwrap(), new);
}

#[test]
fn an_interrupted_download_leaves_nothing_in_place_and_resumes() {
    let content = weights();
    let hub = Hub::start(&[CONFIG, ("model.safetensors", &content)]);
    let cache = tempfile::tempdir().unwrap();
    hub.state.lock().unwrap().break_after = Some(("model.safetensors".to_owned(), 100_000));
    let error = resolve(&hub, cache.path()).unwrap_err();
    assert!(
        matches!(&error, HubError::Network { what, .. } if what == "model.safetensors")
            || matches!(&error, HubError::Mismatch { .. }),
        "{error}"
    );
    assert!(!snapshot(cache.path()).join("model.safetensors").exists());
    assert!(matches!(offline(&hub, cache.path()), Err(HubError::NotCached { .. })));

    let found = resolve(&hub, cache.path()).unwrap();
    assert_eq!(fs::read(found.path.join("model.safetensors")).unwrap(), content);
    let ranges = hub.ranges("cdn/model.safetensors");
    assert_eq!(ranges, ["bytes=0-", "bytes=100000-"]);
}

#[test]
fn a_partial_file_of_another_upload_is_noticed() {
    let content = weights();
    let hub = Hub::start(&[CONFIG, ("model.safetensors", &content)]);
    let cache = tempfile::tempdir().unwrap();
    hub.state.lock().unwrap().break_after = Some(("model.safetensors".to_owned(), 100_000));
    resolve(&hub, cache.path()).unwrap_err();
    // The part is overwritten: the whole is as long as announced, but is not what was announced.
    let blobs = cache.path().join("hub/models--owner--name/blobs");
    let part = names(&blobs).into_iter().find(|name| name.ends_with(".part")).unwrap();
    fs::write(blobs.join(part), vec![0; 100_000]).unwrap();
    let error = resolve(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::Mismatch { what: "SHA-256", .. }), "{error}");
    assert!(!snapshot(cache.path()).join("model.safetensors").exists());
    assert!(resolve(&hub, cache.path()).is_ok());
}

#[test]
fn content_that_is_not_what_was_announced_is_not_kept() {
    let content = weights();
    let hub = Hub::start(&[CONFIG, ("model.safetensors", &content)]);
    let cache = tempfile::tempdir().unwrap();
    let mut forged = content.clone();
    forged[5] ^= 1;
    hub.state.lock().unwrap().forged = Some(("model.safetensors".to_owned(), forged));
    let error = resolve(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::Mismatch { what: "SHA-256", .. }), "{error}");
    assert!(!snapshot(cache.path()).join("model.safetensors").exists());
    assert!(matches!(offline(&hub, cache.path()), Err(HubError::NotCached { .. })));
    hub.state.lock().unwrap().forged = None;
    assert!(resolve(&hub, cache.path()).is_ok());
}

#[test]
fn what_the_hub_lacks_is_told_apart() {
    let hub = Hub::start(&[CONFIG, ("model.safetensors", b"w")]);
    let cache = tempfile::tempdir().unwrap();
    for reference in ["hf:owner/other", "hf:owner/name@nope"] {
        let error = hub::resolve(reference, &options(&hub, cache.path())).unwrap_err();
        assert!(matches!(error, HubError::NoSuchRepo { .. }), "{reference}: {error}");
    }
    for (files, words) in [
        (vec![("model.safetensors", b"w".as_slice())], "config.json"),
        (vec![CONFIG, ("pytorch_model.bin", b"w")], "pytorch_model.bin"),
        (vec![CONFIG], "no weights"),
    ] {
        let hub = Hub::start(&files);
        let error = resolve(&hub, cache.path()).unwrap_err();
        assert!(
            matches!(&error, HubError::RepoContents { reason, .. } if reason.contains(words)),
            "{error}"
        );
    }
    hub.state.lock().unwrap().listed_only.push("chat_template.jinja".to_owned());
    let error = resolve(&hub, cache.path()).unwrap_err();
    assert!(
        matches!(&error, HubError::Network { what, .. } if what == "chat_template.jinja"),
        "{error}"
    );
}

#[test]
fn a_gated_model_needs_its_token() {
    let hub = Hub::start(&[CONFIG, ("model.safetensors", b"w")]);
    hub.state.lock().unwrap().token = Some("secret".to_owned());
    let cache = tempfile::tempdir().unwrap();
    let error = resolve(&hub, cache.path()).unwrap_err();
    assert!(matches!(error, HubError::Denied { status: 401, .. }), "{error}");
    let mut options = options(&hub, cache.path());
    options.token = Some("secret".to_owned());
    assert!(hub::resolve("hf:owner/name", &options).is_ok());
}

#[test]
fn no_server_is_an_error() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::start(&[]);
    let mut options = options(&hub, cache.path());
    options.hub_endpoint = Some("http://127.0.0.1:1".to_owned());
    let error = hub::resolve("hf:owner/name", &options).unwrap_err();
    assert!(matches!(error, HubError::Network { .. }), "{error}");
}

#[test]
fn many_at_once_download_once() {
    let content = weights();
    let hub = Hub::start(&[CONFIG, ("model.safetensors", &content)]);
    let cache = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..6).map(|_| scope.spawn(|| resolve(&hub, cache.path()))).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    assert_eq!(hub.ranges("cdn/model.safetensors").len(), 1);
}

#[test]
fn a_cache_that_cannot_be_written_is_an_error() {
    let hub = Hub::start(&[CONFIG, ("model.safetensors", b"w")]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "x").unwrap();
    let error = resolve(&hub, &file).unwrap_err();
    assert!(matches!(error, HubError::CacheNotWritable { .. }), "{error}");
}
