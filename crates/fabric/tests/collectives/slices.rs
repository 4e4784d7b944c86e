//! Sums of micro-batches, slices of parameters, exact sums.

use crate::rig::Rig;
use canon::exact::SumOfSquares;
use fabric::{FabricError, Ranks};
use program::Topology;
use program::ops::{
    Collective, CollectiveKind, EXACT_SUM_WORDS, Group, exact_sum_from_u32, exact_sum_to_u32,
};
use std::ops::Range;

fn data(dp: usize) -> Topology {
    Topology { tp: 1, cp: 1, dp, width: 8 }
}

/// What each rank has after the sum of a step of `leaves` micro-batches; rank r gives `given(r)`.
fn step_sum(
    dp: usize,
    leaves: usize,
    ranges: &[Range<usize>],
    given: impl Fn(usize) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    let ran = Ranks::new(data(dp)).run(|member| {
        let mut rig = Rig::default().micro_batches(leaves);
        let x = rig.floats(1, &given(member.index()));
        let local = rig.build();
        let kind = CollectiveKind::StepSum { ranges: ranges.to_vec() };
        member.collective(&Collective { group: Group::Data, kind, x, out: x }, &local.frame())?;
        Ok::<_, FabricError>(local.frame().load_f32(x))
    });
    ran.unwrap()
}

#[test]
fn each_rank_receives_the_tree_of_its_slice_and_keeps_the_rest() {
    let given = |rank: usize| vec![[1.0, 2.0, 4.0][rank]; 4];
    let ranges = [0..2, 2..3, 3..4];
    let after = step_sum(3, 3, &ranges, given);
    assert_eq!(after[0], [7.0, 7.0, 1.0, 1.0]);
    assert_eq!(after[1], [2.0, 2.0, 7.0, 2.0]);
    assert_eq!(after[2], [4.0, 4.0, 4.0, 7.0]);
}

/// Eight equal replicas: every addition doubles, so the eighth of the sum is the value itself.
#[test]
fn the_average_of_equal_replicas_is_the_value() {
    let value = f32::from_bits(0x3f80_0002);
    let ranges: Vec<Range<usize>> = (0..8).map(|rank| rank..rank + 1).collect();
    for (rank, after) in step_sum(8, 8, &ranges, |_| vec![value; 8]).into_iter().enumerate() {
        assert_eq!((after[rank] * 0.125).to_bits(), value.to_bits());
    }
}

/// One micro-batch over four replicas: each ran it, it counts once.
#[test]
fn a_micro_batch_that_replicas_share_counts_once() {
    let ranges: Vec<Range<usize>> = (0..4).map(|rank| rank..rank + 1).collect();
    for (rank, after) in step_sum(4, 1, &ranges, |_| vec![0.3; 4]).into_iter().enumerate() {
        assert_eq!(after[rank], 0.3);
    }
}

#[test]
fn slices_make_the_whole_in_any_storage() {
    let ran = Ranks::new(Topology { tp: 1, cp: 2, dp: 2, width: 8 }).run(|member| {
        let mut rig = Rig::default();
        let me = member.index() as f32;
        let x = rig.floats(3, &[me; 9]);
        let local = rig.build();
        // The third rank has nothing.
        let ranges = vec![0..4, 4..7, 7..7, 7..9];
        let kind = CollectiveKind::GatherSlices { ranges };
        let op = Collective { group: Group::Replicas, kind, x, out: x };
        member.collective(&op, &local.frame())?;
        Ok::<_, FabricError>((local.frame().load_f32(x), member.traffic().total()))
    });
    for (rank, (whole, bytes)) in ran.unwrap().into_iter().enumerate() {
        assert_eq!(whole, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 3.0, 3.0]);
        assert_eq!(bytes, 4 * [5, 6, 9, 7][rank], "rank {rank} receives what others own");
    }
}

/// 4096² + 1000 · 1² is 16,778,216 exactly, however it is split.
#[test]
fn exact_sums_have_no_order() {
    let mut parts = vec![4096.0f32];
    parts.extend([1.0; 1000]);
    for cuts in [[1, 2, 3], [0, 500, 1000], [250, 500, 750]] {
        let ran = Ranks::new(data(4)).run(|member| {
            let bounds = [0, cuts[0], cuts[1], cuts[2], parts.len()];
            let mut sum = SumOfSquares::new();
            sum.add(&parts[bounds[member.index()]..bounds[member.index() + 1]]);
            let mut rig = Rig::default();
            let x = rig.words(&exact_sum_to_u32(&sum));
            let local = rig.build();
            let kind = CollectiveKind::ExactSum;
            member
                .collective(&Collective { group: Group::All, kind, x, out: x }, &local.frame())?;
            let words = local.frame().load_u32(x);
            assert_eq!(words.len(), EXACT_SUM_WORDS);
            Ok::<_, FabricError>(exact_sum_from_u32(&words).unwrap().sum())
        });
        assert_eq!(ran.unwrap(), [16_778_216.0; 4]);
    }
}

#[test]
fn words_that_are_no_sum_are_refused() {
    let error = Ranks::new(data(2))
        .run(|member| {
            let mut rig = Rig::default();
            let x = rig.words(&[7; EXACT_SUM_WORDS]);
            let kind = CollectiveKind::ExactSum;
            let op = Collective { group: Group::All, kind, x, out: x };
            member.collective(&op, &rig.build().frame())
        })
        .unwrap_err();
    assert!(error.to_string().contains("gave no exact sum"), "{error}");
}
