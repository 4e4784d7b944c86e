//! A panic of the library that reads tables is an error and prints nothing; any other one is told as ever. Alone in its
//! program: what is told of panics is the whole process's.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use data::DataError;

static TOLD: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_panic_on_a_damaged_table_is_not_told_and_others_are() {
    std::panic::set_hook(Box::new(|_| {
        TOLD.fetch_add(1, Ordering::SeqCst);
    }));
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/parquet/chats.parquet");
    let mut bytes = std::fs::read(golden).unwrap();
    bytes[12] ^= 0x5a;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chats.parquet");
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(data::read(&[path]), Err(DataError::Parquet { .. })));
    assert_eq!(TOLD.load(Ordering::SeqCst), 0);
    std::thread::spawn(|| panic!("told")).join().unwrap_err();
    assert_eq!(TOLD.load(Ordering::SeqCst), 1);
}
