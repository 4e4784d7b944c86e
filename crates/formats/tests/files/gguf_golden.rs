//! The GGUF reader against a file that the reference package wrote
//! (`scripts/goldens/gguf_dequant.py`).

use crate::support;

use formats::Dtype;
use formats::gguf::{Array, File, Value, dequantize};

const FORMATS: [(&str, Dtype); 10] = [
    ("F16", Dtype::F16),
    ("BF16", Dtype::Bf16),
    ("Q4_0", Dtype::Q4_0),
    ("Q4_1", Dtype::Q4_1),
    ("Q5_0", Dtype::Q5_0),
    ("Q5_1", Dtype::Q5_1),
    ("Q8_0", Dtype::Q8_0),
    ("Q4_K", Dtype::Q4K),
    ("Q5_K", Dtype::Q5K),
    ("Q6_K", Dtype::Q6K),
];

#[test]
fn every_format_dequantizes_to_the_reference_bits() {
    let path = support::golden("dequant.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let file = File::open(&path).unwrap();
    assert_eq!(file.tensors().len(), 2 * FORMATS.len());
    for (name, dtype) in FORMATS {
        let stored = file.tensor(name).unwrap();
        let expected = file.tensor(&format!("{name}.expected")).unwrap();
        assert_eq!((stored.dtype, expected.dtype), (dtype, Dtype::F32));
        assert_eq!(stored.shape, expected.shape);
        let data = |tensor: &formats::gguf::Tensor| {
            let begin = tensor.offset as usize;
            bytes[begin..begin + tensor.bytes as usize].to_vec()
        };
        let mut numbers = vec![0.0f32; stored.shape.iter().product()];
        dequantize(dtype, &data(stored), &mut numbers);
        let found: Vec<u32> = numbers.iter().map(|n| n.to_bits()).collect();
        let expected: Vec<u32> = data(expected)
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        assert_eq!(found, expected, "{name}");
        // A golden file of zeros would prove nothing.
        assert!(numbers.iter().filter(|n| **n != 0.0).count() > numbers.len() / 2, "{name}");
    }
}

#[test]
fn every_value_type_is_read() {
    let file = File::open(&support::golden("dequant.gguf")).unwrap();
    let metadata = file.metadata();
    for (key, expected) in [
        ("golden.u8", Value::U8(200)),
        ("golden.i8", Value::I8(-100)),
        ("golden.u16", Value::U16(60000)),
        ("golden.i16", Value::I16(-30000)),
        ("golden.u32", Value::U32(4_000_000_000)),
        ("golden.i32", Value::I32(-2_000_000_000)),
        ("golden.u64", Value::U64(1 << 63)),
        ("golden.i64", Value::I64(-(1 << 62))),
        ("golden.f32", Value::F32(1e-5)),
        ("golden.f64", Value::F64(1e-300)),
        ("golden.bool", Value::Bool(true)),
        ("golden.string", Value::String("naïve ☃ 語".into())),
        ("golden.i32s", Value::Array(Array::I32(vec![3, -1, 0]))),
        ("golden.f32s", Value::Array(Array::F32(vec![0.5, -2.0]))),
        ("golden.bools", Value::Array(Array::Bool(vec![true, false]))),
    ] {
        assert_eq!(metadata.get(key), Some(&expected), "{key}");
    }
    let strings = metadata.strings("golden.strings").unwrap().unwrap();
    assert_eq!(strings, ["", "a", "Ġthe"]);
}
