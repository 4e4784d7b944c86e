//! The report of `samebit data`.

use crate::model::Model;
use crate::output::{Table, duration, thousands};
use crate::sample_view::{self, SampleView};
use crate::tuning::{self, Data};
use data::{
    Bin, CacheOutcome, CacheState, Counts, Dataset, OrderReport, PackReport, Report, Schedule,
    Size, histogram,
};
use serde::Serialize;
use train::Resolved;

/// Everything that the command says.
#[derive(Serialize)]
pub(crate) struct DataReport {
    model: String,
    /// Hash of what the data comes to: ids, flags, weights.
    identity: String,
    max_length: usize,
    too_long: train::TooLongPolicy,
    file_bytes: usize,
    cache: CacheOutcome,
    /// Which code turned text into ids; null where the cache had them.
    encoder: Option<String>,
    /// What was read, kept and dropped, of all of it.
    report: Report,
    /// What is trained on: `identity`, the histograms, packing, steps and order are of these.
    trained: Size,
    /// What is held out, or given, to evaluate on.
    held_out: Option<Size>,
    /// Samples held out that are trained on too.
    shared: usize,
    lengths: Vec<Bin>,
    supervised: Vec<Bin>,
    packing: PackReport,
    steps: usize,
    order: OrderReport,
    /// Hash of which samples each step sees.
    order_identity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<SampleView>,
}

impl DataReport {
    pub(crate) fn new(
        model: &Model,
        resolved: &Resolved,
        data: Data,
        schedule: &mut Schedule,
        sample: Option<SampleView>,
    ) -> DataReport {
        let Data { dataset, evaluation, cache, bytes, way, .. } = data;
        DataReport {
            model: model.identity.clone(),
            identity: dataset.identity(),
            max_length: resolved.max_length.value,
            too_long: resolved.too_long.value,
            file_bytes: bytes,
            cache,
            encoder: way,
            report: dataset.report().clone(),
            trained: dataset.size(),
            held_out: evaluation.as_ref().map(Dataset::size),
            shared: evaluation.as_ref().map_or(0, |held_out| held_out.shared_with(&dataset)),
            lengths: histogram(dataset.lengths()),
            supervised: histogram(supervised(&dataset)),
            packing: schedule.report(0),
            steps: schedule.steps(),
            order: schedule.order_report(&dataset, 0),
            order_identity: schedule.identity(),
            sample,
        }
    }
}

fn supervised(dataset: &Dataset) -> impl Iterator<Item = usize> {
    (0..dataset.len()).map(|index| dataset.sample(index).supervised_tokens())
}

pub(crate) fn text(report: &DataReport) -> String {
    let mut parts = vec![
        head(report),
        sources(&report.report),
        shares(report),
        bins("tokens of a sample", &report.lengths),
        bins("learnt tokens of a sample", &report.supervised),
        packing(report),
        order(&report.order),
    ];
    parts.extend(report.sample.as_ref().map(sample_view::text));
    parts.join("\n")
}

fn head(report: &DataReport) -> String {
    let encoder = report.encoder.iter().map(|way| format!(" · by {way}"));
    format!(
        "{}\ndata {} · order {}\n{}{}\n",
        report.model,
        &report.identity[..16],
        &report.order_identity[..16],
        cache(&report.cache, report.file_bytes),
        encoder.collect::<String>()
    )
}

/// What the cache did, in a line.
pub(crate) fn cache(cache: &CacheOutcome, file_bytes: usize) -> String {
    let rate = |seconds: f64| {
        let rate = file_bytes as f64 / 1e6 / seconds.max(1e-9);
        format!("encoded in {} ({rate:.1} MB/s)", duration(seconds))
    };
    let done = match (cache.state, cache.encode_s) {
        (CacheState::Hit, _) => format!("read in {:.3} s", cache.lookup_s),
        (_, seconds) => rate(seconds.unwrap_or(0.0)),
    };
    format!("encode cache: {} · {done}", cache.state.name())
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1}%", 100.0 * part as f64 / whole.max(1) as f64)
}

fn sources(report: &Report) -> String {
    let mut table = Table::new(&[
        "source",
        "weight",
        "samples",
        "kept",
        "tokens",
        "learnt",
        "dropped",
        "of tokens",
        "shortened",
        "of tokens",
        "duplicates",
    ]);
    let mut row = |name: &str, weight: String, counts: &Counts| {
        let all = counts.tokens_read();
        table.row([
            name.to_string(),
            weight,
            thousands(counts.read.total()),
            thousands(counts.samples),
            thousands(counts.tokens),
            thousands(counts.supervised),
            thousands(counts.dropped),
            percent(counts.dropped_tokens, all),
            thousands(counts.shortened),
            percent(counts.cut_tokens, all),
            thousands(counts.duplicates),
        ]);
    };
    for source in &report.sources {
        row(&source.name, source.weight.to_string(), &source.counts);
    }
    if report.sources.len() > 1 {
        row("all", String::new(), &report.total);
    }
    table.text()
}

/// What of it is trained on and what is evaluated on.
fn shares(report: &DataReport) -> String {
    let share = |what: &str, size: &Size| {
        format!(
            "{what}: {} samples, {} tokens, {} learnt\n",
            thousands(size.samples),
            thousands(size.tokens),
            thousands(size.supervised)
        )
    };
    let held_out = report.held_out.as_ref().map_or(String::new(), |size| share("held out", size));
    share("trained on", &report.trained) + &held_out + &tuning::shared_text(report.shared)
}

/// Characters of the longest bar.
const BAR: usize = 40;

fn bins(what: &str, bins: &[Bin]) -> String {
    let most = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let all: usize = bins.iter().map(|bin| bin.sum).sum();
    let mut table = Table::new(&[what, "samples", "of all tokens", ""]);
    for bin in bins {
        let range = if bin.from == bin.to {
            bin.from.to_string()
        } else {
            format!("{}–{}", thousands(bin.from), thousands(bin.to))
        };
        // A bin that has any has a mark.
        let bar = "#".repeat((bin.count * BAR).div_ceil(most));
        let bar = format!("{bar:<BAR$}");
        table.row([range, thousands(bin.count), percent(bin.sum, all), bar]);
    }
    table.text()
}

fn packing(report: &DataReport) -> String {
    let p = &report.packing;
    format!(
        "  epoch 1: {} steps, {} micro-batches of {} tokens; {} tokens fill {} ({} rounded up); at most {} sequences in one\n\
         \x20 run: {} steps\n",
        thousands(p.steps),
        thousands(p.micro_batches),
        thousands(p.capacity / p.micro_batches.max(1)),
        thousands(p.tokens),
        percent(p.tokens, p.capacity),
        thousands(p.capacity - p.tokens),
        thousands(p.most_sequences),
        thousands(report.steps),
    )
}

fn order(report: &OrderReport) -> String {
    let mut table = Table::new(&[
        "order",
        "micro-batches",
        "steps",
        "padding",
        "of capacity",
        "sources a step",
        "least",
        "largest share",
    ]);
    for way in &report.alternatives {
        table.row([
            format!("{}{}", way.name, if way.chosen { " (runs)" } else { "" }),
            thousands(way.micro_batches),
            thousands(way.steps),
            thousands(way.padding),
            format!("{:.1}%", 100.0 * way.padding_share),
            format!("{:.2} of {}", way.sources_mean, report.sources),
            way.sources_least.to_string(),
            format!("{:.1}%", 100.0 * way.largest_share_mean),
        ]);
    }
    table.text()
}
