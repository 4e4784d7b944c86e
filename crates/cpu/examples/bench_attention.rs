//! Rates of attention at the shape of SmolLM2-135M (9 query heads, 3 key heads, 64).
//!
//! ```text
//! cargo run --release -p cpu --example bench_attention [THREADS]
//! ```
//! GFLOP/s count 4 (forward) or 10 (backward) times size times visible pairs of
//! query and key; "of peak" compares with the f32 FMA rate of one core, measured
//! beside each shape. With one thread the processor time of the thread is used.

use std::time::Instant;

use cpu::attention::{
    Backward, Contiguous, Forward, Gradients, Heads, Rows, RowsMut, Segment, backward,
    backward_workspace_bytes, forward, forward_workspace_bytes,
};
use cpu::{Arithmetic, Context, Isa};

/// Runs of each shape; the median counts.
const RUNS: usize = 9;

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
    times[RUNS / 2]
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
    let isa = Isa::detect().expect("SAMEBIT_ISA names an instruction set of this processor");
    let context = Context::new(isa, Arithmetic::F32, threads).expect("threads start");
    let heads = Heads { query: 9, key: 3, dim: 64 };
    for (name, lengths) in
        [("4 x 512", [512; 4].as_slice()), ("1 x 2048", &[2048]), ("1 x 8192", &[8192])]
    {
        let segments: Vec<Segment> = lengths
            .iter()
            .scan(0, |row, &queries| {
                *row += queries;
                Some(Segment { query_row: *row - queries, queries, position: 0 })
            })
            .collect();
        let bases: Vec<usize> = segments.iter().map(|s| s.query_row).collect();
        let rows: usize = lengths.iter().sum();
        let pairs: usize = lengths.iter().map(|n| n * (n + 1) / 2).sum();
        let flops = (pairs * heads.query * heads.dim) as f64 * 1e-9;
        let q: Vec<f32> = (0..rows * 576).map(|i| (i % 97) as f32 * 0.02 - 1.0).collect();
        let k: Vec<f32> = (0..rows * 192).map(|i| (i % 89) as f32 * 0.02 - 0.9).collect();
        let wide = Rows { data: &q, row_stride: 576 };
        let narrow = Rows { data: &k, row_stride: 192 };
        let input = Forward {
            heads,
            scale: 0.125,
            window: None,
            q: wide,
            k: narrow,
            v: narrow,
            segments: &segments,
            blocks: &Contiguous(&bases),
        };
        let (mut out, mut lse) = (vec![0.0; rows * 576], vec![0.0; rows * 9]);
        let workspace = huge(forward_workspace_bytes(&heads, threads));
        let peak = peak(&clock) * threads as f64;
        let time = seconds(&clock, || {
            let out = RowsMut { data: &mut out, row_stride: 576 };
            forward(&context, &input, out, Some(&mut lse), workspace).expect("attention");
        });
        print!(
            "{name:10} forward {:6.1} GFLOP/s {:3.0}%",
            4.0 * flops / time,
            400.0 * flops / time / peak
        );
        let delta = vec![0.1; rows * 9];
        let input = Backward { forward: input, dout: wide, lse: &lse, delta: &delta, keys: None };
        let (mut dk, mut dv) = (vec![0.0; rows * 192], vec![0.0; rows * 192]);
        let workspace = huge(backward_workspace_bytes(&heads, &segments, threads));
        let time = seconds(&clock, || {
            let row_stride = 192;
            let gradients = Gradients {
                dq: Some(RowsMut { data: &mut out, row_stride: 576 }),
                dkv: Some((
                    RowsMut { data: &mut dk, row_stride },
                    RowsMut { data: &mut dv, row_stride },
                )),
            };
            backward(&context, &input, gradients, workspace).expect("attention");
        });
        println!(
            "   backward {:6.1} GFLOP/s {:3.0}%",
            10.0 * flops / time,
            1000.0 * flops / time / peak
        );
    }
}

/// GFLOP/s of independent FMA chains in registers.
fn peak(clock: &impl Fn() -> f64) -> f64 {
    const STEPS: usize = 1 << 22;
    let time = seconds(clock, || {
        std::hint::black_box(cpu::fma_chains(Isa::best(), STEPS));
    });
    (STEPS * cpu::FMA_CHAINS * 16 * 2) as f64 / time * 1e-9
}

/// Scratch memory in large pages where the system has them, as an engine's is.
fn huge(bytes: usize) -> &'static mut [u8] {
    const PAGE: usize = 2 << 20;
    let memory = vec![0_u8; bytes + 2 * PAGE].leak();
    let first = memory.as_ptr().align_offset(PAGE);
    let memory = &mut memory[first..first + bytes.next_multiple_of(PAGE)];
    // SAFETY: advice about memory of our own; it may be refused.
    unsafe { libc::madvise(memory.as_mut_ptr().cast(), memory.len(), libc::MADV_HUGEPAGE) };
    memory
}
