//! Every way in which `tokenizer.json` and its `tokenizer_config.json` can be wrong.

use std::fs;
use std::path::Path;

use text::{Tokenizer, TokenizerError};

const GOOD: &str = r#"{"version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy":
    "LongestFirst", "stride": 0}, "padding": null, "added_tokens": [{"id": 3, "content": "<s>", "single_word": false,
    "lstrip": false, "rstrip": false, "normalized": false, "special": true}], "normalizer": null, "pre_tokenizer": null,
    "post_processor": null, "decoder": {"type": "Fuse"}, "model": {"type": "BPE", "dropout": null, "unk_token": null,
    "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
    "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}"#;

fn read(folder: &Path, tokenizer: &str, config: Option<&str>) -> Result<Tokenizer, TokenizerError> {
    let path = folder.join("tokenizer.json");
    fs::write(&path, tokenizer).unwrap();
    if let Some(config) = config {
        fs::write(folder.join("tokenizer_config.json"), config).unwrap();
    }
    Tokenizer::from_tokenizer_json(&path)
}

#[test]
fn a_saved_truncation_does_not_cut_text() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = read(folder.path(), GOOD, None).unwrap();
    assert_eq!(tokenizer.encode("abaabb", false).unwrap(), [2, 0, 2, 1]);
    assert_eq!((tokenizer.vocab_size(), tokenizer.bos()), (4, None));
}

#[test]
fn add_bos_token_in_the_config_counts() {
    let folder = tempfile::tempdir().unwrap();
    let config = r#"{"bos_token": "<s>", "add_bos_token": true}"#;
    let tokenizer = read(folder.path(), GOOD, Some(config)).unwrap();
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [3, 2]);
    assert!(tokenizer.adds_bos());
    let unnamed = read(folder.path(), GOOD, Some(r#"{"add_bos_token": true}"#)).unwrap();
    assert_eq!(unnamed.encode("ab", true).unwrap(), [2]);
}

#[test]
fn what_cannot_be_read_is_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let missing = Tokenizer::from_tokenizer_json(&folder.path().join("tokenizer.json"));
    assert!(matches!(missing, Err(TokenizerError::Read { .. })));
    for bad in ["", "{}", &GOOD[..400], &GOOD.replace("BPE", "Nothing")] {
        let error = read(folder.path(), bad, None).err().unwrap();
        assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");
    }
    for merge in [r#"["a", "zz"]"#, r#"["ab", "ab"]"#] {
        let error = read(folder.path(), &GOOD.replace(r#"["a", "b"]"#, merge), None).err().unwrap();
        assert!(matches!(error, TokenizerError::Malformed { .. }), "{error}");
    }
    for bad in
        ["{", "[]", r#"{"bos_token": 1}"#, r#"{"bos_token": {}}"#, r#"{"add_bos_token": "yes"}"#]
    {
        let error = read(folder.path(), GOOD, Some(bad)).err().unwrap();
        assert!(matches!(error, TokenizerError::Config { .. }), "{bad}: {error}");
    }
    let config = folder.path().join("tokenizer_config.json");
    fs::remove_file(&config).unwrap();
    fs::create_dir(&config).unwrap();
    assert!(matches!(read(folder.path(), GOOD, None), Err(TokenizerError::Read { .. })));
}

#[test]
fn a_file_larger_than_any_tokenizer_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    fs::File::create(&path).unwrap().set_len((512 << 20) + 1).unwrap(); // sparse: takes no space
    let error = Tokenizer::from_tokenizer_json(&path).err().unwrap();
    assert!(matches!(error, TokenizerError::TooLarge { .. }), "{error}");
}
