//! Sums over rows, selections and copies.

use crate::rig::Rig;
use arena::ExecError;
use program::ops::{
    CacheWrite, Collective, CollectiveKind, ColumnSum, Copy, FoldRows, Group, PickRows,
};

const BIG: f32 = 16_777_216.0;

#[test]
fn column_sums_are_chains_and_folds_are_trees() {
    let column = [BIG, 1.0, 1.0, 1.0];
    let mut rig = Rig::new();
    let (x, out) = (rig.tokens(9, 1, &column), rig.out(1, 1));
    assert_eq!(rig.run(ColumnSum { x, out }).floats(out), [BIG]);
    let mut rig = Rig::new();
    let (x, out) = (rig.floats(1, &column), rig.out(1, 1));
    assert_eq!(rig.run(FoldRows { x, out }).floats(out), [BIG + 2.0]);
}

#[test]
fn rows_are_picked_copied_and_cached_by_number() {
    let x_values = [1., 2., 3., 4., 5., 6.];
    let mut rig = Rig::new();
    let (x, index, out) = (rig.floats(2, &x_values), rig.words(1, &[2, 0, 2]), rig.out(3, 2));
    assert_eq!(rig.run(PickRows { x, index, out }).floats(out), [5., 6., 1., 2., 5., 6.]);

    let mut rig = Rig::new();
    let (x, out) = (rig.floats(2, &x_values), rig.out(3, 2));
    assert_eq!(rig.run(Copy { x, out }).floats(out), x_values);

    let mut rig = Rig::new();
    let (x, slots) = (rig.floats(2, &x_values), rig.words(1, &[3, 1, 0]));
    let cache = rig.floats(2, &[9.0; 8]);
    let ran = rig.run(CacheWrite { x, slots, cache });
    assert_eq!(ran.floats(cache), [5., 6., 3., 4., 9., 9., 1., 2.]);
}

#[test]
fn numbers_outside_are_refused() {
    let mut rig = Rig::new();
    let (x, index, out) = (rig.floats(1, &[1., 2.]), rig.words(1, &[0, 2]), rig.out(2, 1));
    let error = rig.error(PickRows { x, index, out });
    assert_eq!(error, ExecError::RowOutside { what: "picked row", index: 2, limit: 2 });
    let mut rig = Rig::new();
    let (x, slots) = (rig.floats(1, &[1., 2.]), rig.words(1, &[0, 4]));
    let cache = rig.floats(1, &[9.0; 4]);
    let error = rig.error(CacheWrite { x, slots, cache });
    assert_eq!(error, ExecError::RowOutside { what: "cache slot", index: 4, limit: 4 });
}

#[test]
fn a_copy_keeps_the_element_type() {
    let mut rig = Rig::new();
    let (x, out) = (rig.words(1, &[1, u32::MAX]), rig.words(1, &[0, 0]));
    assert_eq!(rig.run(Copy { x, out }).words(out), [1, u32::MAX]);
    let mut rig = Rig::new();
    let (x, out) = (rig.floats(1, &[1.]), rig.halves(1, &[0.]));
    let error = rig.error(Copy { x, out });
    assert!(matches!(error, ExecError::Unsupported { op: "Copy", .. }), "{error}");
}

#[test]
fn collectives_are_refused() {
    let mut rig = Rig::new();
    let (x, out) = (rig.floats(1, &[1.]), rig.out(1, 1));
    let kind = CollectiveKind::GatherTokens;
    let error = rig.error(Collective { group: Group::Context, kind, x, out });
    assert!(matches!(error, ExecError::Unsupported { op: "Collective", .. }), "{error}");
}
