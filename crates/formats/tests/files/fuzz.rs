//! Damaged files never panic and never make the readers take more memory than the file's size
//! explains; they give a typed error, or a header that is right.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use formats::{gguf, safetensors};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::support;

/// Counts the bytes that this thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged; counting touches no memory
// of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The thread's count may be gone while the thread ends; nothing is measured then.
        let _ = ASKED.try_with(|asked| asked.set(asked.get().saturating_add(layout.size())));
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` through `alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `read` and checks that all allocations together stay under a multiple of the file's size.
fn bounded<T>(bytes: &[u8], read: impl FnOnce() -> T) -> T {
    let before = ASKED.get();
    let result = read();
    let asked = ASKED.get() - before;
    // An empty string takes 8 bytes in the file and 24 in memory; a short JSON entry grows by more,
    // and tables double as they grow.
    let most = 64 * 1024 + 128 * bytes.len();
    assert!(asked <= most, "{asked} bytes asked for by a file of {}", bytes.len());
    result
}

fn read_gguf(bytes: &[u8]) {
    if let Ok(header) = bounded(bytes, || gguf::Header::read(bytes, bytes.len() as u64)) {
        for tensor in &header.tensors {
            assert!(tensor.offset + tensor.bytes <= bytes.len() as u64);
            let blocks = tensor.shape.iter().product::<usize>() / tensor.dtype.block_elements();
            assert_eq!((blocks * tensor.dtype.block_bytes()) as u64, tensor.bytes);
        }
        // What the configuration makes of any metadata must be an answer too.
        let _answer = bounded(bytes, || formats::ModelConfig::from_gguf(&header, None));
    }
}

fn read_safetensors(bytes: &[u8]) {
    let ours = bounded(bytes, || safetensors::Header::read(bytes, bytes.len() as u64));
    let reference = ::safetensors::SafeTensors::deserialize(bytes);
    if let Ok(header) = ours {
        // Whatever is accepted here, the reference accepts and places in the same way.
        let reference = reference.expect("accepted here, refused by the reference");
        assert_eq!(reference.len(), header.tensors.len());
        for tensor in &header.tensors {
            let view = reference.tensor(&tensor.name).unwrap();
            let begin = tensor.offset as usize;
            assert_eq!(view.data(), &bytes[begin..begin + tensor.bytes as usize]);
        }
    }
}

/// One change to a file.
#[derive(Clone, Debug)]
enum Damage {
    /// A byte replaced.
    Set(Index, u8),
    /// Eight bytes replaced by a number, as lengths and offsets are stored.
    SetU64(Index, u64),
    /// The end cut off.
    Cut(Index),
    /// A byte put in.
    Insert(Index, u8),
}

fn damage() -> impl Strategy<Value = Damage> {
    let large = prop_oneof![any::<u64>(), 0..4096u64, Just(u64::MAX), Just(1 << 63), Just(1 << 24)];
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        4 => (any::<Index>(), large).prop_map(|(at, number)| Damage::SetU64(at, number)),
        1 => any::<Index>().prop_map(Damage::Cut),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
    ]
}

fn damaged(mut bytes: Vec<u8>, changes: &[Damage]) -> Vec<u8> {
    for change in changes {
        let length = bytes.len() + 1;
        match *change {
            Damage::Set(at, byte) => {
                if let Some(place) = bytes.get_mut(at.index(length)) {
                    *place = byte;
                }
            }
            Damage::SetU64(at, number) => {
                for (place, byte) in bytes[at.index(length)..].iter_mut().zip(number.to_le_bytes())
                {
                    *place = byte;
                }
            }
            Damage::Cut(at) => bytes.truncate(at.index(length)),
            Damage::Insert(at, byte) => bytes.insert(at.index(length), byte),
        }
    }
    bytes
}

/// A GGUF with every kind of value; without its data it is mostly header, so that damage hits
/// something.
fn rich_gguf() -> Vec<u8> {
    let mut strings = 8u32.to_le_bytes().to_vec();
    strings.extend(3u64.to_le_bytes());
    for text in ["a", "", "語"] {
        strings.extend(support::string(text));
    }
    let mut numbers = 5u32.to_le_bytes().to_vec();
    numbers.extend(2u64.to_le_bytes());
    numbers.extend([1, 0, 0, 0, 2, 0, 0, 0]);
    support::tiny_gguf("llama")
        .entry("strings", 9, &strings)
        .entry("numbers", 9, &numbers)
        .entry("flag", 7, &[1])
        .entry("f64", 12, &[0; 8])
        .tensor("quantized", &[32, 2], 3, &[7; 40])
        .bytes()
}

fn rich_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"c":{"dtype":"U8","shape":[0,3],"data_offsets":[4,4]}}"#;
    support::safetensors(header, 12)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]

    #[test]
    fn damaged_gguf_is_answered(changes in vec(damage(), 1..5)) {
        read_gguf(&damaged(rich_gguf(), &changes));
    }

    #[test]
    fn damaged_safetensors_is_answered(changes in vec(damage(), 1..5)) {
        read_safetensors(&damaged(rich_safetensors(), &changes));
    }

    #[test]
    fn any_bytes_are_answered(bytes in vec(any::<u8>(), 0..512)) {
        read_safetensors(&bytes);
        let mut gguf = b"GGUF\x03\0\0\0".to_vec();
        gguf.extend(bytes);
        read_gguf(&gguf);
    }

    #[test]
    fn any_offsets_are_answered(ranges in vec((0..20u64, 0..20u64, 0..20u64), 0..5), data_bytes in 0..40usize) {
        let mut header = serde_json::Map::new();
        for (at, (begin, end, shape)) in ranges.into_iter().enumerate() {
            let entry = serde_json::json!({"dtype": "U8", "shape": [shape], "data_offsets": [begin, end]});
            header.insert(at.to_string(), entry);
        }
        let header = serde_json::Value::Object(header).to_string();
        read_safetensors(&support::safetensors(&header, data_bytes));
    }
}

#[test]
fn undamaged_files_are_read() {
    let bytes = rich_gguf();
    assert!(gguf::Header::read(&bytes[..], bytes.len() as u64).is_ok());
    let bytes = rich_safetensors();
    assert!(safetensors::Header::read(&bytes[..], bytes.len() as u64).is_ok());
}

#[test]
#[should_panic(expected = "bytes asked for")]
fn the_bound_on_memory_fires() {
    bounded(&[0; 8], || vec![0u8; 1 << 20]);
}
