//! What the cache serves, refuses, keeps and throws away.

use std::convert::Infallible;
use std::io::Write;

use tempfile::TempDir;
use text::TextIdentity;

use super::*;
use crate::dataset::SourceInfo;
use crate::encode::report;
use crate::report::Counts;
use crate::shorten::TooLong;
use crate::source::Source;

struct Fixture {
    folder: TempDir,
    corpus: Corpus,
    key: CacheKey,
    dataset: Dataset,
}

impl Fixture {
    fn new() -> Fixture {
        Self::with_length(7)
    }

    /// A corpus of two files and what could have been encoded from it.
    fn with_length(length: usize) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let source = |name: &str, weight| {
            let path = folder.path().join(name);
            std::fs::write(&path, r#"{"text": "a"}"#).unwrap();
            Source { weight, ..Source::new(path) }
        };
        let corpus = Corpus::open(&[source("a.jsonl", 0.5), source("b.jsonl", 1.0)]).unwrap();
        let text = TextIdentity {
            tokenizer: String::new(),
            special: String::new(),
            template: String::new(),
            uses_clock: false,
        };
        let key = CacheKey::new(&corpus, &text, 100, length, TooLong::Drop, None);
        let mut dataset = Dataset::empty(SourceInfo::of(&corpus));
        let ids: Vec<u32> = (0..length as u32).collect();
        let flags: Vec<bool> = ids.iter().map(|id| id % 3 == 1).collect();
        dataset.push(&ids, &flags, 1, 4);
        dataset.push(&ids[2..], &flags[2..], 0, 70_000);
        let counts = Counts { dropped: 3, samples: 1, tokens: 5, ..Counts::default() };
        dataset.report = report(&dataset.sources, &[counts, Counts::default()]);
        Fixture { folder, corpus, key, dataset }
    }

    fn cache(&self, limit: u64) -> EncodeCache {
        EncodeCache::new(self.folder.path().join("cache"), limit)
    }

    fn get(&self, cache: &EncodeCache) -> CacheOutcome {
        let encode = || Ok::<_, Infallible>(self.dataset.clone());
        let (dataset, outcome) = cache.get_or_encode(&self.key, &self.corpus, encode).unwrap();
        assert_eq!(dataset, self.dataset);
        assert_eq!(outcome.key.as_deref(), Some(self.key.as_str()));
        assert_eq!(outcome.encode_s.is_none(), outcome.state == CacheState::Hit);
        outcome
    }
}

const PLENTY: u64 = 1 << 30;

#[test]
fn the_second_time_is_a_hit_with_the_same_data_set() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    let miss = fixture.get(&cache);
    assert_eq!((miss.state, miss.warnings.len()), (CacheState::Miss, 0));
    let hit = fixture.get(&cache);
    assert_eq!((hit.state, hit.warnings.len(), hit.bytes), (CacheState::Hit, 0, miss.bytes));
    let listed = cache.list().unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].bytes, listed[0].key.as_str()), (miss.bytes, fixture.key.as_str()));
    let entry = listed[0].entry.as_ref().unwrap();
    assert_eq!((entry.samples, entry.tokens), (2, 12));
    let files = std::fs::read_dir(cache.folder()).unwrap().count();
    assert_eq!(files, 1, "nothing is left beside the entry");
}

#[test]
fn what_cannot_be_encoded_is_not_kept() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    let result = cache.get_or_encode(&fixture.key, &fixture.corpus, || Err("no"));
    assert_eq!(result.unwrap_err(), "no");
    assert!(cache.list().unwrap().is_empty());
}

#[test]
fn a_flipped_bit_anywhere_is_found_and_the_entry_rebuilt() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    fixture.get(&cache);
    let path = cache.path(&fixture.key);
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        let error = entry::parse(&path, &flipped, &fixture.key, &fixture.corpus).unwrap_err();
        let named = match at {
            0..8 => matches!(error, CacheError::NotAnEntry { .. }),
            _ => matches!(error, CacheError::Damaged { .. }),
        };
        assert!(named, "{at}: {error}");
    }
    for length in [0, 4, 20, whole.len() - 1] {
        let cut = entry::parse(&path, &whole[..length], &fixture.key, &fixture.corpus);
        assert!(cut.is_err(), "{length}");
    }
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    std::fs::write(&path, flipped).unwrap();
    let outcome = fixture.get(&cache);
    assert_eq!(outcome.state, CacheState::Rebuilt);
    assert!(outcome.warnings[0].contains("is damaged"), "{:?}", outcome.warnings);
    assert_eq!(fixture.get(&cache).state, CacheState::Hit);
}

/// Bytes with the hash that belongs to them.
fn sealed(mut content: Vec<u8>) -> Vec<u8> {
    let hash = blake3::hash(&content);
    content.extend(hash.as_bytes());
    content
}

#[test]
fn an_entry_that_contradicts_itself_or_is_anothers_is_refused() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    fixture.get(&cache);
    let path = cache.path(&fixture.key);
    let whole = std::fs::read(&path).unwrap();
    let content = whole[..whole.len() - 32].to_vec();
    let parse = |bytes: &[u8]| entry::parse(&path, bytes, &fixture.key, &fixture.corpus);
    parse(&sealed(content.clone())).unwrap();

    let mut longer = content.clone();
    longer.push(0);
    assert!(matches!(parse(&sealed(longer)), Err(CacheError::Malformed { .. })));
    let header = u32::from_le_bytes(content[8..12].try_into().unwrap()) as usize;
    for at in [0, 8] {
        // The first length; the first sample's source.
        let mut wrong = content.clone();
        wrong[12 + header + at] += 100;
        assert!(matches!(parse(&sealed(wrong)), Err(CacheError::Malformed { .. })), "{at}");
    }
    let other = Fixture::with_length(8);
    let error = entry::parse(&path, &whole, &other.key, &other.corpus).unwrap_err();
    assert!(matches!(error, CacheError::OtherKey { .. }), "{error}");
    let mut no_header = content;
    no_header[13] = b'!';
    assert!(matches!(parse(&sealed(no_header)), Err(CacheError::NotAnEntry { .. })));
}

#[test]
fn a_folder_that_cannot_be_written_is_said_and_stops_nothing() {
    let fixture = Fixture::new();
    // Not even root can make a folder in a file.
    let file = fixture.folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let outcome = fixture.get(&EncodeCache::new(file.join("cache"), PLENTY));
    assert_eq!((outcome.state, outcome.bytes), (CacheState::Unwritable, 0));
    // Looking it up failed, and keeping it; nothing was kept that could have been too much.
    let [looked, kept] = &outcome.warnings[..] else { panic!("{outcome:?}") };
    assert!(looked.contains("cannot read") && kept.contains("not kept"), "{outcome:?}");
}

#[test]
fn an_entry_that_cannot_be_read_is_said() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    std::fs::create_dir_all(cache.path(&fixture.key)).unwrap();
    let outcome = fixture.get(&cache);
    assert_eq!(outcome.state, CacheState::Unwritable);
    assert!(outcome.warnings[0].contains("cannot read"), "{outcome:?}");
}

#[test]
fn what_is_no_file_is_no_entry_and_what_cannot_be_looked_at_is_said() {
    use std::os::unix::fs::symlink;
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    fixture.get(&cache);
    std::fs::create_dir(cache.folder().join("folder.encoded")).unwrap();
    // As if another process removed the file meanwhile.
    symlink("gone", cache.folder().join("gone.encoded")).unwrap();
    assert_eq!(cache.list().unwrap().len(), 1);
    symlink("circle.encoded", cache.folder().join("circle.encoded")).unwrap();
    assert!(matches!(cache.list(), Err(CacheError::Io { action: "read", .. })));
    let file = fixture.folder.path().join("a.jsonl");
    let no_folder = EncodeCache::new(file, PLENTY).list();
    assert!(matches!(no_folder, Err(CacheError::Io { action: "read", .. })), "{no_folder:?}");
}

/// It would be read whole, or waited for, before it is found out.
#[test]
fn what_is_no_entry_by_its_size_or_kind_is_not_read() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    let bytes = fixture.get(&cache).bytes;
    let path = cache.path(&fixture.key);
    let load = || cache.load(&fixture.key, &fixture.corpus).unwrap_err();
    let file = File::options().write(true).open(&path).unwrap();
    for other in [bytes - 1, bytes + 1, 1 << 40] {
        file.set_len(other).unwrap();
        assert!(matches!(load(), CacheError::Damaged { .. }), "{other}");
    }
    assert_eq!(fixture.get(&cache).state, CacheState::Rebuilt);
    let sparse = File::create(&path).unwrap();
    sparse.set_len(1 << 40).unwrap();
    assert!(matches!(load(), CacheError::NotAnEntry { .. }));
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
    assert!(matches!(load(), CacheError::NotAnEntry { .. }));
    assert_eq!(fixture.get(&cache).state, CacheState::Rebuilt);
    assert_eq!(fixture.get(&cache).state, CacheState::Hit);
}

#[test]
fn a_header_has_a_limit() {
    let fixture = Fixture::new();
    let entry = Entry::of(&fixture.key, &fixture.dataset, 1.0);
    let json = serde_json::to_vec(&entry).unwrap();
    let file = |length: usize| {
        let mut bytes = b"sameENC\x01".to_vec();
        bytes.extend((length as u32).to_le_bytes());
        bytes.extend(&json);
        bytes.resize(bytes.len() + length - json.len(), b' ');
        entry::read_header(&mut &bytes[..]).unwrap()
    };
    assert_eq!(file(json.len()).unwrap().entry, entry);
    assert_eq!(file(entry::HEADER_LIMIT).unwrap().entry, entry);
    assert!(file(entry::HEADER_LIMIT + 1).is_none());
}

#[test]
fn what_just_fits_stays() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    let bytes = fixture.get(&cache).bytes;
    assert_eq!(cache.prune(bytes).unwrap().removed, 0);
    assert_eq!(cache.prune(bytes - 1).unwrap().removed, 1);
}

#[test]
fn a_file_that_is_gone_is_removed_and_a_folder_is_not() {
    let folder = tempfile::tempdir().unwrap();
    remove(&folder.path().join("gone")).unwrap();
    assert!(matches!(remove(folder.path()), Err(CacheError::Io { action: "remove", .. })));
}

#[test]
fn states_are_named_as_they_are_written() {
    for state in [
        CacheState::Hit,
        CacheState::Miss,
        CacheState::Rebuilt,
        CacheState::Unwritable,
        CacheState::Off,
    ] {
        assert_eq!(serde_json::to_value(state).unwrap(), state.name());
    }
}

#[test]
fn an_entry_in_a_folder_that_is_read_only_still_hits() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    fixture.get(&cache);
    let mode = |mode| {
        std::fs::set_permissions(cache.folder(), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o500);
    let outcome = fixture.get(&cache);
    mode(0o700);
    assert_eq!((outcome.state, outcome.warnings.len()), (CacheState::Hit, 0));
}

/// A disk with room for so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.0 -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_found_wherever_it_fills() {
    let fixture = Fixture::new();
    let entry = Entry::of(&fixture.key, &fixture.dataset, 0.0);
    let size = entry.bytes() as usize;
    for room in 0..size {
        let error = entry::write(&mut Full(room), &entry, &fixture.dataset).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    }
    entry::write(&mut Full(size), &entry, &fixture.dataset).unwrap();
}

#[test]
fn an_entry_over_the_limit_is_not_written() {
    let fixture = Fixture::new();
    let bytes = Entry::of(&fixture.key, &fixture.dataset, 0.0).bytes();
    let small = fixture.cache(bytes - 1);
    let outcome = fixture.get(&small);
    assert_eq!(outcome.state, CacheState::Unwritable);
    assert!(outcome.warnings[0].contains("over the cache's limit"), "{outcome:?}");
    assert!(small.list().unwrap().is_empty());
    small.store(&fixture.key, &fixture.dataset, 0.0).unwrap_err();
    let stored = fixture.cache(bytes).store(&fixture.key, &fixture.dataset, 0.0).unwrap();
    assert_eq!(stored, bytes, "one that takes all of it is");
}

/// Sets when an entry was last used, in seconds before now.
fn age(cache: &EncodeCache, key: &CacheKey, seconds: u64) {
    let then = SystemTime::now() - Duration::from_secs(seconds);
    File::open(cache.path(key)).unwrap().set_modified(then).unwrap();
}

#[test]
fn the_entry_used_longest_ago_goes_first_and_the_new_one_stays() {
    let fixtures = [Fixture::with_length(10), Fixture::with_length(11), Fixture::with_length(12)];
    let bytes = |fixture: &Fixture| {
        let bytes = Entry::of(&fixture.key, &fixture.dataset, 0.0).bytes();
        // Seconds are printed in more or fewer digits.
        bytes + 20
    };
    let cache = EncodeCache::new(
        fixtures[0].folder.path().join("cache"),
        bytes(&fixtures[0]) + bytes(&fixtures[1]),
    );
    fixtures[0].get(&cache);
    fixtures[1].get(&cache);
    age(&cache, &fixtures[0].key, 100);
    age(&cache, &fixtures[1].key, 50);
    // A hit makes the first the one used last.
    assert_eq!(fixtures[0].get(&cache).state, CacheState::Hit);
    fixtures[2].get(&cache);
    let keys = |cache: &EncodeCache| -> Vec<String> {
        cache.list().unwrap().into_iter().map(|info| info.key).collect()
    };
    assert!(!keys(&cache).contains(&fixtures[1].key.to_string()));
    assert_eq!(keys(&cache).len(), 2);
    let listed: u64 = cache.list().unwrap().iter().map(|info| info.bytes).sum();
    let pruned = cache.prune(0).unwrap();
    assert_eq!((pruned.removed, pruned.removed_bytes), (2, listed));
    assert_eq!((pruned.kept, pruned.kept_bytes), (0, 0));
    assert!(keys(&cache).is_empty());
}

#[test]
fn a_small_entry_does_not_outlive_a_newer_one_by_its_size() {
    let (small, large) = (Fixture::with_length(10), Fixture::with_length(1000));
    let cache = small.cache(PLENTY);
    small.get(&cache);
    large.get(&cache);
    age(&cache, &small.key, 100);
    age(&cache, &large.key, 50);
    let small_bytes = cache.list().unwrap().iter().map(|info| info.bytes).min().unwrap();
    assert_eq!(cache.prune(small_bytes).unwrap().removed, 2);
}

#[cfg(unix)]
#[test]
fn an_entry_is_readable_to_whom_any_file_is() {
    use std::os::unix::fs::PermissionsExt;
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    fixture.get(&cache);
    let other = fixture.folder.path().join("other");
    std::fs::write(&other, "a").unwrap();
    let mode = |path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(cache.path(&fixture.key)), mode(other));
}

#[test]
fn files_abandoned_while_written_go_and_others_stay() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    fixture.get(&cache);
    let named = |name: &str, hours: u64| {
        let path = cache.folder().join(name);
        std::fs::write(&path, "x").unwrap();
        let then = SystemTime::now() - Duration::from_secs(hours * 3600);
        File::open(&path).unwrap().set_modified(then).unwrap();
        path
    };
    let (old, young, note) =
        (named(".writing-old", 25), named(".writing-young", 23), named("note", 25));
    let pruned = cache.prune(PLENTY).unwrap();
    assert_eq!((pruned.removed, pruned.kept), (0, 1));
    assert_eq!([old, young, note].map(|path| path.exists()), [false, true, true]);
}

#[test]
fn a_file_that_is_no_entry_is_listed_as_such() {
    let fixture = Fixture::new();
    let cache = fixture.cache(PLENTY);
    assert!(cache.list().unwrap().is_empty(), "no folder, no entries");
    fixture.get(&cache);
    std::fs::write(cache.folder().join("other.encoded"), "sameENC\x01").unwrap();
    std::fs::write(cache.folder().join("third.encoded"), b"sameENC\x01\xff\xff\xff\xff").unwrap();
    let without: Vec<bool> =
        cache.list().unwrap().iter().map(|info| info.entry.is_none()).collect();
    assert_eq!(without.iter().filter(|&&none| none).count(), 2);
}
