//! Every fast product against the reference, byte for byte.

use cpu::matmul::{
    Bf16Path, Elems, ElemsMut, Init, MatmulError, Operand, OutView, Product, Shape, Term, matmul,
    matmul_by, reference, workspace_bytes,
};
use cpu::{Arithmetic, Context, Isa};
use half::bf16;

/// xorshift64*: the tests' own numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// In (-1, 1), all 24 bits used, so that every rounding shows.
    fn unit(&mut self) -> f32 {
        ((self.next() >> 40) as f32 / (1 << 23) as f32) - 1.0
    }

    fn f32s(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// One operand's storage: rows or columns contiguous, f32 or bf16, padded rows.
#[derive(Clone, Copy, Debug)]
struct Layout {
    columns: bool,
    bf16: bool,
    pad: usize,
}

struct Stored {
    f32: Vec<f32>,
    bf16: Vec<bf16>,
    layout: Layout,
    stride: usize,
}

impl Stored {
    fn new(random: &mut Random, rows: usize, k: usize, layout: Layout, tiny: bool) -> Self {
        let (outer, inner) = if layout.columns { (k, rows) } else { (rows, k) };
        let stride = inner + layout.pad;
        // Views start at an offset and end exactly at the end of the buffer.
        let len = 3 + (outer - 1) * stride + inner;
        let mut f32 = random.f32s(len);
        if tiny {
            for (i, x) in f32.iter_mut().enumerate() {
                // 2^-60 to 2^-68; some are subnormal themselves.
                *x *= 2.0_f32.powi(if i % 7 == 0 { -127 } else { -60 - (i % 9) as i32 });
            }
        }
        let bf16 = f32.iter().map(|x| bf16::from_f32(*x)).collect();
        Self { f32, bf16, layout, stride }
    }

    fn view(&self) -> Operand<'_> {
        let data = if self.layout.bf16 { Elems::Bf16(&self.bf16) } else { Elems::F32(&self.f32) };
        if self.layout.columns {
            Operand::columns(data, self.stride).at(3)
        } else {
            Operand::rows(data, self.stride).at(3)
        }
    }
}

#[derive(Clone, Debug)]
struct Case {
    m: usize,
    n: usize,
    /// Terms of each leaf, as lengths of k.
    leaves: Vec<Vec<usize>>,
    tail: Vec<usize>,
    alpha: f32,
    init: u8,
    a: Layout,
    b: Layout,
    out_bf16: bool,
    /// Operands whose products straddle the least normal number.
    tiny: bool,
}

const ROWS: Layout = Layout { columns: false, bf16: false, pad: 0 };
const COLUMNS: Layout = Layout { columns: true, bf16: false, pad: 5 };
const ROWS_BF16: Layout = Layout { columns: false, bf16: true, pad: 3 };
const COLUMNS_BF16: Layout = Layout { columns: true, bf16: true, pad: 0 };

fn plain(m: usize, n: usize, k: usize) -> Case {
    Case {
        m,
        n,
        leaves: vec![vec![k]],
        tail: vec![],
        alpha: 1.0,
        init: 0,
        a: ROWS,
        b: ROWS,
        out_bf16: false,
        tiny: false,
    }
}

fn check(case: &Case, arithmetic: Arithmetic) {
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let mut store = |terms: &[usize]| -> Vec<(Stored, Stored, usize)> {
        terms
            .iter()
            .map(|&k| {
                let a = Stored::new(&mut random, case.m, k, case.a, case.tiny);
                let b = Stored::new(&mut random, case.n, k, case.b, case.tiny);
                (a, b, k)
            })
            .collect()
    };
    let leaves: Vec<_> = case.leaves.iter().map(|terms| store(terms)).collect();
    let tail = store(&case.tail);
    fn view(stored: &[(Stored, Stored, usize)]) -> Vec<Term<'_>> {
        stored.iter().map(|(a, b, k)| Term { a: a.view(), b: b.view(), k: *k }).collect()
    }
    let leaves: Vec<Vec<Term<'_>>> = leaves.iter().map(|leaf| view(leaf)).collect();
    let leaves: Vec<&[Term<'_>]> = leaves.iter().map(Vec::as_slice).collect();
    let tail = view(&tail);
    let bias = Random(7).f32s(case.n);
    let init = match case.init {
        0 => Init::None,
        1 => Init::Bias(&bias),
        2 => Init::Accumulate,
        _ => Init::Chain,
    };
    let product =
        Product { m: case.m, n: case.n, leaves: &leaves, tail: &tail, alpha: case.alpha, init };
    let row_stride = case.n + 4;
    let start = Random(9).f32s(2 + case.m * row_stride);
    let start16: Vec<bf16> = start.iter().map(|x| bf16::from_f32(*x)).collect();
    let view = |e32: &mut Vec<f32>, e16: &mut Vec<bf16>, f: &mut dyn FnMut(OutView<'_>)| {
        // The views borrow one of the two; the other stays as it is.
        let data = if case.out_bf16 { ElemsMut::Bf16(e16) } else { ElemsMut::F32(e32) };
        f(OutView { data, offset: 2, row_stride });
    };
    let (mut want32, mut want16) = (start.clone(), start16.clone());
    view(&mut want32, &mut want16, &mut |mut out| {
        reference::matmul(arithmetic, &product, &mut out);
    });
    let paths = match arithmetic {
        Arithmetic::F32 => &[Bf16Path::Native][..],
        Arithmetic::Bf16 | Arithmetic::Bf16Tiles => &[Bf16Path::Native, Bf16Path::Flush],
    };
    for (isa, path) in Isa::available().into_iter().flat_map(|i| paths.iter().map(move |p| (i, *p)))
    {
        for threads in [1, 2, 3] {
            let context = Context::new(isa, arithmetic, threads).unwrap();
            let mut workspace =
                vec![0xa5; workspace_bytes(&Shape::of(&product, arithmetic), threads)];
            let (mut got32, mut got16) = (start.clone(), start16.clone());
            view(&mut got32, &mut got16, &mut |out| {
                matmul_by(&context, &product, out, &mut workspace, path).unwrap();
            });
            let same = got32.iter().zip(&want32).all(|(g, w)| g.to_bits() == w.to_bits());
            assert!(
                same && got16 == want16,
                "{case:?} {arithmetic:?} {path:?} {isa} {threads} threads"
            );
        }
    }
}

/// In every arithmetic.
fn all(case: &Case) {
    for arithmetic in [Arithmetic::F32, Arithmetic::Bf16, Arithmetic::Bf16Tiles] {
        check(case, arithmetic);
    }
}

#[test]
fn every_layout_and_type() {
    if !cpu::has_native_tiles() {
        println!("skipped: products on matrix tiles because this processor has none");
    }
    for a in [ROWS, COLUMNS, ROWS_BF16, COLUMNS_BF16] {
        for b in [ROWS, COLUMNS, ROWS_BF16, COLUMNS_BF16] {
            all(&Case { a, b, ..plain(29, 37, 45) });
            all(&Case { a, b, ..plain(3, 41, 67) });
            check(&Case { a, b, ..plain(13, 41, 1100) }, Arithmetic::Bf16Tiles);
        }
    }
}

#[test]
fn every_small_shape() {
    for m in 1..=31 {
        for n in [1, 5, 16, 17, 31, 33, 48, 64] {
            all(&plain(m, n, 7));
        }
    }
    for k in 1..=66 {
        all(&plain(9, 18, k));
        all(&Case { b: ROWS_BF16, ..plain(2, 35, k) });
        all(&Case { a: COLUMNS_BF16, ..plain(17, 16, k) });
    }
}

#[test]
fn leaves_terms_and_tail() {
    for leaves in 1..=9 {
        let lengths: Vec<Vec<usize>> = (0..leaves)
            .map(|leaf| if leaf % 3 == 1 { vec![9, 1, 4] } else { vec![11 + leaf] })
            .collect();
        for (m, b) in [(5, ROWS), (30, ROWS_BF16), (30, COLUMNS)] {
            let case = Case { leaves: lengths.clone(), b, ..plain(m, 40, 1) };
            all(&case);
            all(&Case { tail: vec![16, 3], alpha: 0.37, init: 1, ..case.clone() });
            all(&Case { tail: vec![2], init: 2, out_bf16: true, ..case });
        }
    }
}

#[test]
fn every_init_and_output() {
    for init in 0..=2 {
        for out_bf16 in [false, true] {
            for alpha in [1.0, 0.125, -3.3] {
                all(&Case { init, out_bf16, alpha, ..plain(21, 50, 33) });
                all(&Case { init, out_bf16, alpha, ..plain(1, 50, 33) });
            }
        }
    }
    all(&Case { init: 3, a: COLUMNS, b: COLUMNS, ..plain(45, 33, 77) });
    all(&Case { init: 3, ..plain(2, 33, 77) });
}

#[test]
fn long_k_is_cut_without_a_trace() {
    all(&plain(15, 33, 5000));
    all(&Case { init: 3, ..plain(15, 40, 4097) });
    let leaves = vec![vec![1000], vec![2047, 2], vec![2500], vec![1], vec![30]];
    all(&Case { leaves, tail: vec![4200], b: COLUMNS_BF16, init: 2, ..plain(15, 40, 1) });
    all(&Case { b: ROWS_BF16, ..plain(1, 33, 14_336) });
}

/// Chains flush, the tree over their sums does not; on either path.
#[test]
fn subnormals_are_treated_alike() {
    for (a, b) in [(ROWS, ROWS), (COLUMNS, ROWS_BF16), (ROWS_BF16, COLUMNS), (ROWS, COLUMNS_BF16)] {
        let leaves = vec![vec![5], vec![2, 3], vec![1], vec![8], vec![33]];
        let case = Case { leaves, tail: vec![4], a, b, tiny: true, ..plain(19, 37, 1) };
        all(&case);
        all(&Case { m: 3, alpha: 0.37, init: 1, ..case });
    }
    all(&Case { tiny: true, init: 3, ..plain(15, 40, 4097) });
}

#[test]
fn several_tasks_and_column_blocks() {
    all(&plain(400, 130, 64));
    all(&Case { leaves: vec![vec![300]; 8], ..plain(24, 300, 1) });
    all(&plain(130, 16, 2048));
    all(&Case { a: COLUMNS, b: COLUMNS, ..plain(16, 200, 1024) });
    for k in [512, 1024, 1031] {
        let thin = Case { a: COLUMNS, b: COLUMNS, ..plain(16, 203, k) };
        all(&Case { m: 48, alpha: 0.37, init: 1, ..thin.clone() });
        all(&Case { m: 203, n: 16, init: 2, tiny: true, ..thin.clone() });
        all(&Case { m: 203, n: 32, alpha: -3.3, out_bf16: true, ..thin });
    }
}

/// A row is the same alone and among others.
#[test]
fn a_row_does_not_see_the_others() {
    let (m, n, k) = (70, 96, 200);
    let mut random = Random(3);
    let (a, b) = (random.f32s(m * k), random.f32s(n * k));
    let context = Context::new(Isa::best(), Arithmetic::F32, 2).unwrap();
    let rows = |first: usize, count: usize| {
        let term = Term {
            a: Operand::rows(Elems::F32(&a), k).at(first * k),
            b: Operand::rows(Elems::F32(&b), k),
            k,
        };
        let leaves: [&[Term<'_>]; 1] = [&[term]];
        let product =
            Product { m: count, n, leaves: &leaves, tail: &[], alpha: 1.0, init: Init::None };
        let mut out = vec![0.0; count * n];
        let mut workspace = vec![0; workspace_bytes(&Shape::of(&product, Arithmetic::F32), 2)];
        matmul(&context, &product, OutView::f32(&mut out, n), &mut workspace).unwrap();
        out
    };
    let all = rows(0, m);
    for count in [1, 2, 8, 9, 16, 33] {
        for first in [0, 5, m - count] {
            let some = rows(first, count);
            let whole = &all[first * n..(first + count) * n];
            assert!(some.iter().zip(whole).all(|(x, y)| x.to_bits() == y.to_bits()));
        }
    }
}

/// The reference itself, on numbers where the order shows: the tree pairs its
/// leaves, a single chain loses the ones.
#[test]
fn the_reference_follows_the_tree() {
    let a = [16_777_216.0, 1.0, 1.0, -16_777_216.0];
    let ones = [1.0; 4];
    let term = |k: usize, at: usize| Term {
        a: Operand::rows(Elems::F32(&a), 4).at(at),
        b: Operand::rows(Elems::F32(&ones), 4),
        k,
    };
    let value = |leaves: &[&[Term<'_>]]| {
        let product = Product { m: 1, n: 1, leaves, tail: &[], alpha: 1.0, init: Init::None };
        let mut out = [0.0];
        reference::matmul(Arithmetic::F32, &product, &mut OutView::f32(&mut out, 1));
        out[0]
    };
    assert_eq!(value(&[&[term(4, 0)]]), 0.0);
    assert_eq!(value(&[&[term(1, 0)], &[term(1, 1)], &[term(1, 2)], &[term(1, 3)]]), 1.0);
    assert_eq!(value(&[&[term(1, 0)], &[term(2, 1)], &[term(1, 3)]]), 2.0);
}

#[test]
fn wrong_products_are_refused() {
    let data = vec![0.0_f32; 64];
    let rows = Operand::rows(Elems::F32(&data), 8);
    let term = Term { a: rows, b: rows, k: 8 };
    let good: [&[Term<'_>]; 1] = [&[term]];
    let product = Product { m: 8, n: 8, leaves: &good, tail: &[], alpha: 1.0, init: Init::None };
    let refuse = |product: &Product<'_>, row_stride: usize, len: usize, workspace: usize| {
        let context = Context::new(Isa::best(), Arithmetic::F32, 1).unwrap();
        let mut out = vec![0.0; len];
        let mut workspace = vec![0; workspace];
        matmul(&context, product, OutView::f32(&mut out, row_stride), &mut workspace).unwrap_err()
    };
    let enough = 1 << 22;
    assert_eq!(refuse(&Product { leaves: &[], ..product }, 8, 64, enough), MatmulError::NoLeaf);
    let empty = Product { leaves: &[&[term], &[]], ..product };
    assert_eq!(refuse(&empty, 8, 64, enough), MatmulError::EmptyLeaf(1));
    let zero = [term, Term { k: 0, ..term }];
    let zero = Product { leaves: &[&zero], ..product };
    assert_eq!(refuse(&zero, 8, 64, enough), MatmulError::EmptyTerm(1));
    let many = vec![term; 129];
    let many = Product { leaves: &[&many], ..product };
    assert_eq!(refuse(&many, 8, 64, enough), MatmulError::TooManyTerms(129));
    let strides = [Term { b: Operand { col_stride: 2, ..rows }, ..term }];
    let strides = refuse(&Product { leaves: &[&strides], ..product }, 8, 64, enough);
    assert!(matches!(strides, MatmulError::Strides { term: 0, operand: 'B', .. }));
    let bounds = refuse(&Product { m: 9, ..product }, 8, 72, enough);
    assert_eq!(bounds, MatmulError::OutOfBounds { term: 0, operand: 'A', needed: 72, given: 64 });
    let huge = [Term { a: Operand { row_stride: usize::MAX, ..rows }, ..term }];
    let huge = refuse(&Product { leaves: &[&huge], ..product }, 8, 64, enough);
    assert!(matches!(huge, MatmulError::OutOfBounds { needed: usize::MAX, .. }));
    let short = refuse(&product, 8, 63, enough);
    assert_eq!(short, MatmulError::OutputOutOfBounds { needed: 64, given: 63 });
    let overlap = refuse(&product, 7, 64, enough);
    assert_eq!(overlap, MatmulError::OutputOverlaps { row_stride: 7, n: 8 });
    let bias = refuse(&Product { init: Init::Bias(&data[..7]), ..product }, 8, 64, enough);
    assert_eq!(bias, MatmulError::Bias { given: 7, n: 8 });
    let chain = Product { init: Init::Chain, alpha: 2.0, ..product };
    assert_eq!(refuse(&chain, 8, 64, enough), MatmulError::Chain);
    let needed = workspace_bytes(&Shape::of(&product, Arithmetic::F32), 1);
    let small = refuse(&product, 8, 64, needed - 1);
    assert_eq!(small, MatmulError::Workspace { needed, given: needed - 1 });
}

#[test]
fn an_empty_output_is_fine() {
    let term = Term {
        a: Operand::rows(Elems::F32(&[]), 4),
        b: Operand::rows(Elems::F32(&[0.0; 8]), 4),
        k: 4,
    };
    let leaves: [&[Term<'_>]; 1] = [&[term]];
    let product = Product { m: 0, n: 2, leaves: &leaves, tail: &[], alpha: 1.0, init: Init::None };
    let context = Context::new(Isa::best(), Arithmetic::F32, 1).unwrap();
    let mut workspace = vec![0; workspace_bytes(&Shape::of(&product, Arithmetic::F32), 1)];
    matmul(&context, &product, OutView::f32(&mut [], 2), &mut workspace).unwrap();
}
