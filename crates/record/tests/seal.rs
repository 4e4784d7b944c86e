//! A seal breaks at any changed byte, and holds where nothing changed.

mod common;

use common::{Folder, record};
use ed25519_dalek::SigningKey;
use record::*;
use std::fs;

#[test]
fn any_changed_byte_of_any_file_is_named() {
    let folder = Folder::new();
    let sealed = seal(&folder.path(), None).unwrap();
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
    let sealed = seal(&folder.path(), None).unwrap();
    annotate(&folder.path(), vec!["the comparison".into()], vec![], String::new()).unwrap();
    fs::write(folder.path().join(LOCK_FILE), "").unwrap();
    fs::write(folder.path().join(".writing-x"), "half").unwrap();
    assert_eq!(sealed.verify(&folder.path(), None).unwrap(), vec![]);
    fs::write(folder.path().join("adapter/more.txt"), "x").unwrap();
    fs::remove_file(folder.path().join(STEPS_FILE)).unwrap();
    let broken = sealed.verify(&folder.path(), None).unwrap();
    let expected = [Broken::Missing(STEPS_FILE.into()), Broken::Added("adapter/more.txt".into())];
    assert_eq!(broken, expected);
}

#[test]
fn a_changed_list_of_files_breaks_the_root() {
    let folder = Folder::new();
    let mut sealed = seal(&folder.path(), None).unwrap();
    assert_eq!(read_seal(&folder.path()).unwrap(), Some(sealed.clone()));
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
    let sealed = seal(&folder.path(), Some(&mine)).unwrap();
    let verify = |sealed: &Seal, key: &SigningKey| {
        sealed.verify(&folder.path(), Some(&key.verifying_key())).unwrap()
    };
    assert_eq!(verify(&sealed, &mine), vec![]);
    assert!(matches!(&verify(&sealed, &other)[..], [Broken::Signer(_)]));
    let unsigned = Seal { signature: None, ..sealed.clone() };
    assert_eq!(verify(&unsigned, &mine), [Broken::Signer("nobody".into())]);

    // Sealed again by somebody without the key, under the name of the key.
    let mut forged = seal(&folder.path(), Some(&other)).unwrap();
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

#[test]
fn only_a_finished_run_is_sealed() {
    let failed = Status::Failed { step: Some(3), samples: vec![], error: "x".into() };
    for status in [Status::Running, Status::Stopped { step: 2 }, failed] {
        let folder = Folder::of(&Record { status, ..record() }, &[]);
        let error = seal(&folder.path(), None).unwrap_err();
        assert!(matches!(error, RecordError::NotFinished { .. }), "{error}");
        assert_eq!(read_seal(&folder.path()).unwrap(), None);
    }
}
