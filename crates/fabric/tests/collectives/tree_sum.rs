use crate::rig::{ranks, run, tensor};
use canon::tree;
use program::ops::CollectiveKind;

/// 2^24: adding 1 to it changes nothing.
const BIG: f32 = 16_777_216.0;

fn kind(leaves: usize) -> CollectiveKind {
    CollectiveKind::TreeSum { leaves, alpha: 1.0, accumulate: false, bias: None }
}

/// The sum of some leaves as ranks finish it.
fn finished(leaves: &[f32], tp: usize) -> Vec<(Vec<f32>, u64)> {
    run(ranks(tp, 1), |member, rig| {
        let mine = tree::owned(leaves.len(), tp, member.rank().tp).unwrap();
        let x = rig.floats(1, &[tree::sum(&leaves[mine])]);
        tensor(kind(leaves.len()), x, rig.out(1, 1))
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn the_leaves_of_a_row_parallel_product_give_one_sum_at_every_degree() {
    let mut leaves = [2.0f32.powi(-8); 8];
    leaves[0] = 1.0;
    for tp in [1, 2, 4, 8] {
        for (sum, bytes) in finished(&leaves, tp) {
            assert_eq!(sum, [1.0 + 7.0 * 2.0f32.powi(-8)]);
            assert_eq!(bytes, 4 * (tp as u64 - 1));
        }
    }
}

/// In bf16 1 + 2⁻⁸ is a tie that falls to 1: rounding every addition would lose all seven.
#[test]
fn a_sum_is_rounded_to_its_type_once() {
    let mut leaves = [2.0f32.powi(-8); 8];
    leaves[0] = 1.0;
    for tp in [1, 2, 4, 8] {
        let sums = run(ranks(tp, 1), |member, rig| {
            let mine = tree::owned(leaves.len(), tp, member.rank().tp).unwrap();
            let x = rig.floats(1, &[tree::sum(&leaves[mine])]);
            tensor(kind(leaves.len()), x, rig.half())
        });
        assert!(sums.iter().all(|(sum, _)| *sum == [1.0 + 2.0f32.powi(-5)]), "tp {tp}: {sums:?}");
    }
}

#[test]
fn the_tree_is_finished_in_its_own_order() {
    // Only ((0+1)+(2+3))+((4+5)+(6+7)) makes 2 of these.
    let leaves = [BIG, 1.0, 1.0, -BIG, 1.0, BIG, -BIG, 1.0];
    let wanted = ((leaves[0] + leaves[1]) + (leaves[2] + leaves[3]))
        + ((leaves[4] + leaves[5]) + (leaves[6] + leaves[7]));
    assert_ne!(wanted, leaves.iter().sum::<f32>());
    for tp in [1, 2, 4, 8] {
        assert!(finished(&leaves, tp).iter().all(|(sum, _)| *sum == [wanted]), "tp {tp}");
    }
}

#[test]
fn uneven_leaves_take_the_lowest_of_the_ranks_that_replicate_one() {
    // Three leaves: rank 0 of 2 owns one; of 4 ranks, 0 and 1 replicate it.
    let leaves = [1.0, BIG, -BIG + 1.0];
    let wanted = leaves[0] + (leaves[1] + leaves[2]);
    for tp in [2, 4] {
        assert!(finished(&leaves, tp).iter().all(|(sum, _)| *sum == [wanted]), "tp {tp}");
    }
    // What rank 1 of 4 publishes is not looked at.
    let sums = run(ranks(4, 1), |member, rig| {
        let rank = member.rank().tp;
        let x = rig.floats(1, &[[1.0, f32::NAN, 2.0, 4.0][rank]]);
        tensor(kind(3), x, rig.out(1, 1))
    });
    for (rank, (sum, bytes)) in sums.iter().enumerate() {
        assert_eq!(*sum, [7.0]);
        // Two other subtrees each, four bytes a sum.
        assert_eq!(*bytes, 8, "rank {rank}");
    }
}

#[test]
fn one_leaf_is_replicated_and_nothing_moves() {
    let sums = run(ranks(4, 1), |_, rig| tensor(kind(1), rig.floats(1, &[5.0]), rig.out(1, 1)));
    assert!(sums.iter().all(|end| *end == (vec![5.0], 0)));
}

#[test]
fn scale_then_bias_or_the_old_value() {
    let sums = |accumulate: bool| {
        run(ranks(2, 1), move |_, rig| {
            let x = rig.floats(2, &[BIG / 2.0, 1.0, 2.0, 3.0]);
            let out = rig.floats(2, &[1.0, 10.0, 20.0, 30.0]);
            let bias = (!accumulate).then(|| rig.floats(2, &[2.0, -1.0]));
            let kind = CollectiveKind::TreeSum { leaves: 2, alpha: 0.5, accumulate, bias };
            tensor(kind, x, out)
        })
    };
    for (sum, _) in sums(false) {
        assert_eq!(sum, [BIG / 2.0 + 2.0, 0.0, 4.0, 2.0]);
    }
    for (sum, _) in sums(true) {
        assert_eq!(bits(&sum), bits(&[1.0 + BIG / 2.0, 11.0, 22.0, 33.0]));
    }
}
