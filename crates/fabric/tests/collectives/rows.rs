use crate::rig::{Rig, context, ranks, run, tensor, try_run};
use fabric::{Cause, FabricError, Member, Movement};
use program::Axis;
use program::ops::{Collective, CollectiveKind};

#[test]
fn rows_come_from_the_owner_of_the_token() {
    // Shares 0..4, 4..6, 6..9, 9..12; in place, as the embedding uses it.
    let bounds = vec![0, 4, 6, 9, 12];
    let outs = run(ranks(4, 1), |member, rig| {
        let rank = member.rank().tp as f32;
        let ids = rig.words(&[11, 0, 5, 4, 6]);
        let rows: Vec<f32> = (0..5).flat_map(|t| [rank, 10.0 * rank + t as f32]).collect();
        let x = rig.floats(2, &rows);
        tensor(CollectiveKind::OwnerRows { ids, bounds: bounds.clone() }, x, x)
    });
    for (rank, (out, bytes)) in outs.into_iter().enumerate() {
        assert_eq!(out, [3., 30., 0., 1., 1., 12., 1., 13., 2., 24.]);
        let foreign = 5 - [1, 2, 1, 1][rank];
        assert_eq!(bytes, foreign * 8);
    }
}

#[test]
fn a_token_of_no_share_is_refused() {
    let error = try_run(
        ranks(2, 1),
        |_, rig| {
            let (ids, x) = (rig.words(&[3, 8]), rig.floats(1, &[0.0, 0.0]));
            tensor(CollectiveKind::OwnerRows { ids, bounds: vec![0, 4, 8] }, x, x)
        },
        |_| (0, 0),
    )
    .unwrap_err();
    let Cause::Error(FabricError::NoOwner { row: 1, id: 8, rows: 8, .. }) = error.cause else {
        panic!("{error}")
    };
}

/// Live rows of a rank that holds `capacity` of `all` tokens.
fn live(member: &Member<'_>, capacity: usize, all: usize) -> (usize, usize) {
    (all.saturating_sub(member.rank().cp * capacity).min(capacity), all)
}

/// Rank r's token t is `[r, t]`.
fn gather(member: &Member<'_>, rig: &mut Rig, rows: usize, all: usize) -> Collective {
    let rank = member.rank().cp as f32;
    let values: Vec<f32> = (0..rows).flat_map(|t| [rank, t as f32]).collect();
    let x = rig.on(Axis::Tokens, 3, 2, &values);
    let out = rig.on(Axis::AllTokens, 12, 2, &vec![f32::NAN; all * 2]);
    context(CollectiveKind::GatherTokens, x, out)
}

#[test]
fn tokens_of_every_rank_in_row_order_as_far_as_they_are_live() {
    // Four ranks of capacity 3: full, one short, one rank partly and one wholly empty, one token.
    for all in [12, 11, 7, 6, 1] {
        let outs = try_run(
            ranks(1, 4),
            |member, rig| gather(member, rig, live(member, 3, all).0, all),
            |member| live(member, 3, all),
        )
        .unwrap();
        let wanted: Vec<f32> = (0..all).flat_map(|t| [(t / 3) as f32, (t % 3) as f32]).collect();
        for (rank, (out, bytes)) in outs.into_iter().enumerate() {
            assert_eq!(out, wanted);
            let mine = all.saturating_sub(3 * rank).min(3);
            assert_eq!(bytes, 8 * (all - mine) as u64);
        }
    }
}

#[test]
fn a_rank_with_other_live_rows_than_its_share_is_refused() {
    let error = try_run(
        ranks(1, 2),
        |member, rig| {
            let rows = if member.index() == 1 { 2 } else { 3 };
            gather(member, rig, rows, 6)
        },
        |member| (if member.index() == 1 { 2 } else { 3 }, 6),
    )
    .unwrap_err();
    let Cause::Error(FabricError::Shape { rank: 1, rows: 2, expected_rows: 3, .. }) = error.cause
    else {
        panic!("{error}")
    };
}

#[test]
fn contributions_are_collected_apart() {
    let ends = ranks(4, 1)
        .run(|member| {
            let mut rig = Rig::default();
            let x = rig.floats(2, &[member.index() as f32, 0.5]);
            let outs: Vec<_> = (0..4).map(|_| rig.out(1, 2)).collect();
            let op = tensor(CollectiveKind::Collect { outs: outs.clone() }, x, x);
            let local = rig.build();
            member.collective(&op, &local.frame())?;
            let traffic = member.traffic();
            assert_eq!(traffic.bytes(Movement::Collect), traffic.total());
            let values: Vec<f32> =
                outs.iter().flat_map(|&out| local.frame().load_f32(out)).collect();
            Ok::<_, FabricError>((values, traffic.total()))
        })
        .unwrap();
    for end in ends {
        assert_eq!(end, (vec![0., 0.5, 1., 0.5, 2., 0.5, 3., 0.5], 24));
    }
}
