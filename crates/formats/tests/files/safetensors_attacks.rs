//! Every way a safetensors header can be wrong gives its own error; right files are read as the
//! reference implementation reads them.

use crate::support::safetensors;
use formats::Dtype;
use formats::safetensors::{Error, Header, MAX_HEADER_BYTES};

fn read(bytes: &[u8]) -> Result<Header, Error> {
    Header::read(bytes, bytes.len() as u64)
}

/// Asserts that a header over some bytes of data gives an error of this form.
macro_rules! refused {
    ($header:expr, $data_bytes:expr, $pattern:pat $(if $guard:expr)?) => {
        match read(&safetensors($header, $data_bytes)) {
            Err($pattern) $(if $guard)? => {}
            other => panic!("expected {}, got {other:?}", stringify!($pattern)),
        }
    };
}

const RIGHT: &str = r#"{"__metadata__":{"format":"pt"},
    "a":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},
    "b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},
    "c":{"dtype":"U8","shape":[0,3],"data_offsets":[4,4]},
    "d":{"dtype":"I64","shape":[],"data_offsets":[12,20]}}"#;

#[test]
fn a_right_file_is_read_as_the_reference_reads_it() {
    let bytes = safetensors(RIGHT, 20);
    let header = read(&bytes).unwrap();
    assert_eq!(header.metadata, [("format".to_owned(), "pt".to_owned())]);
    let names: Vec<&str> = header.tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["b", "c", "a", "d"]);
    let reference = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(reference.len(), header.tensors.len());
    for tensor in &header.tensors {
        let view = reference.tensor(&tensor.name).unwrap();
        assert_eq!(view.shape(), tensor.shape);
        assert_eq!(format!("{:?}", view.dtype()), tensor.dtype.to_string());
        let begin = tensor.offset as usize;
        assert_eq!(view.data(), &bytes[begin..begin + tensor.bytes as usize]);
    }
}

#[test]
fn the_length_is_checked() {
    assert!(matches!(read(&[0; 7]), Err(Error::TooShort { found: 7 })));
    let mut bytes = safetensors(RIGHT, 20);
    let length = |bytes: &mut [u8], n: u64| bytes[..8].copy_from_slice(&n.to_le_bytes());
    length(&mut bytes, MAX_HEADER_BYTES + 1);
    assert!(matches!(read(&bytes), Err(Error::HeaderTooLarge { .. })));
    let beyond = bytes.len() as u64 - 7;
    length(&mut bytes, beyond);
    assert!(matches!(read(&bytes), Err(Error::TruncatedHeader { .. })));
    length(&mut bytes, MAX_HEADER_BYTES);
    assert!(matches!(read(&bytes), Err(Error::TruncatedHeader { .. })));
}

#[test]
fn the_json_is_checked() {
    refused!("[]", 0, Error::HeaderStart { found: b'[' });
    refused!("", 0, Error::HeaderNotJson(_));
    refused!("{", 0, Error::HeaderNotJson(_));
    refused!("{\"a\":\u{0}}", 0, Error::HeaderNotJson(_));
    refused!(r#"{"a":{"dtype":"F32","shape":[1]}}"#, 4, Error::HeaderNotJson(_));
    refused!(
        r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
        4,
        Error::HeaderNotJson(_)
    );
    refused!(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}}"#,
        4,
        Error::HeaderNotJson(_)
    );
    refused!(
        r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}}"#,
        4,
        Error::HeaderNotJson(_)
    );
    refused!(r#"{"__metadata__":{"a":1}}"#, 0, Error::HeaderNotJson(_));
    refused!("{}x", 0, Error::HeaderNotJson(_));
    let bytes = safetensors("{\"a\u{0}", 0);
    let mut not_utf8 = bytes.clone();
    not_utf8[10] = 0xff;
    assert!(matches!(read(&not_utf8), Err(Error::HeaderNotJson(_))));
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    refused!(&deep, 0, Error::HeaderNotJson(_));
}

#[test]
fn tensors_are_checked_alone() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    refused!(&one("F4", "[8]", "[0,4]"), 4, Error::UnknownDtype { found, .. } if found == "F4");
    refused!(&one("Q4_0", "[32]", "[0,18]"), 18, Error::UnknownDtype { .. });
    refused!(&one("F32", "[4294967296,4294967296]", "[0,4]"), 4, Error::BadShape { .. });
    refused!(&one("F64", "[2305843009213693952]", "[0,0]"), 0, Error::BadShape { .. });
    refused!(&one("F32", "[1]", "[4,0]"), 4, Error::BackwardRange { begin: 4, end: 0, .. });
    refused!(
        &one("F32", "[3]", "[0,8]"),
        8,
        Error::SizeMismatch { dtype: Dtype::F32, needed: 12, found: 8, .. }
    );
    refused!(&one("F32", "[3]", "[0,12]"), 8, Error::OutOfFile { end: 12, data_bytes: 8, .. });
    refused!(&one("F32", "[1]", "[8,12]"), 12, Error::Gap { bytes: 8, .. });
    refused!(&one("F32", "[1]", "[0,4]"), 5, Error::TrailingBytes { bytes: 1 });
    let edge = format!("[{},{}]", u64::MAX - 3, u64::MAX);
    refused!(&one("U8", "[3]", &edge), 4, Error::OutOfFile { .. });
}

#[test]
fn tensors_are_checked_together() {
    let two = |a: &str, b: &str| {
        format!(
            r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":{a}}},
                "b":{{"dtype":"U8","shape":[4],"data_offsets":{b}}}}}"#
        )
    };
    refused!(&two("[0,4]", "[2,6]"), 6, Error::Overlap { first, second } if first == "a" && second == "b");
    refused!(&two("[0,4]", "[0,4]"), 4, Error::Overlap { .. });
    refused!(&two("[0,4]", "[5,9]"), 9, Error::Gap { name, bytes: 1 } if name == "b");
    let twice = two("[0,4]", "[4,8]").replace("\"b\"", "\"a\"");
    refused!(&twice, 8, Error::DuplicateTensor { name } if name == "a");
    // An empty tensor inside another's bytes belongs to no place of its own.
    let inside = two("[0,4]", "[2,2]").replacen(
        "[4],\"data_offsets\":[2,2]",
        "[0],\"data_offsets\":[2,2]",
        1,
    );
    refused!(&inside, 4, Error::Overlap { .. });
}

#[test]
fn too_many_tensors_are_refused() {
    let mut header = String::from("{");
    for i in 0..=formats::safetensors::MAX_TENSORS {
        let comma = if i == 0 { "" } else { "," };
        header += &format!(r#"{comma}"{i}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    }
    header.push('}');
    refused!(&header, 0, Error::TooManyTensors { .. });
}
