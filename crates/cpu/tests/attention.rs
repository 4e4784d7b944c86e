//! Attention against its reference, byte for byte.

use std::ops::Range;

use cpu::attention::{
    AttentionError, BLOCK, Backward, Contiguous, Forward, Gradients, Heads, KeyBlocks, Rows,
    RowsMut, Segment, backward, backward_workspace_bytes, delta, forward, forward_workspace_bytes,
    reference,
};
use cpu::{Arithmetic, Context, Isa};

/// xorshift64*, in (-1, 1) with 24 bits.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 40) as f32 / (1 << 23) as f32) - 1.0
        })
        .collect()
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// Queries, keys and values as columns of one buffer.
struct Case {
    heads: Heads,
    window: Option<usize>,
    segments: Vec<Segment>,
    /// Row of each segment's key 0.
    bases: Vec<usize>,
    rows: usize,
    stride: usize,
    qkv: Vec<f32>,
    dout: Vec<f32>,
}

impl Case {
    /// Sequences one after another, all their queries.
    fn packed(heads: Heads, window: Option<usize>, lengths: &[usize]) -> Self {
        let mut row = 3;
        let mut segments = Vec::new();
        for &queries in lengths {
            segments.push(Segment { query_row: row, queries, position: 0 });
            row += queries;
        }
        let bases = segments.iter().map(|s| s.query_row).collect();
        Self::new(heads, window, segments, bases, row)
    }

    fn new(
        heads: Heads,
        window: Option<usize>,
        segments: Vec<Segment>,
        bases: Vec<usize>,
        rows: usize,
    ) -> Self {
        let stride = (heads.query + 2 * heads.key) * heads.dim + 5;
        let mut qkv = numbers(17, rows * stride);
        // Scores of some size, so that the soft-max is not flat, and zeros of both signs.
        qkv.iter_mut().for_each(|x| *x *= 3.0);
        qkv.iter_mut().step_by(101).for_each(|x| *x *= 0.0);
        let dout = numbers(23, rows * heads.query * heads.dim);
        Self { heads, window, segments, bases, rows, stride, qkv, dout }
    }

    fn input<'a>(&'a self, blocks: &'a dyn KeyBlocks) -> Forward<'a> {
        let Heads { query, key, dim } = self.heads;
        let columns = |from: usize| Rows { data: &self.qkv[from..], row_stride: self.stride };
        Forward {
            heads: self.heads,
            scale: 1.0 / (dim as f32).sqrt(),
            window: self.window,
            q: columns(0),
            k: columns(query * dim),
            v: columns((query + key) * dim),
            segments: &self.segments,
            blocks,
        }
    }

    fn wide(&self) -> usize {
        self.heads.query * self.heads.dim
    }

    fn run(&self, context: &Context, input: &Forward<'_>) -> (Vec<f32>, Vec<f32>) {
        let mut out = vec![0.5; self.rows * self.wide()];
        let mut lse = vec![0.5; self.rows * self.heads.query];
        let bytes = forward_workspace_bytes(&self.heads, context.threads());
        let rows = RowsMut { data: &mut out, row_stride: self.wide() };
        forward(context, input, rows, Some(&mut lse), &mut vec![0xff; bytes]).unwrap();
        (out, lse)
    }

    fn reference(&self) -> (Vec<f32>, Vec<f32>) {
        let blocks = Contiguous(&self.bases);
        let mut out = vec![0.5; self.rows * self.wide()];
        let mut lse = vec![0.5; self.rows * self.heads.query];
        reference::forward(&self.input(&blocks), &mut out, self.wide(), &mut lse);
        (out, lse)
    }
}

fn contexts() -> Vec<Context> {
    Isa::available()
        .into_iter()
        .flat_map(|isa| [1, 2, 3].map(|t| Context::new(isa, Arithmetic::F32, t).unwrap()))
        .collect()
}

fn check_forward(case: &Case) {
    let (out, lse) = case.reference();
    let blocks = Contiguous(&case.bases);
    for context in contexts() {
        let (got, got_lse) = case.run(&context, &case.input(&blocks));
        let what = format!("{:?} {:?} {:?}", case.heads, case.window, context);
        assert!(same(&got, &out), "out: {what}");
        assert!(same(&got_lse, &lse), "lse: {what}");
    }
}

const SMALL: Heads = Heads { query: 4, key: 2, dim: 8 };
const ODD: Heads = Heads { query: 3, key: 1, dim: 20 };
const REAL: Heads = Heads { query: 3, key: 1, dim: 64 };

#[test]
fn forward_of_packed_sequences() {
    check_forward(&Case::packed(SMALL, None, &[1, 63, 64, 65, 200]));
    check_forward(&Case::packed(ODD, None, &[7, 130]));
    check_forward(&Case::packed(REAL, None, &[129, 70]));
    check_forward(&Case::packed(Heads { query: 2, key: 2, dim: 128 }, None, &[90]));
}

#[test]
fn forward_with_a_window() {
    for window in [1, 2, 63, 64, 100] {
        check_forward(&Case::packed(SMALL, Some(window), &[200, 5]));
    }
    check_forward(&Case::packed(REAL, Some(1100), &[1300]));
}

#[test]
fn forward_over_several_spans() {
    check_forward(&Case::packed(Heads { query: 2, key: 1, dim: 16 }, None, &[2100]));
}

fn take(rows: &[f32], range: Range<usize>, width: usize) -> &[f32] {
    &rows[range.start * width..range.end * width]
}

/// The whole sequence at once, in chunks, and query by query: the same bytes.
#[test]
fn chunks_and_decoding_change_nothing() {
    for (length, window) in [(150, None), (150, Some(40)), (1100, None)] {
        let heads = Heads { query: 2, key: 1, dim: 16 };
        let whole = Case::packed(heads, window, &[length]);
        let base = whole.bases.clone();
        let (out, lse) = whole.reference();
        let context = Context::new(Isa::best(), Arithmetic::F32, 2).unwrap();
        let blocks = Contiguous(&base);
        for chunk in [1, 7, 64, 100] {
            for first in (0..length).step_by(chunk) {
                let queries = chunk.min(length - first);
                let segments = [Segment { query_row: 3 + first, queries, position: first }];
                let input = Forward { segments: &segments, ..whole.input(&blocks) };
                let (got, got_lse) = whole.run(&context, &input);
                let rows = 3 + first..3 + first + queries;
                let wide = whole.wide();
                assert!(same(take(&got, rows.clone(), wide), take(&out, rows.clone(), wide)));
                assert!(same(take(&got_lse, rows.clone(), 2), take(&lse, rows, 2)));
            }
        }
    }
}

/// Keys scattered in pages.
struct Pages(Vec<usize>);

impl KeyBlocks for Pages {
    fn first_row(&self, _: usize, block: usize) -> usize {
        self.0[block]
    }
}

#[test]
fn pages_change_nothing() {
    let case = Case::packed(SMALL, None, &[200]);
    let (out, _) = case.reference();
    let context = Context::new(Isa::best(), Arithmetic::F32, 2).unwrap();
    let mut paged = Case { rows: 5 * BLOCK, ..Case::packed(SMALL, None, &[200]) };
    let pages = Pages(vec![4 * BLOCK, BLOCK, 3 * BLOCK, 0]);
    let mut qkv = vec![0.0; paged.rows * paged.stride];
    for position in 0..200 {
        let from = (3 + position) * case.stride;
        let row = pages.0[position / BLOCK] + position % BLOCK;
        let q = SMALL.query * SMALL.dim;
        let to = row * case.stride;
        qkv[to + q..to + case.stride].copy_from_slice(&case.qkv[from + q..from + case.stride]);
        let to = (3 + position) * case.stride;
        qkv[to..to + q].copy_from_slice(&case.qkv[from..from + q]);
    }
    paged.qkv = qkv;
    let (got, _) = paged.run(&context, &paged.input(&pages));
    let wide = case.wide();
    assert!(same(take(&got, 3..203, wide), take(&out, 3..203, wide)));
}

struct Grads {
    dq: Vec<f32>,
    dk: Vec<f32>,
    dv: Vec<f32>,
}

impl Case {
    fn narrow(&self) -> usize {
        self.heads.key * self.heads.dim
    }

    fn zeros(&self, value: f32) -> Grads {
        let of = |width: usize| vec![value; self.rows * width];
        Grads { dq: of(self.wide()), dk: of(self.narrow()), dv: of(self.narrow()) }
    }

    fn dout(&self) -> Rows<'_> {
        Rows { data: &self.dout, row_stride: self.wide() }
    }
}

fn check_backward(case: &Case) {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    for s in &case.segments {
        let middle = (s.queries / 2).next_multiple_of(BLOCK).min(s.queries / BLOCK * BLOCK);
        low.push(0..middle);
        high.push(middle..s.queries);
    }
    let blocks = Contiguous(&case.bases);
    let (out, lse) = case.reference();
    let plain: Vec<f32> = case
        .dout
        .chunks(case.heads.dim)
        .zip(out.chunks(case.heads.dim))
        .map(|(g, o)| reference::delta(g, o))
        .collect();
    let input = |keys| Backward {
        forward: case.input(&blocks),
        dout: case.dout(),
        lse: &lse,
        delta: &plain,
        keys,
    };
    let mut want = case.zeros(0.0);
    reference::backward(&input(None), &mut want.dq, &mut want.dk, &mut want.dv);
    for context in contexts() {
        let what = format!("{:?} {:?} {:?}", case.heads, case.window, context);
        let mut deltas = vec![0.0; lse.len()];
        let out_rows = Rows { data: &out, row_stride: case.wide() };
        delta(&context, &case.heads, &case.dout(), &out_rows, &mut deltas).unwrap();
        assert!(same(&deltas, &plain), "delta: {what}");

        let bytes = backward_workspace_bytes(&case.heads, &case.segments, context.threads());
        let mut workspace = vec![0xff; bytes];
        let mut run = |got: &mut Grads, keys, dq: bool, dkv: bool| {
            let (wide, narrow) = (case.wide(), case.narrow());
            let gradients = Gradients {
                dq: dq.then_some(RowsMut { data: &mut got.dq, row_stride: wide }),
                dkv: dkv.then_some((
                    RowsMut { data: &mut got.dk, row_stride: narrow },
                    RowsMut { data: &mut got.dv, row_stride: narrow },
                )),
            };
            backward(&context, &input(keys), gradients, &mut workspace).unwrap();
        };
        // Rows of no segment keep what they held.
        let mut got = case.zeros(0.0);
        run(&mut got, None, true, true);
        assert!(same(&got.dq, &want.dq), "dq: {what}");
        assert!(same(&got.dk, &want.dk), "dk: {what}");
        assert!(same(&got.dv, &want.dv), "dv: {what}");

        // Queries in one pass, keys in two more.
        let mut got = case.zeros(0.0);
        run(&mut got, None, true, false);
        run(&mut got, Some(low.as_slice()), false, true);
        run(&mut got, Some(high.as_slice()), false, true);
        assert!(same(&got.dq, &want.dq), "dq alone: {what}");
        assert!(same(&got.dk, &want.dk), "dk by ranges: {what}");
        assert!(same(&got.dv, &want.dv), "dv by ranges: {what}");
    }
}

#[test]
fn backward_of_packed_sequences() {
    check_backward(&Case::packed(SMALL, None, &[1, 63, 64, 65, 200]));
    check_backward(&Case::packed(ODD, None, &[7, 130]));
    check_backward(&Case::packed(REAL, None, &[129, 70]));
}

#[test]
fn backward_with_a_window() {
    for window in [1, 2, 63, 64, 100] {
        check_backward(&Case::packed(SMALL, Some(window), &[200, 5]));
    }
}

#[test]
fn backward_over_several_chunks_of_keys() {
    check_backward(&Case::packed(Heads { query: 2, key: 1, dim: 16 }, None, &[1100, 600]));
    check_backward(&Case::packed(Heads { query: 2, key: 1, dim: 16 }, Some(300), &[1100]));
}

/// A masked key and an absent key are the same even where an accumulator is -0.
#[test]
fn zeros_keep_their_sign_to_themselves() {
    let heads = Heads { query: 1, key: 1, dim: 16 };
    let mut case = Case::packed(heads, None, &[40]);
    for row in 0..case.rows {
        for d in 0..16 {
            // Values whose products with small probabilities round to -0.
            case.qkv[row * case.stride + 32 + d] = -f32::from_bits(1 + (row % 3) as u32);
        }
    }
    check_forward(&case);
    check_backward(&case);
}

#[test]
fn wrong_calls_are_refused() {
    let case = Case::packed(SMALL, None, &[20, 30]);
    let blocks = Contiguous(&case.bases);
    let context = Context::new(Isa::best(), Arithmetic::F32, 1).unwrap();
    let bytes = forward_workspace_bytes(&case.heads, 1);
    let refuse = |input: &Forward<'_>, row_stride: usize, lse: usize, bytes: usize| {
        let mut out = vec![0.0; case.rows * case.wide()];
        let rows = RowsMut { data: &mut out, row_stride };
        let mut lse = vec![0.0; lse];
        forward(&context, input, rows, Some(&mut lse), &mut vec![0; bytes]).unwrap_err()
    };
    let (wide, all_lse) = (case.wide(), case.rows * 4);
    let good = case.input(&blocks);
    let heads = Heads { query: 3, ..SMALL };
    let error = refuse(&Forward { heads, ..good }, wide, all_lse, bytes);
    assert_eq!(error, AttentionError::Heads { query: 3, key: 2, dim: 8 });
    let error = refuse(&Forward { window: Some(0), ..good }, wide, all_lse, bytes);
    assert_eq!(error, AttentionError::Window);
    let error = refuse(&good, wide - 1, all_lse, bytes);
    assert!(matches!(error, AttentionError::RowStride { view: "out", .. }));
    let error = refuse(&good, wide, all_lse - 1, bytes);
    assert_eq!(error, AttentionError::Row { segment: 1, view: "lse", row: 52, rows: 52 });
    let error = refuse(&good, wide, all_lse, bytes - 1);
    assert_eq!(error, AttentionError::Workspace { needed: bytes, given: bytes - 1 });
    let far = Contiguous(&[3, 40]);
    let error = refuse(&Forward { blocks: &far, ..good }, wide, all_lse, bytes);
    assert!(matches!(error, AttentionError::Row { segment: 1, view: "k", .. }));
    let twice = [case.segments[0], case.segments[0]];
    let error = refuse(&Forward { segments: &twice, ..good }, wide, all_lse, bytes);
    assert_eq!(error, AttentionError::SharedQueries { segment: 1, row: 3 });

    let (_, lse) = case.reference();
    let refuse = |blocks: &dyn KeyBlocks, keys: Option<&[Range<usize>]>, bytes: usize| {
        let input = Backward {
            forward: Forward { blocks, ..good },
            dout: case.dout(),
            lse: &lse,
            delta: &lse,
            keys,
        };
        let mut got = case.zeros(0.0);
        let row_stride = case.narrow();
        let gradients = Gradients {
            dq: None,
            dkv: Some((
                RowsMut { data: &mut got.dk, row_stride },
                RowsMut { data: &mut got.dv, row_stride },
            )),
        };
        backward(&context, &input, gradients, &mut vec![0; bytes]).unwrap_err()
    };
    let bytes = backward_workspace_bytes(&case.heads, &case.segments, 1);
    let error = refuse(&blocks, Some(std::slice::from_ref(&(0..20))), bytes);
    assert_eq!(error, AttentionError::KeyRanges { ranges: 1, segments: 2 });
    let error = refuse(&blocks, Some(&[0..20, 8..30]), bytes);
    assert_eq!(error, AttentionError::KeyRange { segment: 1, first: 8 });
    let error = refuse(&Contiguous(&[3, 20]), None, bytes);
    assert_eq!(error, AttentionError::SharedKeys { segment: 1, row: 20 });
    let error = refuse(&blocks, None, bytes - 1);
    assert_eq!(error, AttentionError::Workspace { needed: bytes, given: bytes - 1 });
}
