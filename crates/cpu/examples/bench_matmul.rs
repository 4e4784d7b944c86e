//! Rates of the products that training and decoding are made of.
//!
//! ```text
//! cargo run --release -p cpu --example bench_matmul [THREADS]
//! ```
//! GFLOP/s count 2·m·n·k; "of peak" compares with the f32 FMA rate of
//! one core, measured beside each shape. With one thread the processor time of the thread is
//! used, so a busy machine disturbs little.

use std::time::Instant;

use cpu::matmul::{Elems, Init, Operand, OutView, Product, Shape, Term, matmul, workspace_bytes};
use cpu::{Arithmetic, Context, Isa};
use half::bf16;

/// Runs of each shape; the median counts.
const RUNS: usize = 9;

struct Bench<'a> {
    name: &'a str,
    m: usize,
    n: usize,
    k: usize,
    leaves: usize,
    a_columns: bool,
    b_columns: bool,
    bf16: bool,
}

fn seconds(clock: &impl Fn() -> f64, mut f: impl FnMut()) -> f64 {
    f();
    let mut times: Vec<f64> = (0..RUNS)
        .map(|_| {
            let start = clock();
            f();
            clock() - start
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[if std::env::var_os("BEST").is_some() { 0 } else { RUNS / 2 }]
}

fn main() {
    let threads = std::env::args().nth(1).map_or(1, |n| n.parse().expect("THREADS is a number"));
    let start = Instant::now();
    let clock = || {
        if threads > 1 {
            return start.elapsed().as_secs_f64();
        }
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is writable.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
        now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
    };
    println!("{threads} threads; of peak: of one core's f32 FMA rate, measured beside each shape");
    let big = vec![0.5_f32; 64 << 20 >> 2];
    let time = seconds(&clock, || {
        std::hint::black_box(cpu::read_all(Isa::best(), &big));
    });
    println!("one core reads {:.1} GB/s", (4 * big.len()) as f64 / time * 1e-9);
    println!("{:28} {:>10} {:>8} {:>10}", "shape m x n x k / leaves", "f32", "of peak", "bf16");
    let base = Bench {
        name: "forward NT",
        m: 2048,
        n: 1536,
        k: 576,
        leaves: 1,
        a_columns: false,
        b_columns: false,
        bf16: false,
    };
    let benches = [
        Bench { ..base },
        Bench { name: "forward NT bf16 weights", bf16: true, ..base },
        Bench { name: "forward NT 8 leaves", leaves: 8, ..base },
        Bench { name: "down NT 8 leaves", n: 576, k: 1536, leaves: 8, ..base },
        Bench { name: "square NT", n: 576, ..base },
        Bench { name: "k/v NT", n: 192, ..base },
        Bench { name: "dx NN 8 leaves", n: 576, k: 1536, leaves: 8, b_columns: true, ..base },
        Bench { name: "dW TN", m: 1536, n: 576, k: 2048, a_columns: true, b_columns: true, ..base },
        Bench { name: "logits NT", m: 512, n: 8192, ..base },
        Bench { name: "LoRA x·At", n: 16, ..base },
        Bench { name: "LoRA h·Bt", k: 16, ..base },
        Bench {
            name: "LoRA dA TN",
            m: 16,
            n: 576,
            k: 2048,
            a_columns: true,
            b_columns: true,
            ..base
        },
        Bench {
            name: "LoRA dB TN",
            n: 16,
            m: 1536,
            k: 2048,
            a_columns: true,
            b_columns: true,
            ..base
        },
        Bench { name: "long k", m: 512, n: 576, k: 14_336, ..base },
        Bench {
            name: "logits dx NN 8 leaves",
            m: 512,
            n: 576,
            k: 49_152,
            leaves: 8,
            b_columns: true,
            bf16: true,
            ..base
        },
        Bench { name: "decode m=1 bf16", m: 1, n: 49_152, bf16: true, ..base },
        Bench { name: "decode m=1 f32", m: 1, n: 49_152, ..base },
        Bench { name: "decode m=4 bf16", m: 4, n: 49_152, bf16: true, ..base },
        Bench { name: "decode m=8 bf16", m: 8, n: 49_152, bf16: true, ..base },
        Bench { name: "few rows m=16 bf16", m: 16, n: 49_152, bf16: true, ..base },
    ];
    for bench in &benches {
        let peak = peak(&clock) * threads as f64;
        let flops = 2e-9 * (bench.m * bench.n * bench.k) as f64;
        let f32 = flops / run(bench, Arithmetic::F32, threads, &clock);
        let tiles = run(bench, Arithmetic::Bf16Tiles, threads, &clock);
        let [bf16, tiles] =
            [run(bench, Arithmetic::Bf16, threads, &clock), tiles].map(|t| flops / t);
        let Bench { name, m, n, k, leaves, .. } = bench;
        let bytes = (n * k * if bench.bf16 { 2 } else { 4 }) as f64 * 1e-9;
        let note = if *m <= 16 && *n > 1000 {
            format!("  {:.1} GB/s of weights", f32 / flops * bytes)
        } else {
            String::new()
        };
        let shape = format!("{m} x {n} x {k} / {leaves}");
        println!(
            "{name:26} {shape:26} {f32:8.1} {:7.0}% {bf16:10.1} {tiles:10.1}{note}",
            100.0 * f32 / peak
        );
    }
}

fn run(bench: &Bench<'_>, arithmetic: Arithmetic, threads: usize, clock: &impl Fn() -> f64) -> f64 {
    let Bench { m, n, k, leaves, .. } = *bench;
    let a: Vec<f32> = (0..m * k).map(|i| (i % 17) as f32 * 0.1 - 0.7).collect();
    let b: Vec<f32> = (0..n * k).map(|i| (i % 13) as f32 * 0.1 - 0.6).collect();
    let b16: Vec<bf16> = b.iter().map(|x| bf16::from_f32(*x)).collect();
    let b = if bench.bf16 { Elems::Bf16(&b16) } else { Elems::F32(&b) };
    let part = k / leaves;
    let terms: Vec<Term<'_>> = (0..leaves)
        .map(|leaf| {
            let first = leaf * part;
            let view = |data, columns: bool, rows: usize| {
                if columns {
                    Operand::columns(data, rows).at(first * rows)
                } else {
                    Operand::rows(data, k).at(first)
                }
            };
            Term {
                a: view(Elems::F32(&a), bench.a_columns, m),
                b: view(b, bench.b_columns, n),
                k: part,
            }
        })
        .collect();
    let lists: Vec<&[Term<'_>]> = terms.chunks(1).collect();
    let product = Product { m, n, leaves: &lists, tail: &[], alpha: 1.0, init: Init::None };
    let isa = Isa::detect().expect("SAMEBIT_ISA names an instruction set of this processor");
    let context = Context::new(isa, arithmetic, threads).expect("threads start");
    let mut workspace =
        vec![0; workspace_bytes(&Shape::of(&product, context.arithmetic()), threads)];
    let mut out = vec![0.0; m * n];
    seconds(clock, || {
        matmul(&context, &product, OutView::f32(&mut out, n), &mut workspace).expect("a product");
    })
}

/// GFLOP/s of independent FMA chains in registers, timed as the products are.
fn peak(clock: &impl Fn() -> f64) -> f64 {
    const STEPS: usize = 1 << 22;
    let isa = Isa::best();
    let time = seconds(clock, || {
        std::hint::black_box(cpu::fma_chains(isa, STEPS));
    });
    (STEPS * cpu::FMA_CHAINS * 16 * 2) as f64 / time * 1e-9
}
