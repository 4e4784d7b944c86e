//! No test here waits for a time: a hang would be the failure.

use crate::rig::{Local, Rig, context, ranks, tensor};
use fabric::{Cause, FabricError, Member, RunError};
use program::BufferId;
use program::ops::{Collective, CollectiveKind};
use std::sync::Mutex;

const SUM: CollectiveKind =
    CollectiveKind::TreeSum { leaves: 4, alpha: 1.0, accumulate: false, bias: None };

/// A rank with two buffers of one float.
fn local() -> (Local, BufferId, BufferId) {
    let mut rig = Rig::default();
    let (x, out) = (rig.floats(1, &[1.0]), rig.out(1, 1));
    (rig.build(), x, out)
}

fn sum(member: &mut Member<'_>) -> Result<(), FabricError> {
    let (local, x, out) = local();
    member.collective(&tensor(SUM, x, out), &local.frame())
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the log-prob of row 3 is NaN")]
    Own,
    #[error(transparent)]
    Fabric(#[from] FabricError),
}

#[test]
fn a_rank_that_fails_ends_the_waits_of_all_with_its_name_and_operation() {
    let seen = Mutex::new(Vec::new());
    let error = ranks(4, 1)
        .run(|member| {
            sum(member)?;
            member.entering("LogProb (operation 17)");
            if member.index() == 2 {
                return Err(Failure::Own);
            }
            let result = sum(member);
            seen.lock().unwrap().push(result.clone().unwrap_err().to_string());
            Ok::<(), Failure>(result?)
        })
        .unwrap_err();
    assert_eq!((error.rank, &error.operation[..]), (2, "LogProb (operation 17)"));
    assert!(matches!(error.cause, Cause::Error(Failure::Own)));
    let seen = seen.into_inner().unwrap();
    assert_eq!(seen.len(), 3);
    for message in seen {
        assert!(message.contains("rank 2 failed at LogProb (operation 17)"), "{message}");
        assert!(message.contains("the log-prob of row 3 is NaN"), "{message}");
        assert!(message.contains("tensor TreeSum of buffer 0"), "{message}");
    }
}

#[test]
fn a_rank_that_panics_ends_the_run_with_its_message() {
    let error: RunError<FabricError> = ranks(2, 2)
        .run(|member| {
            if member.index() == 3 {
                panic!("row 9 of 8");
            }
            sum(member)?;
            let (local, x, _) = local();
            member.collective(
                &context(CollectiveKind::Collect { outs: vec![x, x] }, x, x),
                &local.frame(),
            )
        })
        .unwrap_err();
    assert_eq!(error.rank, 3);
    let Cause::Panic(message) = &error.cause else { panic!("{error}") };
    assert_eq!(message, "row 9 of 8");
    assert!(error.to_string().contains("rank 3 failed at its first operation: panic: row 9 of 8"));
}

fn diverged(error: RunError<FabricError>) -> (usize, String, usize, String) {
    match error.cause {
        Cause::Error(FabricError::Diverged { rank, operation, other, other_operation }) => {
            (rank, operation, other, other_operation)
        }
        cause => panic!("{cause}"),
    }
}

#[test]
fn ranks_at_different_operations_diverge_by_name() {
    let error = ranks(4, 1)
        .run(|member| {
            sum(member)?;
            if member.index() != 1 {
                return sum(member);
            }
            let mut rig = Rig::default();
            let x = rig.floats(1, &[1.0]);
            let outs = (0..4).map(|_| rig.out(1, 1)).collect();
            let local = rig.build();
            member.collective(&tensor(CollectiveKind::Collect { outs }, x, x), &local.frame())
        })
        .unwrap_err();
    let (rank, operation, other, other_operation) = diverged(error);
    assert_eq!((rank, other), (0, 1));
    assert!(operation.starts_with("tensor TreeSum of buffer 0 (4 leaves"), "{operation}");
    assert_eq!(other_operation, "tensor Collect of buffer 0");
}

#[test]
fn the_same_kind_with_other_settings_diverges_too() {
    let error = ranks(2, 1)
        .run(|member| {
            let (local, x, out) = local();
            let alpha = if member.index() == 0 { 1.0 } else { 2.0 };
            let kind = CollectiveKind::TreeSum { leaves: 2, alpha, accumulate: false, bias: None };
            member.collective(&tensor(kind, x, out), &local.frame())
        })
        .unwrap_err();
    let (_, operation, _, other) = diverged(error);
    assert!(operation.contains("alpha 1") && other.contains("alpha 2"), "{operation} / {other}");
}

#[test]
fn a_rank_that_has_ended_is_not_waited_for() {
    let error = ranks(4, 1)
        .run(|member| if member.index() == 3 { Ok(()) } else { sum(member) })
        .unwrap_err();
    let (_, operation, other, other_operation) = diverged(error);
    assert!(operation.starts_with("tensor TreeSum"), "{operation}");
    assert_eq!((other, &other_operation[..]), (3, "the end of its program"));
}

#[test]
fn ranks_that_wait_for_each_other_in_different_groups_diverge() {
    // Ranks 0 and 3 meet in their tensor groups, 1 and 2 in their context groups: none can go on.
    let error = ranks(2, 2)
        .run(|member| {
            if [0, 3].contains(&member.index()) {
                return sum(member);
            }
            let mut rig = Rig::default();
            let (x, a, b) = (rig.floats(1, &[1.0]), rig.out(1, 1), rig.out(1, 1));
            let local = rig.build();
            let kind = CollectiveKind::Collect { outs: vec![a, b] };
            member.collective(&context(kind, x, x), &local.frame())
        })
        .unwrap_err();
    let (_, operation, _, other) = diverged(error);
    assert!(
        operation.starts_with("tensor") && other.starts_with("context"),
        "{operation} / {other}"
    );
}

#[test]
fn an_ignored_failure_is_not_a_success() {
    let error = ranks(2, 1)
        .run(|member| {
            if member.index() == 0 {
                // A buffer of another shape than rank 1's.
                let mut rig = Rig::default();
                let (x, out) = (rig.floats(1, &[1.0, 2.0]), rig.out(2, 1));
                let _ = member.collective(&tensor(SUM, x, out), &rig.build().frame());
            } else {
                let _ = sum(member);
            }
            Ok::<(), FabricError>(())
        })
        .unwrap_err();
    let Cause::Ignored(FabricError::Shape { .. }) = error.cause else { panic!("{error}") };
}

#[test]
fn operations_lowered_for_other_degrees_are_refused() {
    let run = |kind: fn(BufferId) -> CollectiveKind| {
        ranks(2, 1)
            .run(|member| {
                let (local, x, out) = local();
                member.collective(&tensor(kind(out), x, out), &local.frame())
            })
            .unwrap_err()
    };
    let kinds: [fn(BufferId) -> CollectiveKind; 3] = [
        |out| CollectiveKind::Collect { outs: vec![out] },
        |_| CollectiveKind::GatherColumns { ranges: std::iter::once(0..1).collect() },
        |out| CollectiveKind::OwnerRows { ids: out, bounds: vec![0, 1] },
    ];
    for kind in kinds {
        let error = run(kind);
        let Cause::Error(FabricError::Degree { lowered: 1, ranks: 2, .. }) = error.cause else {
            panic!("{error}")
        };
    }
}

#[test]
fn only_floats_are_moved() {
    let error = ranks(2, 1)
        .run(|member| {
            let mut rig = Rig::default();
            let (x, out) = (rig.words(&[1]), rig.out(1, 1));
            let op: Collective = tensor(SUM, x, out);
            member.collective(&op, &rig.build().frame())
        })
        .unwrap_err();
    let Cause::Error(FabricError::NotFloat { buffer, .. }) = error.cause else { panic!("{error}") };
    assert_eq!(buffer, "buffer 0");
}

#[test]
fn groups_meet_apart_and_many_times() {
    // Two tensor groups and two context groups, a hundred rounds, ranks at their own pace.
    let ends = ranks(2, 2)
        .run(|member| {
            let mut total = 0.0;
            for round in 0..100u32 {
                let mut rig = Rig::default();
                let value = (round as usize * 10 + member.index()) as f32;
                let (x, out) = (rig.floats(1, &[value]), rig.out(1, 1));
                let local = rig.build();
                if (round as usize + member.index()).is_multiple_of(3) {
                    std::thread::yield_now();
                }
                let kind = CollectiveKind::TreeSum {
                    leaves: 2,
                    alpha: 1.0,
                    accumulate: false,
                    bias: None,
                };
                let op = if round % 2 == 0 { tensor(kind, x, out) } else { context(kind, x, out) };
                member.collective(&op, &local.frame())?;
                total += local.frame().load_f32(out)[0];
            }
            Ok::<f32, FabricError>(total)
        })
        .unwrap();
    // Tensor rounds add ranks (0, 1) or (2, 3), context rounds (0, 2) or (1, 3).
    let rounds: f32 = (0..100).map(|round| 20.0 * round as f32).sum();
    assert_eq!(ends, [(1, 2), (1, 4), (5, 2), (5, 4)].map(|(t, c)| rounds + 50.0 * (t + c) as f32));
}
