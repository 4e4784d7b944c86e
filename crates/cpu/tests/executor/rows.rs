//! Operations that select rows, and their errors, against the oracle.

use crate::support::{Case, Data, Rng, executors, live};
use arena::ExecError;
use cpu::Precision;
use program::buffer::Live;
use program::ops::*;
use program::{Axis, BufferId, DType, Op};

/// Every executor fails as `expected` says.
fn fails(case: &mut Case, op: impl Into<Op>, expected: &ExecError) {
    let op = op.into();
    for (settings, mut cpu) in executors(Precision::F32) {
        assert_eq!(case.run(&op, &mut cpu).as_ref(), Err(expected), "{settings:?}");
    }
}

#[test]
fn embeddings() {
    for (dtype, cols) in [(DType::F32, 7), (DType::Bf16, 7), (DType::F32, 64), (DType::Bf16, 40)] {
        let mut rng = Rng::new(9);
        let mut case = Case::new(live(900));
        // Ids repeat; a share in the middle of the vocabulary lacks some.
        let ids = case.words((0..910).map(|_| rng.below(60) as u32).collect());
        let table = case.weight(dtype, 64, cols);
        let out = case.tokens(910, cols);
        case.check(Embed { ids, table, first: 0, words: 60, out, scale: 1.0 });
        case.check(Embed { ids, table, first: 0, words: 60, out, scale: 24.0 });
        let dtable = case.fixed(64, cols);
        for (zero, scale) in [(true, 1.0), (false, 24.0)] {
            let op = EmbedBackward { ids, dout: out, dtable, first: 0, words: 60, scale, zero };
            case.check(op.clone());
            case.check(EmbedBackward { first: 20, words: 64, ..op });
        }
    }
}

#[test]
fn a_share_gives_zeros_for_the_words_of_others() {
    let mut case = Case::new(live(4));
    let ids = case.words(vec![3, 8, 15, 40]);
    let (table, out) = (case.weight(DType::F32, 8, 5), case.tokens(4, 5));
    let op = Embed { ids, table, first: 8, words: 8, out, scale: 1.0 };
    let owners = CollectiveKind::OwnerRows { ids, bounds: vec![0, 8, 16, 64] };
    let exchange = Collective { group: Group::Tensor, kind: owners, x: out, out };
    let (_, mut cpu) = executors(Precision::F32).remove(0);
    // The exchange that follows tells that the share is one of several.
    let mut program = case.program.clone();
    program.ops = vec![op.clone().into(), exchange.into()];
    program.op_layers = vec![None; 2];
    let store = program::Store::new(
        &program::Graph::default(),
        program::Topology::single(),
        program::Rank::FIRST,
        program::store::StoreOptions::default(),
    );
    let plan = program::Plan::new(&store, &program, 0);
    let memory = arena::Memory::new(&plan.ledger).unwrap();
    let frame = arena::Frame::new(&program, &plan, &memory, live(4));
    frame.store_u32(ids, &[3, 8, 15, 40]);
    frame.store_f32(table, &(1..=40).map(|i| i as f32).collect::<Vec<_>>());
    frame.store_f32(out, &[7.0; 20]);
    arena::Executor::run(&mut cpu, &op.into(), &frame).unwrap();
    let expected: Vec<f32> = [0.0; 5]
        .into_iter()
        .chain((1..=5).map(|i| i as f32))
        .chain((36..=40).map(|i| i as f32))
        .chain([0.0; 5])
        .collect();
    assert_eq!(frame.load_f32(out), expected);
}

#[test]
fn an_id_outside_the_vocabulary_is_refused() {
    let mut case = Case::new(live(3));
    let ids = case.words(vec![3, 61, 0]);
    let (table, out) = (case.weight(DType::F32, 64, 5), case.tokens(3, 5));
    let padded = Embed { ids, table, first: 0, words: 60, out, scale: 1.0 };
    let error = ExecError::TokenOutsideVocabulary { row: 1, id: 61, vocab: 60 };
    case.check(padded.clone());
    fails(&mut case, padded, &error);
    let dtable = case.fixed(64, 5);
    let (zero, scale) = (true, 1.0);
    let backward = EmbedBackward { ids, dout: out, dtable, first: 0, words: 60, scale, zero };
    case.check(backward.clone());
    fails(&mut case, backward, &error);
}

#[test]
fn an_id_outside_a_vocabulary_without_padding_is_refused() {
    let mut case = Case::new(live(2));
    let ids = case.words(vec![63, 64]);
    let (table, out) = (case.weight(DType::F32, 64, 5), case.tokens(2, 5));
    let error = ExecError::TokenOutsideVocabulary { row: 1, id: 64, vocab: 64 };
    fails(&mut case, Embed { ids, table, first: 0, words: 64, out, scale: 1.0 }, &error);
}

fn picked(case: &mut Case, index: Vec<u32>) -> BufferId {
    case.buffer(DType::U32, (index.len(), 1), Axis::Picked, Data::Words(index))
}

#[test]
fn picks() {
    let mut case = Case::new(Live { picked: 3, ..live(6) });
    let x = case.tokens(8, 33);
    let index = picked(&mut case, vec![5, 0, 5, 7]);
    let out = case.buffer(DType::F32, (4, 33), Axis::Picked, Data::Random);
    case.check(PickRows { x, index, out });
}

#[test]
fn a_picked_row_that_is_not_live_is_refused() {
    let mut case = Case::new(Live { picked: 2, ..live(6) });
    let x = case.tokens(8, 3);
    let index = picked(&mut case, vec![5, 6]);
    let out = case.buffer(DType::F32, (2, 3), Axis::Picked, Data::Random);
    let error = ExecError::RowOutside { what: "picked row", index: 6, limit: 6 };
    case.check(PickRows { x, index, out });
    fails(&mut case, PickRows { x, index, out }, &error);
}

#[test]
fn cache_writes() {
    let mut case = Case::new(live(5));
    let x = case.tokens(6, 20);
    let slots = case.words(vec![9, 0, 3, 9, 4, 100]);
    let cache = case.fixed(10, 20);
    case.check(CacheWrite { x, slots, cache });
}

#[test]
fn a_slot_outside_the_cache_is_refused() {
    let mut case = Case::new(live(2));
    let x = case.tokens(2, 20);
    let slots = case.words(vec![9, 10]);
    let cache = case.fixed(10, 20);
    let error = ExecError::RowOutside { what: "cache slot", index: 10, limit: 10 };
    case.check(CacheWrite { x, slots, cache });
    fails(&mut case, CacheWrite { x, slots, cache }, &error);
}

#[test]
fn a_copy_that_changes_the_type_and_a_collective_are_refused() {
    let mut case = Case::new(live(2));
    let (x, out) = (case.weight(DType::F32, 2, 2), case.weight(DType::Bf16, 2, 2));
    let why = "it changes the element type: a copy keeps it";
    fails(&mut case, Copy { x, out }, &ExecError::Unsupported { op: "Copy", why });
    let kind = CollectiveKind::GatherTokens;
    let why = "a collective takes several ranks: the fabric that joins them runs it";
    let error = ExecError::Unsupported { op: "Collective", why };
    fails(&mut case, Collective { group: Group::Tensor, kind, x, out: x }, &error);
}
