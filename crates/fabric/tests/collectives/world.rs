//! Bytes of the host, and worlds of two topologies.

use crate::rig::ranks;
use fabric::{Cause, FabricError, Movement, RunError, World};
use program::Topology;
use program::ops::Group;

fn topology(tp: usize, cp: usize, dp: usize) -> Topology {
    Topology { tp, cp, dp, width: 8 }
}

#[test]
fn bytes_of_every_group_come_in_the_order_of_its_ranks() {
    let all = fabric::Ranks::new(topology(2, 2, 2)).run(|member| {
        let mine = [member.index() as u8].repeat(1 + member.index());
        let mut of = |group| -> Result<Vec<u8>, FabricError> {
            let gathered = member.all_gather(group, "names", &mine)?;
            Ok(gathered.into_iter().map(|bytes| bytes[0]).collect())
        };
        Ok::<_, FabricError>([
            of(Group::Tensor)?,
            of(Group::Context)?,
            of(Group::Data)?,
            of(Group::Replicas)?,
            of(Group::All)?,
        ])
    });
    let all = all.unwrap();
    assert_eq!(all[5][..4], [vec![4, 5], vec![5, 7], vec![1, 5], vec![1, 3, 5, 7]]);
    assert_eq!(all[5][4], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(all[0][..4], [vec![0, 1], vec![0, 2], vec![0, 4], vec![0, 2, 4, 6]]);
}

#[test]
fn each_rank_gets_its_own_part() {
    let all = ranks(2, 2).run(|member| {
        let me = member.index() as u8;
        let parts = (0..4).map(|to| vec![10 * me + to; usize::from(to)]).collect();
        let taken = member.exchange(Group::All, "weights", parts)?;
        Ok::<_, FabricError>((taken, member.traffic().bytes(Movement::Host)))
    });
    for (me, (taken, bytes)) in all.unwrap().into_iter().enumerate() {
        let expected: Vec<Vec<u8>> = (0..4).map(|from| vec![10 * from + me as u8; me]).collect();
        assert_eq!(taken, expected);
        assert_eq!(bytes, 3 * me as u64, "bytes of others count, its own do not");
    }
}

#[test]
fn not_one_part_a_rank_is_refused() {
    let error: RunError<FabricError> =
        ranks(2, 1).run(|member| member.exchange(Group::All, "weights", vec![vec![]])).unwrap_err();
    let Cause::Error(FabricError::Parts { given: 1, ranks: 2, .. }) = error.cause else {
        panic!("{error}")
    };
}

#[test]
fn a_rank_is_a_member_of_every_topology_that_is_large_enough() {
    let world = World::new(&[topology(2, 2, 1), topology(1, 2, 1)]);
    assert_eq!(world.size(), 4);
    let all = world.run(|seat| {
        let mut places = Vec::new();
        for index in 0..3 {
            let Some(mut member) = seat.member(index) else { continue };
            let context = member.all_gather(Group::Context, "places", &[seat.index() as u8])?;
            places.push((member.rank().tp, member.rank().cp, context.concat()));
        }
        let whole = seat.all_gather("all", &[seat.index() as u8])?.concat();
        assert_eq!(whole, [0, 1, 2, 3]);
        Ok::<_, FabricError>(places)
    });
    let all = all.unwrap();
    assert_eq!(all[0], [(0, 0, vec![0, 2]), (0, 0, vec![0, 1])]);
    assert_eq!(all[1], [(1, 0, vec![1, 3]), (0, 1, vec![0, 1])]);
    assert_eq!(all[3], [(1, 1, vec![1, 3])]);
}

/// Ranks 0 and 1 wait in the rollout's topology, 2 and 3 in the world, when rank 0 fails.
#[test]
fn a_failure_in_one_topology_ends_waits_in_the_others() {
    let error = World::new(&[topology(2, 2, 1), topology(2, 1, 1)])
        .run(|seat| {
            if seat.index() == 0 {
                seat.entering("a reward");
                return Err("the reward is NaN".to_string());
            }
            let waited = match seat.member(1) {
                Some(mut member) => member.all_gather(Group::Tensor, "tokens", &[]),
                None => seat.all_gather("rewards", &[]),
            };
            let message = waited.unwrap_err().to_string();
            assert!(message.contains("rank 0 failed at a reward"), "{message}");
            assert!(message.contains("the reward is NaN"), "{message}");
            Ok(())
        })
        .unwrap_err();
    assert_eq!((error.rank, &error.operation[..]), (0, "a reward"));
}

#[test]
fn other_names_of_an_exchange_diverge() {
    let error = ranks(2, 1)
        .run(|member| {
            let what = if member.index() == 0 { "tokens" } else { "log-probs" };
            member.all_gather(Group::Tensor, what, &[])
        })
        .unwrap_err();
    assert!(matches!(error.cause, Cause::Error(FabricError::Diverged { .. })), "{error}");
}
