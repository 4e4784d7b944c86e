use crate::rig::{context, ranks, run, try_run};
use program::Axis;
use program::ops::CollectiveKind;
use std::ops::Range;

fn ranges() -> Vec<Range<usize>> {
    vec![0..2, 2..3, 3..5]
}

#[test]
fn each_rank_gets_its_columns_of_every_token() {
    // Three ranks of capacity 2, five live tokens: token t, column c is 10 t + c.
    let outs = try_run(
        ranks(1, 3),
        |member, rig| {
            let rank = member.rank().cp;
            let rows = if rank == 2 { 1 } else { 2 };
            let row = |t: usize| (0..5).map(move |c| (10 * (2 * rank + t) + c) as f32);
            let values: Vec<f32> = (0..rows).flat_map(row).collect();
            let x = rig.on(Axis::Tokens, 2, 5, &values);
            let mine = ranges()[rank].len();
            let out = rig.on(Axis::AllTokens, 6, mine, &vec![f32::NAN; 5 * mine]);
            context(CollectiveKind::ExchangeColumns { ranges: ranges() }, x, out)
        },
        |member| (if member.rank().cp == 2 { 1 } else { 2 }, 5),
    )
    .unwrap();
    for ((out, bytes), (columns, foreign)) in
        outs.into_iter().zip(ranges().into_iter().zip([3, 3, 4]))
    {
        let floats = foreign * columns.len();
        let wanted: Vec<f32> =
            (0..5).flat_map(|t| columns.clone().map(move |c| (10 * t + c) as f32)).collect();
        assert_eq!(out, wanted);
        assert_eq!(bytes, 4 * floats as u64);
    }
}

#[test]
fn column_slices_make_the_whole() {
    let outs = run(ranks(1, 3), |member, rig| {
        let mine = ranges()[member.rank().cp].clone();
        let cols = mine.len();
        let values: Vec<f32> =
            (0..4).flat_map(|row| mine.clone().map(move |c| (10 * row + c) as f32)).collect();
        let (x, out) = (rig.floats(cols, &values), rig.out(4, 5));
        context(CollectiveKind::GatherColumns { ranges: ranges() }, x, out)
    });
    let wanted: Vec<f32> =
        (0..4).flat_map(|row| (0..5).map(move |c| (10 * row + c) as f32)).collect();
    for ((out, bytes), columns) in outs.into_iter().zip(ranges()) {
        assert_eq!(out, wanted);
        assert_eq!(bytes, (4 * 4 * (5 - columns.len())) as u64);
    }
}

#[test]
fn one_column_is_replicated() {
    // Fewer columns than ranks: both make the same slice.
    let outs = run(ranks(1, 2), |_, rig| {
        let (x, out) = (rig.floats(1, &[1., 2.]), rig.out(2, 1));
        context(CollectiveKind::GatherColumns { ranges: vec![0..1, 0..1] }, x, out)
    });
    assert!(outs.iter().all(|(out, _)| *out == [1., 2.]));
}
