//! Every way a GGUF header can be wrong gives its own error.

use crate::support::{self, Gguf, string};
use formats::gguf::{Error, Header, MAX_ARRAY_ELEMENTS, MAX_TENSORS};

fn read(bytes: &[u8]) -> Result<Header, Error> {
    Header::read(bytes, bytes.len() as u64)
}

/// Asserts that bytes give an error of this form.
macro_rules! refused {
    ($bytes:expr, $pattern:pat $(if $guard:expr)?) => {
        match read(&$bytes) {
            Err($pattern) $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}

#[test]
fn a_right_file_is_read() {
    let header = read(&support::tiny_gguf("llama").bytes()).unwrap();
    assert_eq!(header.tensors.len(), 11);
    assert_eq!(header.tensors[0].shape, [10, 8]);
    assert_eq!(header.tensors[0].bytes, 320);
}

#[test]
fn the_preamble_is_checked() {
    let right = support::tiny_gguf("llama").bytes();
    let with = |at: usize, bytes: &[u8]| {
        let mut wrong = right.clone();
        wrong[at..at + bytes.len()].copy_from_slice(bytes);
        wrong
    };
    refused!(with(0, b"GGML"), Error::BadMagic { found } if &found == b"GGML");
    refused!(with(4, &2u32.to_le_bytes()), Error::UnsupportedVersion { found: 2 });
    refused!(with(4, &3u32.to_be_bytes()), Error::BigEndian);
    refused!(with(8, &(MAX_TENSORS + 1).to_le_bytes()), Error::OverLimit { .. });
    refused!(with(16, &u64::MAX.to_le_bytes()), Error::OverLimit { .. });
    refused!([], Error::Truncated { at: 0, needed: 4, remaining: 0, .. });
}

#[test]
fn a_header_cut_anywhere_is_truncated() {
    let file = support::tiny_gguf("llama");
    let bytes = file.bytes();
    // The data of the last tensor begins after the header: every shorter file lacks something.
    for length in 0..bytes.len() - 32 {
        match read(&bytes[..length]) {
            Err(Error::Truncated { .. } | Error::OutOfFile { .. }) => {}
            other => panic!("cut at {length}: {other:?}"),
        }
    }
}

#[test]
fn metadata_is_checked() {
    let key = |name: &str| Gguf::new().u32("fine", 1).u32(name, 2).bytes();
    refused!(key("fine"), Error::DuplicateKey { key } if key == "fine");

    let entry = |kind: u32, value: &[u8]| Gguf::new().entry("k", kind, value).bytes();
    refused!(entry(13, &[0; 8]), Error::UnknownValueType { found: 13, .. });
    refused!(entry(7, &[2]), Error::BadBool { found: 2, .. });
    let mut not_utf8 = string("ab");
    not_utf8[8] = 0xff;
    refused!(entry(8, &not_utf8), Error::NotUtf8 { .. });
    refused!(entry(8, &(1u64 << 40).to_le_bytes()), Error::OverLimit { .. });
    refused!(entry(8, &(1u64 << 20).to_le_bytes()), Error::Truncated { .. });

    let array = |kind: u32, count: u64| {
        let mut value = kind.to_le_bytes().to_vec();
        value.extend(count.to_le_bytes());
        value.extend([9; 64]);
        entry(9, &value)
    };
    refused!(array(9, 1), Error::NestedArray { .. });
    refused!(array(77, 1), Error::UnknownValueType { found: 77, .. });
    refused!(array(7, 1), Error::BadBool { found: 9, .. });
    refused!(array(5, MAX_ARRAY_ELEMENTS + 1), Error::OverLimit { .. });
    // Counts within the limit that the file cannot hold must be refused before memory is taken.
    for kind in [0, 4, 8, 10, 12] {
        refused!(array(kind, MAX_ARRAY_ELEMENTS), Error::Truncated { .. });
    }
}

#[test]
fn special_keys_are_checked() {
    for alignment in [0, 1, 24, 1 << 20] {
        let file = Gguf::new().u32("general.alignment", alignment);
        refused!(file.bytes(), Error::BadAlignment { .. });
    }
    let file = Gguf::new().string("general.alignment", "32");
    refused!(file.bytes(), Error::WrongValueType { .. });
}

#[test]
fn tensors_are_checked() {
    let one = |shape: &[u64], kind: u32, bytes: usize| {
        Gguf::new().tensor("t", shape, kind, &vec![0; bytes]).bytes()
    };
    assert!(read(&one(&[32, 2], 8, 68)).is_ok());
    refused!(one(&[], 0, 4), Error::BadRank { found: 0, .. });
    refused!(one(&[1; 5], 0, 4), Error::BadRank { found: 5, .. });
    refused!(one(&[256], 16, 66), Error::UnsupportedTensorType { ggml_type: 16, .. });
    refused!(one(&[0, 4], 0, 16), Error::BadShape { .. });
    refused!(one(&[1 << 40, 1 << 40], 0, 16), Error::BadShape { .. });
    refused!(one(&[1 << 62], 0, 16), Error::BadShape { .. });
    refused!(one(&[33], 8, 64), Error::PartialBlock { row: 33, block: 32, .. });
    refused!(one(&[32, 3], 8, 68), Error::OutOfFile { .. });

    let twice = Gguf::new().tensor_f32("t", &[8], &[0.0; 8]).tensor_f32("t", &[8], &[0.0; 8]);
    refused!(twice.bytes(), Error::DuplicateTensor { name } if name == "t");
    let misaligned = Gguf::new().tensor_at("t", &[1], 0, 4, &[0; 64]);
    refused!(misaligned.bytes(), Error::Misaligned { offset: 4, alignment: 32, .. });
    let far = Gguf::new().tensor_at("t", &[1], 0, u64::MAX - 31, &[0; 64]);
    refused!(far.bytes(), Error::OutOfFile { .. });
    let overlapping =
        Gguf::new().tensor_at("a", &[16], 0, 0, &[0; 64]).tensor_at("b", &[8], 0, 32, &[0; 32]);
    refused!(overlapping.bytes(), Error::Overlap { first, second } if first == "a" && second == "b");
}

#[test]
fn unsupported_types_are_named() {
    let error = read(&Gguf::new().tensor("t", &[256], 16, &[0; 66]).bytes()).unwrap_err();
    assert!(error.to_string().contains("IQ2_XXS"), "{error}");
}
