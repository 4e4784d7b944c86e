//! The mid-split tree, its owners and its streaming evaluation.

use canon::mean::{MAX_VALUES, MeanError, mean};
use canon::tree::{
    Addition, OwnerError, Stream, StreamError, finish, fold, merges_after, owned, owners, partials,
    sum,
};

/// Values of both signs over twelve binades: nearly every order of additions
/// gives its own bits.
fn awkward(n: usize) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            let x = (i + 1).wrapping_mul(2_654_435_761);
            f32::from_bits((x & 0x807f_ffff) | (121 + x % 12) << 23)
        })
        .collect()
}

fn bits(x: f32) -> u32 {
    x.to_bits()
}

#[test]
fn shapes_are_the_written_ones() {
    let show = |n| fold(n, |i| i.to_string(), |a, b| format!("({a}+{b})"));
    assert_eq!(show(0), None);
    assert_eq!(show(1).unwrap(), "0");
    assert_eq!(show(3).unwrap(), "(0+(1+2))");
    assert_eq!(show(5).unwrap(), "((0+1)+(2+(3+4)))");
    assert_eq!(show(8).unwrap(), "(((0+1)+(2+3))+((4+5)+(6+7)))");
    let v = awkward(8);
    let by_hand = ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    assert_eq!(bits(sum(&v)), bits(by_hand));
    assert_eq!(bits(sum(&[])), bits(0.0));
    assert_eq!(bits(sum(&[-0.0])), bits(-0.0));
}

#[test]
fn sum_is_the_fold_and_order_matters() {
    let mut chains_that_differ = 0;
    for n in 1..=64 {
        let v = awkward(n);
        let folded = fold(n, |i| v[i], |a, b| a + b).unwrap();
        assert_eq!(bits(sum(&v)), bits(folded), "{n} leaves");
        let chain = v.iter().copied().reduce(|a, b| a + b).unwrap();
        chains_that_differ += usize::from(bits(chain) != bits(folded));
    }
    assert!(chains_that_differ > 30, "only {chains_that_differ} of 64");
    // Swapping two leaves of different parents shows.
    let mut v = awkward(8);
    let whole = sum(&v);
    v.swap(1, 2);
    assert_ne!(bits(sum(&v)), bits(whole));
}

#[test]
fn stream_is_the_tree() {
    for n in 1..=64 {
        let v = awkward(n);
        let mut stream = Stream::new(n);
        let mut most = 0;
        for &x in &v {
            // The arriving leaf is alive beside those held.
            most = most.max(stream.held() + 1);
            stream.push(x, |left, right| *left += right).unwrap();
        }
        assert_eq!(most, partials(n), "{n} leaves");
        assert_eq!(bits(stream.finish().unwrap()), bits(sum(&v)), "{n} leaves");
    }
}

#[test]
fn stream_writes_the_same_expression() {
    for n in 1..=64 {
        let mut stream = Stream::new(n);
        for i in 0..n {
            let node = |left: &mut String, right: String| *left = format!("({left}+{right})");
            stream.push(i.to_string(), node).unwrap();
        }
        let tree = fold(n, |i| i.to_string(), |a, b| format!("({a}+{b})"));
        assert_eq!(stream.finish().ok(), tree);
        let merges: usize = (0..n).map(|i| merges_after(i, n)).sum();
        assert_eq!(merges, n - 1);
    }
    assert_eq!(merges_after(8, 8), 0);
    assert_eq!(partials(0), 0);
}

#[test]
fn stream_refuses() {
    let mut stream = Stream::new(2);
    stream.push(1.0f32, |a, b| *a += b).unwrap();
    let incomplete = StreamError::Incomplete { pushed: 1, leaves: 2 };
    assert_eq!(stream.clone().finish(), Err(incomplete));
    stream.push(2.0, |a, b| *a += b).unwrap();
    let full = StreamError::Full { leaves: 2 };
    assert_eq!(stream.push(3.0, |a, b| *a += b), Err(full));
    assert_eq!(stream.finish(), Ok(3.0));
    assert_eq!(Stream::<f32>::new(0).finish(), Err(StreamError::Empty));
}

#[test]
fn every_arrangement_of_owners_finishes_the_same_tree() {
    for leaves in 1..=64 {
        let v = awkward(leaves);
        let whole = sum(&v);
        for ranks in 1..=16 {
            let owners = owners(leaves, ranks).unwrap();
            let mut sums: Vec<f32> = owners.iter().map(|o| sum(&v[o.leaves.clone()])).collect();
            for Addition { into, from } in finish(leaves, ranks).unwrap() {
                sums[into] += sums[from];
            }
            assert_eq!(bits(sums[0]), bits(whole), "{leaves} leaves, {ranks} ranks");
        }
    }
}

#[test]
fn owners_cover_leaves_and_ranks_once() {
    for leaves in 1..=40 {
        for ranks in 1..=16 {
            let (mut next_leaf, mut next_rank) = (0, 0);
            for owner in owners(leaves, ranks).unwrap() {
                assert_eq!(owner.leaves.start, next_leaf);
                assert_eq!(owner.ranks.start, next_rank);
                assert!(owner.ranks.len() == 1 || owner.leaves.len() == 1);
                for rank in owner.ranks.clone() {
                    assert_eq!(owned(leaves, ranks, rank).unwrap(), owner.leaves);
                }
                (next_leaf, next_rank) = (owner.leaves.end, owner.ranks.end);
            }
            assert_eq!((next_leaf, next_rank), (leaves, ranks));
        }
    }
}

#[test]
fn the_usual_arrangements() {
    // Width 8 at every power of two: adjacent equal shares.
    for ranks in [1, 2, 4, 8] {
        for rank in 0..ranks {
            let share = 8 / ranks;
            let want = rank * share..(rank + 1) * share;
            assert_eq!(owned(8, ranks, rank).unwrap(), want);
        }
    }
    // Three key/value heads: two ranks hold one and two, four ranks replicate the first.
    assert_eq!(owned(3, 2, 0).unwrap(), 0..1);
    assert_eq!(owned(3, 2, 1).unwrap(), 1..3);
    let four: Vec<_> = (0..4).map(|r| owned(3, 4, r).unwrap()).collect();
    assert_eq!(four, [0..1, 0..1, 1..2, 2..3]);
    assert_eq!(owned(1, 8, 5).unwrap(), 0..1);
}

#[test]
fn owners_refuse() {
    assert_eq!(owned(0, 1, 0), Err(OwnerError::NoLeaves));
    assert_eq!(owned(8, 0, 0), Err(OwnerError::NoRanks));
    assert_eq!(owners(0, 1), Err(OwnerError::NoLeaves));
    assert_eq!(finish(8, 0), Err(OwnerError::NoRanks));
    let error = owned(8, 2, 2).unwrap_err();
    assert_eq!(error, OwnerError::NoSuchRank { rank: 2, ranks: 2 });
    assert!(error.to_string().contains("rank 2 of 2"));
}

#[test]
fn mean_of_replicas_is_the_replica() {
    for pattern in [0x3f80_0002, 0x3f80_0001, 0x0000_0001, 0xc2f7_1357] {
        let x = f32::from_bits(pattern);
        for n in [1, 2, 4, 8, 16] {
            assert_eq!(bits(mean(&vec![x; n]).unwrap()), pattern, "{n} replicas");
        }
    }
    // A chain of eight additions of the same value would not do.
    let x = f32::from_bits(0x3f80_0002);
    let chain = (0..8).fold(0.0f32, |a, _| a + x) / 8.0;
    assert_ne!(bits(chain), bits(x));
}

#[test]
fn mean_refuses() {
    assert_eq!(mean(&[]), Err(MeanError::Empty));
    let values = MAX_VALUES + 1;
    assert_eq!(mean(&vec![0.0; values]), Err(MeanError::TooMany { values }));
}
