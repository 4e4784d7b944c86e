//! A seal breaks at any changed byte, and holds where nothing changed.

mod common;

use common::{Folder, record};
use ed25519_dalek::SigningKey;
use record::*;
use std::fs;

#[test]
fn any_changed_byte_of_any_file_is_named() {
    let folder = Folder::new();
    let sealed = folder.conclude(None);
    assert_eq!(sealed.verify(&folder.path(), None).unwrap(), vec![]);
    let files: Vec<_> =
        folder.files().into_iter().filter(|file| !file.ends_with(SEAL_FILE)).collect();
    assert_eq!(files.len(), 6);
    for file in files {
        let whole = fs::read(&file).unwrap();
        for at in [0, whole.len() / 2, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&file, &bytes).unwrap();
            let name = file.strip_prefix(folder.path()).unwrap().display().to_string();
            let broken = sealed.verify(&folder.path(), None).unwrap();
            assert_eq!(broken, [Broken::Changed(name)], "byte {at}");
        }
        fs::write(&file, whole).unwrap();
    }
    assert_eq!(sealed.verify(&folder.path(), None).unwrap(), vec![]);
}

#[test]
fn files_that_go_or_come_break_it_and_notes_do_not() {
    let folder = Folder::new();
    let sealed = folder.conclude(None);
    annotate(&folder.path(), vec!["the comparison".into()], vec![], String::new()).unwrap();
    fs::write(folder.path().join(LOCK_FILE), "").unwrap();
    assert_eq!(sealed.verify(&folder.path(), None).unwrap(), vec![]);
    fs::write(folder.path().join("adapter/more.txt"), "x").unwrap();
    // Half a file that a killed process left is nobody's; the next session removes it.
    fs::write(folder.path().join(".writing-x"), "half").unwrap();
    fs::remove_file(folder.path().join(STEPS_FILE)).unwrap();
    let broken = sealed.verify(&folder.path(), None).unwrap();
    let added = Broken::Added("adapter/more.txt".into());
    assert_eq!(broken, [Broken::Missing(STEPS_FILE.into()), added]);
}

#[test]
fn a_changed_list_of_files_breaks_the_root() {
    let folder = Folder::new();
    let mut sealed = folder.conclude(None);
    assert_eq!(
        read_seal(&folder.path(), &Status::Stopped { step: 2 }).unwrap(),
        Some(sealed.clone())
    );
    // Whoever changes a file and its hash in the seal still has the root to change.
    fs::write(folder.path().join(STEPS_FILE), "").unwrap();
    let hash = hash_file(&folder.path().join(STEPS_FILE)).unwrap();
    sealed.files.insert(STEPS_FILE.into(), hash);
    assert_eq!(sealed.verify(&folder.path(), None).unwrap(), [Broken::Root]);
}

#[test]
fn a_signature_is_the_keys_and_nobody_elses() {
    let folder = Folder::new();
    let (mine, other) = (SigningKey::from_bytes(&[7; 32]), SigningKey::from_bytes(&[8; 32]));
    let sealed = folder.conclude(Some(&mine));
    let verify = |sealed: &Seal, key: &SigningKey| {
        sealed.verify(&folder.path(), Some(&key.verifying_key())).unwrap()
    };
    assert_eq!(verify(&sealed, &mine), vec![]);
    assert!(matches!(&verify(&sealed, &other)[..], [Broken::Signer(_)]));
    let unsigned = Seal { signature: None, ..sealed.clone() };
    assert_eq!(verify(&unsigned, &mine), [Broken::Signer("nobody".into())]);

    // Sealed again by somebody without the key, under the name of the key.
    let mut forged = folder.conclude(Some(&other));
    if let Some(signed) = &mut forged.signature {
        signed.public_key = hex(mine.verifying_key().as_bytes());
    }
    assert!(matches!(&verify(&forged, &mine)[..], [Broken::Signature(_)]));
    for wrong in ["", "zz", &"0".repeat(127), &"g".repeat(128)] {
        let mut garbled = sealed.clone();
        if let Some(signed) = &mut garbled.signature {
            signed.signature = wrong.to_owned();
        }
        assert!(matches!(&verify(&garbled, &mine)[..], [Broken::Signature(_)]), "{wrong}");
    }
}

#[test]
fn keys_are_read_from_hexadecimal_digits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("key");
    fs::write(&file, format!("{}\n", "07".repeat(32))).unwrap();
    let key = read_signing_key(&file).unwrap();
    assert_eq!(key.to_bytes(), [7; 32]);
    fs::write(&file, hex(key.verifying_key().as_bytes())).unwrap();
    assert_eq!(read_public_key(&file).unwrap(), key.verifying_key());
    for wrong in ["", "07", &"0g".repeat(32), &"07".repeat(33), &"é".repeat(32)] {
        fs::write(&file, wrong).unwrap();
        let error = read_signing_key(&file).unwrap_err();
        assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
    }
    assert!(matches!(read_signing_key(&folder.path().join("none")), Err(RecordError::Io { .. })));
}

/// Between the two files that say that a run goes on, or that it has ended, a kill may come.
#[test]
fn a_seal_that_waits_is_the_runs_until_its_record_says_that_it_runs() {
    let stopped = Status::Stopped { step: 2 };
    let folder = Folder::of(&Record { status: stopped.clone(), ..record() }, &[]);
    let sealed = folder.conclude(None);
    let path = folder.path();
    set_seal_aside(&path).unwrap();
    set_seal_aside(&path).unwrap();
    assert!(!path.join(SEAL_FILE).exists());
    let waiting = read_seal(&path, &stopped).unwrap().unwrap();
    assert_eq!((&waiting, waiting.verify(&path, None).unwrap()), (&sealed, vec![]));
    Record { status: Status::Running, ..record() }.write(&path).unwrap();
    assert_eq!(read_seal(&path, &Status::Running).unwrap(), None);
    unseal(&path).unwrap();
    assert_eq!(read_seal(&path, &stopped).unwrap(), None);
}

#[test]
fn a_seal_that_cannot_be_taken_away_is_said() {
    let folder = Folder::of(&record(), &[]);
    fs::create_dir(folder.path().join(SEAL_FILE)).unwrap();
    let error = unseal(&folder.path()).unwrap_err();
    assert!(matches!(error, RecordError::Io { action: "remove", .. }), "{error}");
}

/// Nothing seals a run that goes on: where a record says so beside a seal, somebody wrote that.
#[test]
fn a_seal_beside_a_record_that_says_it_runs_is_broken() {
    let folder = Folder::of(&record(), &[]);
    folder.conclude(None);
    Record { status: Status::Running, ..record() }.write(&folder.path()).unwrap();
    let seal = read_seal(&folder.path(), &Status::Running).unwrap().unwrap();
    let broken = seal.verify(&folder.path(), None).unwrap();
    assert_eq!(broken, [Broken::Changed(RECORD_FILE.into())]);
}

#[test]
fn a_run_is_sealed_however_it_ends_and_not_while_it_goes_on() {
    let failed = Status::Failed { step: Some(3), samples: vec![], error: "x".into() };
    for status in [Status::Stopped { step: 2 }, failed] {
        let folder = Folder::of(&Record { status, ..record() }, &[]);
        let sealed = folder.conclude(None);
        assert_eq!(sealed.verify(&folder.path(), None).unwrap(), []);
        unseal(&folder.path()).unwrap();
        unseal(&folder.path()).unwrap();
        assert_eq!(read_seal(&folder.path(), &Status::Stopped { step: 2 }).unwrap(), None);
    }
    let running = Record { status: Status::Running, ..record() };
    let folder = Folder::of(&running, &[]);
    let error = conclude(&folder.path(), &running, None).unwrap_err();
    assert!(matches!(error, RecordError::NotEnded { .. }), "{error}");
    assert_eq!(read_seal(&folder.path(), &Status::Stopped { step: 2 }).unwrap(), None);
}

#[test]
fn a_run_that_cannot_be_sealed_is_not_finished_and_one_that_failed_says_so() {
    use std::os::unix::net::UnixListener;
    let failed = Status::Failed { step: None, samples: vec![], error: "x".into() };
    for (status, state) in [(record().status, "running"), (failed, "failed")] {
        let folder = Folder::of(&Record { status: Status::Running, ..record() }, &[]);
        let socket = UnixListener::bind(folder.path().join("socket")).unwrap();
        let error = conclude(&folder.path(), &Record { status, ..record() }, None).unwrap_err();
        assert!(matches!(error, RecordError::Unsealable { .. }), "{error}");
        assert!(error.to_string().contains("socket"), "{error}");
        assert_eq!(Record::read(&folder.path()).unwrap().status.name(), state);
        drop(socket);
    }
}

#[test]
fn what_links_lead_to_is_sealed_and_circles_are_refused() {
    use std::os::unix::fs::symlink;
    let folder = Folder::new();
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("weights"), "1").unwrap();
    symlink(elsewhere.path(), folder.path().join("linked")).unwrap();
    let sealed = folder.conclude(None);
    fs::write(elsewhere.path().join("weights"), "2").unwrap();
    let broken = sealed.verify(&folder.path(), None).unwrap();
    assert_eq!(broken, [Broken::Changed("linked/weights".into())]);
    symlink(folder.path(), elsewhere.path().join("back")).unwrap();
    let error = sealed.verify(&folder.path(), None).unwrap_err();
    assert!(matches!(error, RecordError::Unsealable { .. }), "{error}");
}

#[test]
fn folders_may_lie_so_deep_and_no_deeper() {
    let folder = Folder::new();
    let deep = |depth: usize| folder.path().join(vec!["d"; depth].join("/"));
    fs::create_dir_all(deep(16)).unwrap();
    folder.conclude(None);
    fs::create_dir_all(deep(17)).unwrap();
    let record = Record::read(&folder.path()).unwrap();
    let error = conclude(&folder.path(), &record, None).unwrap_err();
    assert!(error.to_string().contains("too deep"), "{error}");
}

#[test]
fn a_name_that_is_not_utf8_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let folder = Folder::new();
    let sealed = folder.conclude(None);
    fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"a\xff")), "").unwrap();
    let error = sealed.verify(&folder.path(), None).unwrap_err();
    assert!(error.to_string().contains("not UTF-8"), "{error}");
}

#[test]
fn a_file_cannot_hide_in_the_name_of_another() {
    let folder = Folder::new();
    let plain = folder.path().join("a");
    fs::write(&plain, "1").unwrap();
    let sealed = folder.conclude(None);
    // One name that holds what two entries of a list by lines would say.
    let hidden = Seal { files: sealed.files.clone(), ..sealed.clone() };
    let mut files = hidden.files;
    let (a, next) = (files.remove("a").unwrap(), "adapter/adapter_model.safetensors");
    let hash = files.remove(next).unwrap();
    files.insert(format!("a {a}\n{next}"), hash);
    let joined = Seal { files, ..sealed };
    assert!(joined.verify(&folder.path(), None).unwrap().contains(&Broken::Root));
}

#[test]
fn each_breach_is_said() {
    let name = || "file".to_owned();
    for (broken, said) in [
        (Broken::Changed(name()), "file was changed"),
        (Broken::Missing(name()), "file is missing"),
        (Broken::Added(name()), "file was added"),
        (Broken::Root, "list of files"),
        (Broken::Signature("x".into()), "signature is wrong: x"),
        (Broken::Signer("nobody".into()), "signed by nobody"),
        (Broken::NoSeal, "there is no seal"),
    ] {
        assert!(broken.to_string().contains(said), "{broken}");
    }
}
