//! Attention from segment tables, its two passes over context ranks, and its errors.

use arena::ExecError;
use cpu::Precision;
use program::buffer::Live;
use program::ops::*;
use program::{Axis, DType, Op};

use crate::support::{Case, Data, executors};

const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::Bf16Tiles];

/// (first query row, rows, position, key row).
type Table = Vec<[u32; 4]>;

fn case(tokens: usize, table: &Table) -> Case {
    let segments = table.len();
    Case::new(Live {
        tokens,
        all_tokens: tokens,
        segments,
        all_segments: segments,
        ..Live::default()
    })
}

fn segments(case: &mut Case, table: &Table) -> program::BufferId {
    let words: Vec<u32> = table.iter().flatten().copied().collect();
    case.buffer(DType::U32, (table.len(), 4), Axis::Segments, Data::Words(words))
}

/// Sequences packed one after another.
fn packed(lengths: &[u32]) -> Table {
    let mut row = 0;
    lengths
        .iter()
        .map(|&rows| {
            row += rows;
            [row - rows, rows, 0, row - rows]
        })
        .collect()
}

#[test]
fn packed_sequences() {
    for (lengths, heads, kv_heads, head_dim, window) in [
        (&[1, 70, 3, 130][..], 6, 2, 20, None),
        (&[200], 3, 3, 64, Some(65)),
        (&[65, 64, 0, 63], 4, 1, 16, Some(7)),
    ] {
        let table = packed(lengths);
        let tokens = lengths.iter().sum::<u32>() as usize;
        let mut case = case(tokens, &table);
        let [q, out, dout, dq] = [(); 4].map(|()| case.tokens(tokens + 2, heads * head_dim));
        let [k, v, dk, dv] = [(); 4].map(|()| case.tokens(tokens + 2, kv_heads * head_dim));
        let lse = case.buffer(
            DType::F32,
            (tokens + 2, heads),
            Axis::Tokens,
            Data::Floats(vec![2.5; (tokens + 2) * heads]),
        );
        let segments = segments(&mut case, &table);
        let scale = 0.31;
        let forward = Attention {
            q,
            k,
            v,
            out,
            lse: Some(lse),
            segments,
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            keys: Keys::Rows,
        };
        let backward = AttentionBackward {
            q,
            k,
            v,
            out,
            lse,
            dout,
            dq,
            dk,
            dv,
            segments,
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            first_row: 0,
        };
        for precision in PRECISIONS {
            case.check_in(forward.clone(), precision);
            case.check_in(Attention { lse: None, ..forward.clone() }, precision);
            case.check_in(backward.clone(), precision);
        }
    }
}

#[test]
fn pages_of_sequences_at_many_positions() {
    let table = vec![[0, 1, 99, 0], [1, 1, 0, 2], [2, 5, 60, 3], [7, 1, 1100, 5]];
    // The pages of four sequences, out of order; the first page of the third is the first sequence's too.
    let pages: Vec<u32> =
        [9, 3].into_iter().chain([21]).chain([9, 0]).chain((1..19).map(|i| (i * 7) % 22)).collect();
    let mut case = case(8, &table);
    case.live.blocks = pages.len();
    let (q, out) = (case.tokens(9, 4 * 16), case.tokens(9, 4 * 16));
    let (k, v) = (case.fixed(22 * PAGE, 2 * 16), case.fixed(22 * PAGE, 2 * 16));
    let segments = segments(&mut case, &table);
    let blocks = case.buffer(DType::U32, (pages.len(), 1), Axis::Blocks, Data::Words(pages));
    for precision in PRECISIONS {
        case.check_in(
            Attention {
                q,
                k,
                v,
                out,
                lse: None,
                segments,
                heads: 4,
                kv_heads: 2,
                head_dim: 16,
                scale: 0.25,
                window: None,
                keys: Keys::Paged { table: blocks },
            },
            precision,
        );
    }
}

#[test]
fn pages_outside_the_table_or_the_cache_are_refused() {
    for (pages, what, index, limit) in [
        (vec![0], "block table entry of a segment", 1, 1),
        (vec![0, 2], "key row of a segment", 2 * PAGE + 4, 2 * PAGE),
    ] {
        let table = vec![[0, 4, 65, 0]];
        let mut case = case(4, &table);
        case.live.blocks = pages.len();
        let [q, out] = [(); 2].map(|()| case.tokens(4, 16));
        let [k, v] = [(); 2].map(|()| case.fixed(2 * PAGE, 16));
        let segments = segments(&mut case, &table);
        let blocks = case.buffer(DType::U32, (pages.len(), 1), Axis::Blocks, Data::Words(pages));
        let (heads, kv_heads, head_dim, scale, lse, window) = (1, 1, 16, 0.25, None, None);
        let keys = Keys::Paged { table: blocks };
        let op: Op = Attention {
            q,
            k,
            v,
            out,
            lse,
            segments,
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            keys,
        }
        .into();
        case.check(op.clone());
        for (_, mut cpu) in executors(Precision::F32) {
            let error = ExecError::RowOutside { what, index, limit };
            assert_eq!(case.run(&op, &mut cpu), Err(error));
        }
    }
}

/// Gradients of a rank's rows, in two passes, are the rows of the one-pass gradients.
#[test]
fn context_ranks_get_their_rows_of_the_gradients() {
    const TOKENS: usize = 210;
    let (heads, kv_heads, head_dim) = (4, 2, 24);
    let table = packed(&[50, 137, 23]);
    let run = |first: usize, own: usize, capacity: usize, cpu: &mut cpu::Cpu| {
        let mut case = Case::new(Live {
            tokens: own,
            all_tokens: TOKENS,
            all_segments: table.len(),
            ..Live::default()
        });
        let all = |case: &mut Case, cols| {
            case.buffer(DType::F32, (TOKENS, cols), Axis::AllTokens, Data::Random)
        };
        let [q, out, dout] = [(); 3].map(|()| all(&mut case, heads * head_dim));
        let [k, v] = [(); 2].map(|()| all(&mut case, kv_heads * head_dim));
        let lse = Data::Floats(vec![2.5; TOKENS * heads]);
        let lse = case.buffer(DType::F32, (TOKENS, heads), Axis::AllTokens, lse);
        let words = Data::Words(table.iter().flatten().copied().collect());
        let segments = case.buffer(DType::U32, (3, 4), Axis::AllSegments, words);
        let dq = case.tokens(capacity, heads * head_dim);
        let [dk, dv] = [(); 2].map(|()| case.tokens(capacity, kv_heads * head_dim));
        let op: Op = AttentionBackward {
            q,
            k,
            v,
            out,
            lse,
            dout,
            dq,
            dk,
            dv,
            segments,
            heads,
            kv_heads,
            head_dim,
            scale: 0.2,
            window: None,
            first_row: first,
        }
        .into();
        let bits = case.run(&op, cpu).unwrap();
        [dq, dk, dv].map(|id| {
            let cols = case.program.buffer(id).cols;
            bits[id.0 as usize][..own * cols].to_vec()
        })
    };
    for (settings, mut cpu) in executors(Precision::F32) {
        let whole = run(0, TOKENS, TOKENS, &mut cpu);
        for (first, own, capacity) in
            [(0, 105, 105), (105, 105, 105), (53, 53, 53), (159, 51, 53), (212, 0, 53)]
        {
            let mine = run(first, own, capacity, &mut cpu);
            for (whole, mine) in whole.iter().zip(&mine) {
                let cols = whole.len() / TOKENS;
                let start = first.min(TOKENS) * cols;
                assert!(whole[start..start + own * cols] == *mine, "{settings:?}, from {first}");
            }
        }
    }
}

#[test]
fn segments_outside_their_buffers_are_refused() {
    for (table, what, index, limit) in [
        (vec![[0, 9, 0, 0]], "query row of a segment", 8, 8),
        (vec![[0, 4, 0, 0], [4, 4, 3, 4]], "key row of a segment", 10, 8),
    ] {
        let mut case = case(8, &table);
        let [q, k, v, out] = [(); 4].map(|()| case.tokens(8, 16));
        let segments = segments(&mut case, &table);
        let (heads, kv_heads, head_dim, scale) = (1, 1, 16, 0.25);
        let (lse, window, keys) = (None, None, Keys::Rows);
        let op: Op = Attention {
            q,
            k,
            v,
            out,
            lse,
            segments,
            heads,
            kv_heads,
            head_dim,
            scale,
            window,
            keys,
        }
        .into();
        case.check(op.clone());
        for (_, mut cpu) in executors(Precision::F32) {
            let error = ExecError::RowOutside { what, index, limit };
            assert_eq!(case.run(&op, &mut cpu), Err(error));
        }
    }
}
