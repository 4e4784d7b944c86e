//! The figures of a plan.

use crate::device::Device;
use crate::serving::{self, Server, Serving};
use anyhow::{Result, bail};
use engine::{Fit, Fitter, Job, StepShape, TrainShape, Workspace, head_chunk};
use families::{BuildOptions, PatternMatch, Train};
use formats::ModelConfig;
use program::cost::{self, Sequences};
use program::keep::{Keep, Level};
use program::ledger::Bytes;
use program::store::heaviest_rank;
use program::{DType, Graph, Ledger, Program, Rank, Topology};
use serde::Serialize;
use std::collections::BTreeMap;
use train::default_sequences;

/// What to plan.
pub(crate) struct Request {
    pub(crate) train: Train,
    pub(crate) weights: DType,
    pub(crate) topology: Topology,
    /// Tokens and sequences of an evaluation's micro-batch, where there is one.
    pub(crate) score: Option<(usize, usize)>,
    /// Sequences in a logical micro-batch, and tokens of each.
    pub(crate) micro_batch: usize,
    pub(crate) sequence: usize,
    /// The very shape of a run, where one is planned; the two above then describe it.
    pub(crate) exact: Option<StepShape>,
    pub(crate) accumulation: usize,
    /// Bytes that the run may use.
    pub(crate) lease: Option<usize>,
    /// Tokens to train on, over all epochs.
    pub(crate) tokens: Option<u64>,
    /// Whether to fill the table over shapes.
    pub(crate) table: bool,
    /// What is to serve the product.
    pub(crate) server: Option<Server>,
}

/// A plan.
#[derive(Debug, Serialize)]
pub(crate) struct PlanReport {
    pub(crate) model: String,
    pub(crate) architecture: String,
    pub(crate) layers: usize,
    pub(crate) parameters: BTreeMap<&'static str, usize>,
    pub(crate) parameters_total: usize,
    pub(crate) trainable: usize,
    pub(crate) patterns: Vec<Pattern>,
    pub(crate) topology: [usize; 3],
    pub(crate) width: usize,
    pub(crate) replicated: Vec<String>,
    pub(crate) micro_batch: usize,
    pub(crate) sequence: usize,
    /// Tokens of a logical micro-batch.
    pub(crate) micro_tokens: usize,
    pub(crate) accumulation: usize,
    pub(crate) lease_bytes: Option<usize>,
    pub(crate) keep: String,
    pub(crate) ledger: BTreeMap<&'static str, usize>,
    pub(crate) ledger_total_bytes: usize,
    /// Distinct ledgers of the ranks, where there are several ranks and at most 64.
    pub(crate) ranks: Vec<RankLedger>,
    pub(crate) table: Vec<Cell>,
    pub(crate) head: Head,
    pub(crate) work: Work,
    /// With --serve-with.
    pub(crate) serving: Option<Serving>,
}

/// The ledger of some ranks.
#[derive(Debug, Serialize)]
pub(crate) struct RankLedger {
    /// Places `[tp, cp, dp]` of the ranks.
    pub(crate) ranks: Vec<[usize; 3]>,
    pub(crate) ledger: BTreeMap<&'static str, usize>,
    pub(crate) total_bytes: usize,
}

/// What a target pattern matched.
#[derive(Debug, Serialize)]
pub(crate) struct Pattern {
    pub(crate) pattern: String,
    pub(crate) modules: usize,
    pub(crate) layers_without: Vec<usize>,
}

/// One shape of the table.
#[derive(Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) micro_batch: usize,
    pub(crate) sequence: usize,
    /// `None` when nothing fits.
    pub(crate) keep: Option<String>,
    pub(crate) bytes: usize,
    pub(crate) tokens_per_s: f64,
}

/// Memory of the head.
#[derive(Debug, Serialize)]
pub(crate) struct Head {
    pub(crate) whole_logits_bytes: usize,
    pub(crate) chunk_rows: usize,
    pub(crate) chunk_bytes: usize,
}

/// Work and time.
#[derive(Debug, Serialize)]
pub(crate) struct Work {
    /// 4N for LoRA, 6N for full: floating-point operations a token by the rule of thumb.
    pub(crate) rule: &'static str,
    pub(crate) rule_flops_per_token: f64,
    /// Counted from the program, recomputation included.
    pub(crate) program_flops_per_token: f64,
    pub(crate) step_tokens: usize,
    pub(crate) step_s: f64,
    pub(crate) tokens_per_s: f64,
    pub(crate) rate_gflops: f64,
    pub(crate) tokens: Option<u64>,
    pub(crate) steps: Option<u64>,
    pub(crate) total_flops: Option<f64>,
    pub(crate) total_s: Option<f64>,
}

/// Plans a training run.
pub(crate) fn plan(
    config: &ModelConfig,
    model: &str,
    request: &Request,
    device: &Device,
) -> Result<(PlanReport, Program)> {
    let options = BuildOptions {
        width: request.topology.width,
        weights: request.weights,
        train: request.train.clone(),
    };
    let built = families::build(config, &options)?;
    let graph = &built.graph;
    let shape = request.exact.unwrap_or_else(|| step_shape(request.micro_batch, request.sequence));
    let job = Job {
        train: Some(TrainShape {
            tokens: shape.tokens,
            segments: shape.segments,
            accumulation: request.accumulation,
            keep: Keep::uniform(Level::All),
            coef_known: true,
        }),
        score: request.score,
        ..Job::default()
    };
    let workspace = device.workspace();
    let rank = heaviest_rank(graph, request.topology);
    let fitter = Fitter::new(graph, request.topology, rank, &job, &workspace);
    let limit = request.lease.unwrap_or(usize::MAX);
    let Some(fit) = fitter.fastest(shape, limit) else {
        bail!(refusal(&fitter, shape, request, limit));
    };
    let table = match request.table {
        true => table(&fitter, request, device, limit, (shape, &fit)),
        false => Vec::new(),
    };
    let Fit { keep, program, ledger } = fit;
    let report = PlanReport {
        model: model.into(),
        architecture: config.architecture.to_string(),
        layers: graph.layers,
        parameters: parameters_by_kind(graph),
        parameters_total: graph.params.iter().filter(|p| !p.adapter).map(|p| p.elements()).sum(),
        trainable: graph.trainable_elements(),
        patterns: built.patterns.iter().map(pattern).collect(),
        topology: [request.topology.tp, request.topology.cp, request.topology.dp],
        width: request.topology.width,
        replicated: replicated(config, &request.topology),
        micro_batch: request.micro_batch,
        sequence: request.sequence,
        micro_tokens: shape.tokens,
        accumulation: request.accumulation,
        lease_bytes: request.lease,
        keep: keep.to_string(),
        ledger: ledger.rows().map(|(kind, bytes)| (kind.name(), bytes)).collect(),
        ledger_total_bytes: ledger.total(),
        ranks: rank_ledgers(graph, request.topology, shape, keep, (&job, &workspace)),
        table,
        head: head(graph, shape),
        work: work(graph, request, shape.tokens, &program, device),
        serving: request
            .server
            .map(|server| serving::serving(server, config, &request.train, &built.patterns))
            .transpose()?,
    };
    Ok((report, program))
}

/// Most ranks whose ledgers are told apart.
const MOST_RANKS: usize = 64;

/// The distinct ledgers of a topology's ranks, each with its ranks.
fn rank_ledgers(
    graph: &Graph,
    topology: Topology,
    shape: StepShape,
    keep: Keep,
    (job, workspace): (&Job, &Workspace<'_>),
) -> Vec<RankLedger> {
    if topology.ranks() == 1 || topology.ranks() > MOST_RANKS {
        return Vec::new();
    }
    let mut distinct: Vec<(Ledger, Vec<[usize; 3]>)> = Vec::new();
    for index in 0..topology.ranks() {
        let rank = Rank::of(index, &topology);
        let ledger = Fitter::new(graph, topology, rank, job, workspace).ledger(shape, keep);
        let place = [rank.tp, rank.cp, rank.dp];
        match distinct.iter_mut().find(|(known, _)| *known == ledger) {
            Some((_, places)) => places.push(place),
            None => distinct.push((ledger, vec![place])),
        }
    }
    distinct
        .into_iter()
        .map(|(ledger, ranks)| RankLedger {
            ranks,
            ledger: ledger.rows().map(|(kind, bytes)| (kind.name(), bytes)).collect(),
            total_bytes: ledger.total(),
        })
        .collect()
}

fn step_shape(micro_batch: usize, sequence: usize) -> StepShape {
    let tokens = micro_batch * sequence;
    // Room for as many sequences as training makes, so that the plan is its plan.
    let segments = micro_batch.max(default_sequences(tokens));
    StepShape { tokens, segments, coef_known: true }
}

fn refusal(fitter: &Fitter<'_>, shape: StepShape, request: &Request, limit: usize) -> String {
    let least: Ledger = fitter.ledger(shape, Keep::uniform(Level::Input));
    let mut text = format!(
        "{} does not fit: with every layer recomputed it needs {} and the lease is {} ({least}",
        match request.exact {
            Some(shape) => format!("a micro-batch of {} tokens", shape.tokens),
            None => format!("{} × {} tokens", request.micro_batch, request.sequence),
        },
        Bytes(least.total()),
        Bytes(limit)
    );
    let largest = fitter.largest(request.sequence, true, limit);
    if largest.sequence == 0 {
        text.push_str(
            "). No sequence fits: raise --memory, store weights in bf16, or lower the rank",
        );
    } else if largest.micro_batch == 0 {
        text.push_str(&format!(
            "). The longest sequence that fits is {} tokens, micro-batch 1",
            largest.sequence
        ));
    } else {
        text.push_str(&format!(
            "). What fits: micro-batch {} at {} tokens; the longest sequence is {} tokens, micro-batch 1",
            largest.micro_batch, request.sequence, largest.sequence
        ));
    }
    text
}

fn pattern(matched: &PatternMatch) -> Pattern {
    Pattern {
        pattern: matched.pattern.clone(),
        modules: matched.modules.len(),
        layers_without: matched.layers_without.clone(),
    }
}

fn parameters_by_kind(graph: &Graph) -> BTreeMap<&'static str, usize> {
    let mut kinds = BTreeMap::new();
    for param in graph.params.iter().filter(|p| !p.adapter) {
        let name = &param.name;
        let kind = if name.contains("embed_tokens") {
            "embedding"
        } else if name.starts_with("lm_head") {
            "head"
        } else if name.contains("norm") {
            "norms"
        } else if name.contains("self_attn") {
            "attention"
        } else {
            "feed-forward"
        };
        *kinds.entry(kind).or_insert(0) += param.elements();
    }
    kinds
}

/// Dimensions with fewer leaves than tensor ranks, which ranks therefore replicate.
fn replicated(config: &ModelConfig, topology: &Topology) -> Vec<String> {
    let kv = config.num_key_value_heads;
    if kv >= topology.tp {
        return Vec::new();
    }
    vec![format!(
        "{kv} key/value heads over {} tensor ranks: some ranks hold the same heads",
        topology.tp
    )]
}

/// A row a shape; `known` is the step of one of them.
fn table(
    fitter: &Fitter<'_>,
    request: &Request,
    device: &Device,
    limit: usize,
    known: (StepShape, &Fit),
) -> Vec<Cell> {
    let mut cells = Vec::new();
    // Micro-batches of equal tokens are one step: only their attention costs otherwise.
    let mut found: BTreeMap<StepShape, (bool, Fit)> = BTreeMap::new();
    for sequence in [request.sequence / 2, request.sequence, request.sequence * 2] {
        for micro_batch in [1, 2, 4, 8] {
            let shape = step_shape(micro_batch, sequence);
            if sequence == 0 || sequence > fitter.max_positions() {
                continue;
            }
            let (fits, step) = if shape == known.0 {
                (true, known.1)
            } else {
                let found =
                    found.entry(shape).or_insert_with(|| match fitter.fastest(shape, limit) {
                        Some(step) => (true, step),
                        None => (false, fitter.step(shape, Keep::uniform(Level::Input))),
                    });
                (found.0, &found.1)
            };
            let seconds = device.rates().seconds(&step.program, Sequences { length: sequence });
            cells.push(Cell {
                micro_batch,
                sequence,
                keep: fits.then(|| step.keep.to_string()),
                bytes: step.ledger.total(),
                tokens_per_s: shape.tokens as f64 / seconds,
            });
        }
    }
    cells
}

fn head(graph: &Graph, shape: StepShape) -> Head {
    let chunk_rows = head_chunk(graph.vocab).min(shape.tokens);
    Head {
        whole_logits_bytes: shape.tokens * graph.vocab * 4,
        chunk_rows,
        chunk_bytes: chunk_rows * graph.vocab * 4,
    }
}

fn work(
    graph: &Graph,
    request: &Request,
    micro_tokens: usize,
    program: &Program,
    device: &Device,
) -> Work {
    let full = request.train == Train::Full;
    // N counts what a token is multiplied by: matrices, the tied table once as the head; an untied input table is a
    // look-up.
    let n: usize = graph
        .params
        .iter()
        .enumerate()
        .filter(|(i, p)| {
            let is_head = graph.head.is_some_and(|h| h.0 as usize == *i);
            p.rows > 1 && (is_head || !p.name.contains("embed_tokens"))
        })
        .map(|(_, p)| p.elements())
        .sum();
    let rule_flops = if full { 6.0 } else { 4.0 } * n as f64;
    let sequences = Sequences { length: request.sequence };
    let cost = cost::of_program(program, sequences);
    let micro_s = device.rates().seconds(program, sequences);
    let step_tokens = micro_tokens * request.accumulation;
    // Data ranks run a step's micro-batches at the same time.
    let rounds = request.accumulation.div_ceil(request.topology.dp);
    let step_s = micro_s * rounds as f64;
    let tokens_per_s = step_tokens as f64 / step_s;
    // One rank's share of the work: tensor and context ranks do equal parts of it.
    let ranks = (request.topology.tp * request.topology.cp) as f64;
    let per_token = cost.flops * ranks / micro_tokens as f64;
    Work {
        rule: if full { "6N" } else { "4N" },
        rule_flops_per_token: rule_flops,
        program_flops_per_token: per_token,
        step_tokens,
        step_s,
        tokens_per_s,
        rate_gflops: device.rates().flops / 1e9,
        tokens: request.tokens,
        steps: request.tokens.map(|t| t.div_ceil(step_tokens as u64)),
        total_flops: request.tokens.map(|t| t as f64 * per_token),
        total_s: request.tokens.map(|t| t as f64 / tokens_per_s),
    }
}
