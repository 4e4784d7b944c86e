//! What computes: threads, arithmetic profile, instruction set, and how fast that is.

use anyhow::{Context as _, Result, bail};
use arena::{Executor, Kernel};
use clap::Args;
use cpu::matmul::{Elems, Init, Operand, OutView, Product, Shape, Term, matmul, workspace_bytes};
use cpu::{Context, Cpu, Isa, NotChosen, Offers, Precision, Settings};
use program::cost::Rates;
use program::ledger::Bytes;
use program::{Ledger, Op, Program};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Instant;
use train::Profile;

/// A profile's name, as on the command line.
pub(crate) fn name(profile: Profile) -> &'static str {
    match profile {
        Profile::CpuF32 => "cpu-f32",
        Profile::CpuBf16 => "cpu-bf16",
        Profile::CpuBf16Tiles => "cpu-bf16-tiles",
    }
}

fn precision(profile: Profile) -> Precision {
    match profile {
        Profile::CpuF32 => Precision::F32,
        Profile::CpuBf16 => Precision::Bf16,
        Profile::CpuBf16Tiles => Precision::Bf16Tiles,
    }
}

/// Most threads.
const MOST_THREADS: usize = 256;

/// How to compute; part of every command that does.
#[derive(Args, Clone, Debug)]
pub(crate) struct Compute {
    /// Threads; the result does not depend on them [default: the processor's]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
    /// Arithmetic profile; part of a run's identity
    #[arg(long, value_enum, default_value = "cpu-f32")]
    pub(crate) profile: Profile,
}

/// A device: here, the processor.
pub(crate) struct Device {
    pub(crate) threads: usize,
    pub(crate) profile: Profile,
    isa: Isa,
    planner: Cpu,
    rates: OnceLock<Rates>,
}

impl Device {
    pub(crate) fn new(compute: &Compute) -> Result<Device> {
        let threads = match compute.threads {
            Some(0) => bail!("--threads 0: at least one thread computes"),
            Some(threads) if threads > MOST_THREADS => {
                bail!(
                    "--threads {threads}: the most is {MOST_THREADS}, and more than the processor has only wait"
                )
            }
            Some(threads) => threads,
            None => std::thread::available_parallelism().map_or(1, |n| n.get()),
        };
        let isa = Isa::detect()?;
        let settings = Settings { threads, precision: precision(compute.profile), isa: Some(isa) };
        let planner = Cpu::new(settings)?;
        Ok(Device { threads, profile: compute.profile, isa, planner, rates: OnceLock::new() })
    }

    /// An executor.
    pub(crate) fn executor(&self) -> Result<Box<dyn Executor>> {
        let precision = precision(self.profile);
        let settings = Settings { threads: self.threads, precision, isa: Some(self.isa) };
        Ok(Box::new(Cpu::new(settings)?))
    }

    /// Scratch bytes of an operation's kernel.
    pub(crate) fn workspace(&self) -> impl Fn(&Op, &Program) -> usize + '_ {
        |op, program| self.planner.workspace_bytes(op, program)
    }

    /// In words.
    pub(crate) fn describe(&self) -> String {
        format!("{}, {:?}, {} threads", name(self.profile), self.isa, self.threads)
    }

    /// Faster kernels than one that an operation took, and why they were not chosen.
    pub(crate) fn faster(&self, taken: Kernel) -> Vec<NotChosen> {
        Offers::here().faster(taken, precision(self.profile))
    }

    /// Rates of this processor: measured once, then kept in the cache folder.
    pub(crate) fn rates(&self) -> Rates {
        *self.rates.get_or_init(|| self.stored_rates().unwrap_or_else(|| self.measure_and_store()))
    }

    /// Takes a rate of products as given instead of measuring.
    pub(crate) fn set_gflops(&self, gflops: f64) -> Result<()> {
        if !(gflops.is_finite() && gflops > 0.0) {
            bail!("--gflops {gflops}: must be a positive number");
        }
        let rates =
            Rates { flops: gflops * 1e9, bytes: gflops * 1e9 / flops_per_byte(self.profile) };
        self.rates.set(rates).map_err(|_| anyhow::anyhow!("rates were set already"))
    }

    fn rates_file(&self) -> Option<PathBuf> {
        let folder = hub::default_folder().ok()?;
        let name = format!("rates-{}-{:?}-{}.json", name(self.profile), self.isa, self.threads);
        Some(folder.join(name))
    }

    fn stored_rates(&self) -> Option<Rates> {
        let text = std::fs::read_to_string(self.rates_file()?).ok()?;
        let stored: StoredRates = serde_json::from_str(&text).ok()?;
        (stored.processor == processor())
            .then_some(Rates { flops: stored.flops, bytes: stored.bytes })
    }

    /// A rate that cannot be stored is measured again next time; nothing else depends on it.
    fn measure_and_store(&self) -> Rates {
        let flops = measure(self.planner.context());
        let rates = Rates { flops, bytes: flops / flops_per_byte(self.profile) };
        if let Some(file) = self.rates_file() {
            let stored =
                StoredRates { processor: processor(), flops: rates.flops, bytes: rates.bytes };
            if let Ok(text) = serde_json::to_string(&stored)
                && let Some(folder) = file.parent()
                && std::fs::create_dir_all(folder).is_ok()
            {
                let _ = std::fs::write(&file, text);
            }
        }
        rates
    }
}

/// Rates as kept in the cache folder.
#[derive(Serialize, Deserialize)]
struct StoredRates {
    processor: String,
    flops: f64,
    bytes: f64,
}

/// Matrix rate over memory rate, typical of processors with two memory channels a core: and two vector units, or the
/// matrix tiles that a profile is for (without them the rate of products is lower, and so is this).
fn flops_per_byte(profile: Profile) -> f64 {
    match profile {
        Profile::CpuBf16Tiles if cpu::has_native_tiles() => 32.0,
        Profile::CpuF32 | Profile::CpuBf16 | Profile::CpuBf16Tiles => 8.0,
    }
}

/// The processor's name, where the system tells it.
pub(crate) fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|l| l.strip_prefix("model name")?.split(':').nth(1));
    name.map_or_else(|| std::env::consts::ARCH.to_string(), |n| n.trim().to_string())
}

/// Operations a second of a product shaped like a small model's: the best of a few runs.
fn measure(context: &Context) -> f64 {
    const M: usize = 512;
    const N: usize = 1024;
    const K: usize = 1024;
    const RUNS: usize = 5;
    let (a, b) = (vec![0.5f32; M * K], vec![0.25f32; N * K]);
    let mut out = vec![0f32; M * N];
    let term =
        Term { a: Operand::rows(Elems::F32(&a), K), b: Operand::rows(Elems::F32(&b), K), k: K };
    let chain = [term];
    let leaves = [chain.as_slice()];
    let product = Product { m: M, n: N, leaves: &leaves, tail: &[], alpha: 1.0, init: Init::None };
    let mut scratch =
        vec![0u8; workspace_bytes(&Shape::of(&product, context.arithmetic()), context.threads())];
    let mut best = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        let view = OutView::f32(&mut out, N);
        matmul(context, &product, view, &mut scratch)
            .expect("a product of constant shape fits its scratch");
        best = best.min(start.elapsed().as_secs_f64());
    }
    2.0 * (M * N * K) as f64 / best
}

/// Refuses a plan over the memory that the system has free: without it, a run would be killed in its middle.
pub(crate) fn check_available(ledger: &Ledger) -> Result<()> {
    let Some(available) = available_bytes() else { return Ok(()) };
    if ledger.total() > available {
        bail!(
            "the plan needs {} and the machine has {} free ({ledger}): lower the shape, or give --memory to \
             recompute more",
            Bytes(ledger.total()),
            Bytes(available)
        );
    }
    Ok(())
}

/// Bytes that the system can still give, where it tells.
pub(crate) fn available_bytes() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<usize>().ok()? * 1024)
}

/// Resident bytes of this process, where the system tells them.
pub(crate) fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

/// Peak resident bytes of this process.
pub(crate) fn peak_resident_bytes() -> Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok());
    Ok(kib.context("/proc/self/status has no VmHWM")? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::Kind;

    #[test]
    fn a_plan_over_the_free_memory_is_refused() {
        check_available(&Ledger::default()).unwrap();
        let mut all = Ledger::default();
        all.add(Kind::Weight, 1 << 60);
        let refused = check_available(&all).unwrap_err().to_string();
        for words in ["the plan needs", "the machine has", "free", "weights", "--memory"] {
            assert!(refused.contains(words), "no `{words}` in: {refused}");
        }
    }
}
