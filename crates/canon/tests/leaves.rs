//! Cutting dimensions into leaves.

use canon::leaves::{CutError, MAX_WIDTH, VOCAB_TILE, cut, cut_vocab, padded_vocab};
use canon::tree::owned;

#[test]
fn real_models() {
    // Qwen3-8B at width 8: 8 key/value groups of 4 query heads of 128.
    let heads = cut(8, 4 * 128, 8).unwrap();
    assert_eq!(heads[0], 0..512);
    assert_eq!(heads[7], 3584..4096);
    let rows = cut(12_288, 1, 8).unwrap();
    assert!(rows.iter().all(|leaf| leaf.len() == 1536));
    // SmolLM2: 3 key/value groups of 3 heads of 64 are the finest natural cut.
    assert_eq!(cut(3, 192, 8).unwrap(), [0..192, 192..384, 384..576]);
    assert_eq!(padded_vocab(151_936, 8).unwrap(), 152_576);
    assert_eq!(padded_vocab(49_152, 8).unwrap(), 49_152);
    let vocab = cut_vocab(151_936, 8).unwrap();
    assert!(vocab.iter().all(|leaf| leaf.len() == 19_072));
    assert_eq!(vocab[7].end, 152_576);
}

#[test]
fn leaves_cover_and_differ_by_one_unit() {
    for units in 1..=100 {
        for width in [1, 2, 4, 8, 16, 32] {
            let leaves = cut(units, 3, width).unwrap();
            assert_eq!(leaves.len(), width.min(units));
            let mut next = 0;
            for leaf in &leaves {
                assert_eq!(leaf.start, next);
                assert!(!leaf.is_empty());
                assert_eq!(leaf.len() % 3, 0);
                next = leaf.end;
            }
            assert_eq!(next, 3 * units);
            let least = leaves.iter().map(|l| l.len()).min().unwrap();
            let most = leaves.iter().map(|l| l.len()).max().unwrap();
            assert!(most - least <= 3, "{units} units, width {width}");
        }
    }
}

/// What a rank owns in elements is the cut for as many leaves as there are ranks:
/// tensor-parallel boundaries are leaf boundaries of the same mid-split.
#[test]
fn degrees_align_with_leaves() {
    for units in 8..=100 {
        let leaves = cut(units, 1, 8).unwrap();
        for ranks in [1, 2, 4, 8] {
            let shares = cut(units, 1, ranks).unwrap();
            for (rank, share) in shares.iter().enumerate() {
                let mine = owned(8, ranks, rank).unwrap();
                let elements = leaves[mine.start].start..leaves[mine.end - 1].end;
                assert_eq!(&elements, share, "{units} units, rank {rank} of {ranks}");
            }
        }
    }
}

#[test]
fn widths_that_are_no_power_of_two() {
    for width in 1..=48 {
        for units in width..=100 {
            let leaves = cut(units, 1, width).unwrap();
            assert_eq!(leaves.len(), width);
            assert!(leaves.iter().all(|leaf| !leaf.is_empty()));
            if units % width == 0 {
                assert!(leaves.iter().all(|leaf| leaf.len() == units / width));
            }
        }
    }
}

#[test]
fn refusals() {
    assert_eq!(cut(0, 1, 8), Err(CutError::NoUnits));
    assert_eq!(cut(8, 0, 8), Err(CutError::EmptyUnit));
    for width in [0, MAX_WIDTH + 1] {
        assert_eq!(cut(8, 1, width), Err(CutError::Width { width }));
        assert_eq!(padded_vocab(8, width), Err(CutError::Width { width }));
        assert_eq!(cut_vocab(8, width), Err(CutError::Width { width }));
    }
    assert_eq!(padded_vocab(0, 8), Err(CutError::NoUnits));
    for (units, unit_size) in [(usize::MAX, 1), (2, usize::MAX)] {
        let error = cut(units, unit_size, 8).unwrap_err();
        assert_eq!(error, CutError::TooLarge { units, unit_size });
        assert!(error.to_string().contains(&units.to_string()));
    }
    assert!(matches!(padded_vocab(usize::MAX - VOCAB_TILE, 8), Err(CutError::TooLarge { .. })));
}
