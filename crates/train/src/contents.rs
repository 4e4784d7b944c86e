//! What a record says of an engine, a data set and settings: read from what runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use data::{Schedule, Size};
use engine::{Compiled, Engine, EngineError};
use program::graph::{Lora, Node};
use program::{Kind, Ledger, ParamId, listing};
use record::{
    Arithmetic, DataRecord, Identity, KernelUse, KindBytes, LayerAdapters, Memory, RankMemory,
    Record, Setting, Status,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::error::{TrainError, of_ranks};
use crate::fingerprint;
use crate::run::Run;
use crate::settings::{Profile, Requested, Source};
use crate::surroundings::Surroundings;

/// Settings that a resumed run may have otherwise: they change no bit of it.
pub const FREE: [&str; 14] = [
    "out",
    "data",
    "eval",
    "encode_cache",
    "encode_cache_limit",
    "save_every",
    "save_every_minutes",
    "keep_checkpoints",
    "threads",
    "tp",
    "cp",
    "dp",
    "memory",
    "loss_limit",
];

/// Name of the hash of the base weights in an identity.
pub const WEIGHTS: &str = "base_weights";

/// Trained parameters in the model's order.
pub fn trained(engine: &Engine<'_>) -> impl Iterator<Item = ParamId> {
    engine.graph.param_ids().filter(|&id| engine.blueprint.store.slot(id).state.is_some())
}

/// A value as it is recorded; what JSON cannot write is null.
fn value_of(value: &impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

fn object(value: &impl Serialize) -> Map<String, Value> {
    match value_of(value) {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// Every setting of `resolved`, which has a [`Chosen`](crate::Chosen) or null by key, with what was asked for it.
///
/// `asked` serializes to what was asked by key, null where nothing was.
pub fn settings(
    asked: &impl Serialize,
    sources: &BTreeMap<String, Source>,
    resolved: Map<String, Value>,
) -> Vec<Setting> {
    let asked = object(asked);
    resolved
        .into_iter()
        .map(|(key, chosen)| Setting {
            requested: asked.get(&key).cloned().unwrap_or(Value::Null),
            source: sources.get(&key).map_or(Value::Null, value_of),
            resolved: chosen.get("value").cloned().unwrap_or(Value::Null),
            why: chosen["why"].as_str().unwrap_or("not set").to_owned(),
            key,
        })
        .collect()
}

/// What a run says of itself; the rest of its record is read from its engine and its surroundings.
pub struct About<'a> {
    /// What kind of run: `train`, `rl`.
    pub kind: &'a str,
    /// Every setting.
    pub settings: Vec<Setting>,
    /// Settings that a resumed run may have otherwise.
    pub free: Vec<&'a str>,
    /// Hashes of the run's identity: data and order.
    pub hashes: BTreeMap<String, String>,
    /// The arithmetic.
    pub profile: Profile,
    /// The lease.
    pub lease_bytes: Option<usize>,
    /// Optimizer steps of the whole run.
    pub steps: usize,
    /// The data.
    pub data: DataRecord,
}

/// The record of a run that begins. On the first rank, while the others follow.
///
/// # Errors
/// Another rank failed.
pub fn begin(
    engine: &Engine<'_>,
    about: About<'_>,
    surroundings: &Surroundings,
) -> Result<Record, TrainError> {
    let settings = about.settings.iter().filter(|s| !about.free.contains(&s.key.as_str()));
    let settings = settings.map(|s| (s.key.clone(), s.resolved.clone())).collect();
    let mut hashes = surroundings.hashes.clone();
    hashes.extend(about.hashes);
    let mut put = |key: &str, value: String| hashes.insert(key.to_owned(), value);
    put(WEIGHTS, fingerprint::weights(engine).map_err(of_ranks)?);
    put("program", fingerprint::programs(engine));
    put("binary", surroundings.binary.blake3.clone());
    put("version", env!("CARGO_PKG_VERSION").to_owned());
    let trained = engine.graph.params.iter().filter(|param| param.trainable);
    Ok(Record {
        format: record::FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kind: about.kind.to_owned(),
        status: Status::Running,
        sessions: Vec::new(),
        directory: surroundings.directory.clone(),
        git: surroundings.git.clone(),
        machine: surroundings.machine.clone(),
        settings: about.settings,
        identity: Identity { settings, hashes },
        programs: programs(engine),
        arithmetic: Arithmetic {
            profile: value_of(&about.profile).as_str().unwrap_or_default().to_owned(),
            device: surroundings.device.clone(),
            kernels: Vec::new(),
        },
        adapters: adapters(engine),
        steps: about.steps,
        trained_parameters: trained.map(|param| param.elements()).sum(),
        data: about.data,
        memory: memory(engine, about.lease_bytes).map_err(of_ranks)?,
        gates: Vec::new(),
        tensors: Vec::new(),
    })
}

/// 56 bits of a hash over what ranks must have alike and each has from its own host: settings, data, program. Weights are
/// the same files of one reference, or their difference shows in what replicas gather.
pub(crate) fn of_every_rank(run: &Run<'_, '_>) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut put = |key: &str, value: &str| {
        for part in [key, value] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
    };
    let (asked, sources) = (&run.requested.settings, &run.requested.sources);
    for setting in settings(asked, sources, object(run.resolved)) {
        if !FREE.contains(&setting.key.as_str()) {
            put(&setting.key, &setting.resolved.to_string());
        }
    }
    put("data", &run.dataset.identity());
    if let Some(held_out) = run.evaluation {
        put("evaluation_data", &held_out.identity());
    }
    put("binary", &run.surroundings.binary.blake3);
    let mut bits = [0; 8];
    bits[..7].copy_from_slice(&hasher.finalize().as_bytes()[..7]);
    u64::from_le_bytes(bits)
}

/// BLAKE3 over the first epoch's order: for each step its micro-batches, for each of these its samples.
fn order(schedule: &mut Schedule) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut index = 0;
    while let Some(step) = schedule.step(index).filter(|step| step.epoch == 0) {
        hasher.update(&(step.micro_batches.len() as u64).to_le_bytes());
        for samples in step.micro_batches {
            hasher.update(&(samples.len() as u64).to_le_bytes());
            for &sample in samples {
                hasher.update(&(sample as u64).to_le_bytes());
            }
        }
        index += 1;
    }
    hasher.finalize().to_hex().to_string()
}

/// The record of a fine-tuning run that begins. On the first rank, while the others follow.
pub(crate) fn record(run: &Run<'_, '_>, schedule: &mut Schedule) -> Result<Record, TrainError> {
    let mut hashes = BTreeMap::from([("data".to_owned(), run.dataset.identity())]);
    if let Some(held_out) = run.evaluation {
        hashes.insert("evaluation_data".into(), held_out.identity());
    }
    hashes.insert("order".into(), order(schedule));
    let about = About {
        kind: "train",
        settings: settings(&run.requested.settings, &run.requested.sources, object(run.resolved)),
        free: FREE.to_vec(),
        hashes,
        profile: run.resolved.profile.value,
        lease_bytes: run.resolved.memory.as_ref().map(|chosen| chosen.value.0),
        steps: schedule.steps(),
        data: data(run, schedule),
    };
    begin(run.engine, about, run.surroundings)
}

/// The record of a run that goes on. Everything that is read from what runs is of the session that begins, as in the
/// record `now`; only what belongs to the run's whole life stays.
pub(crate) fn renewed(before: Record, now: Record) -> Record {
    let Record { sessions, gates, tensors, .. } = before;
    Record { sessions, gates, tensors, ..now }
}

fn data(run: &Run<'_, '_>, schedule: &Schedule) -> DataRecord {
    let evaluation = run.evaluation.map_or(Value::Null, |held_out| {
        let Size { samples, tokens, supervised } = held_out.size();
        json!({"samples": samples, "tokens": tokens, "supervised": supervised,
               "also_trained_on": held_out.shared_with(run.dataset)})
    });
    let Size { samples, tokens, supervised } = run.dataset.size();
    DataRecord {
        samples,
        tokens,
        supervised,
        report: value_of(run.dataset.report()),
        packing: value_of(&schedule.report(0)),
        order: schedule.clone().identity(),
        cache: run.surroundings.cache.clone(),
        evaluation,
    }
}

/// BLAKE3 of the listing of every program that was compiled, as it runs.
pub fn programs(engine: &Engine<'_>) -> BTreeMap<String, String> {
    let blueprint = &engine.blueprint;
    let compiled: [(&str, &Option<Compiled>); 6] = [
        ("train", &blueprint.train),
        ("accumulate", &blueprint.accumulate),
        ("optimizer", &blueprint.optimizer),
        ("score", &blueprint.score),
        ("score base", &blueprint.score_base),
        ("generate", &blueprint.generate),
    ];
    compiled
        .into_iter()
        .filter_map(|(name, compiled)| {
            let listing = listing::identity(&compiled.as_ref()?.program);
            Some((name.to_owned(), blake3::hash(listing.as_bytes()).to_hex().to_string()))
        })
        .collect()
}

/// Adapters that the graph has attached, by layer, rank and scale.
fn adapters(engine: &Engine<'_>) -> Vec<LayerAdapters> {
    let graph = &engine.graph;
    let linear = graph.nodes.iter().filter_map(|node| match node {
        Node::Linear { projections, .. } => Some(projections),
        _ => None,
    });
    let mut found: Vec<LayerAdapters> = Vec::new();
    for projection in linear.flatten() {
        let Some(Lora { a, scale, .. }) = &projection.lora else { continue };
        let (layer, param) = (graph.value_info(projection.out).layer, graph.param_info(*a));
        let module = families::lora_module(&param.name).unwrap_or(&param.name).to_owned();
        let (rank, scale) = (param.rows, f64::from(*scale));
        let alike = |of: &&mut LayerAdapters| {
            of.layer == layer && of.rank == rank && of.scale.to_bits() == scale.to_bits()
        };
        match found.iter_mut().find(alike) {
            Some(of) => of.modules.push(module),
            None => found.push(LayerAdapters { layer, modules: vec![module], rank, scale }),
        }
    }
    found
}

/// Bytes by kind of every rank, planned and allocated. On the first rank, while the others follow.
///
/// # Errors
/// Another rank failed.
pub(crate) fn memory(
    engine: &Engine<'_>,
    lease_bytes: Option<usize>,
) -> Result<Memory, EngineError> {
    let ledgers = engine.ledgers_served()?;
    let of_ranks = ledgers.iter().map(|of| kinds(&of.planned, &of.allocated)).collect();
    Ok(Memory {
        ranks: distinct(of_ranks),
        phases: Vec::new(),
        lease_bytes,
        peak_resident_bytes: record::peak_resident_bytes(),
    })
}

/// Ranks with the same bytes are one row.
pub fn distinct(of_ranks: Vec<Vec<KindBytes>>) -> Vec<RankMemory> {
    let mut found: Vec<(Vec<KindBytes>, Vec<usize>)> = Vec::new();
    for (rank, kinds) in of_ranks.into_iter().enumerate() {
        match found.iter_mut().find(|(known, _)| *known == kinds) {
            Some((_, ranks)) => ranks.push(rank),
            None => found.push((kinds, vec![rank])),
        }
    }
    let of = |(kinds, members): (Vec<KindBytes>, Vec<usize>)| RankMemory {
        ranks: ranges(&members),
        kinds,
    };
    found.into_iter().map(of).collect()
}

/// Bytes of every kind.
pub fn kinds(planned: &Ledger, used: &Ledger) -> Vec<KindBytes> {
    let of = |kind: Kind| KindBytes {
        kind: kind.name().to_owned(),
        planned_bytes: planned.bytes(kind),
        used_bytes: used.bytes(kind),
    };
    Kind::ALL.into_iter().map(of).collect()
}

/// Kernels as they ran so far.
pub fn kernels(engine: &Engine<'_>) -> Vec<KernelUse> {
    let uses = engine.kernels().into_iter();
    uses.map(|of| KernelUse {
        program: of.program.to_owned(),
        op: of.op,
        kernel: of.kernel.to_string(),
        layers: ranges(&of.layers),
        times: of.times,
    })
    .collect()
}

/// Ascending numbers as `0-3,7`.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let text = |(first, last): (usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.into_iter().map(text).collect::<Vec<_>>().join(",")
}

/// The settings of a recorded run as they were asked for, to go on with them in the folder where it lies now. Relative
/// paths count from [`Record::directory`].
///
/// # Errors
/// A record whose settings this version does not have.
pub fn requested<S: DeserializeOwned>(
    record: &Record,
    folder: PathBuf,
) -> Result<Requested<S>, serde_json::Error> {
    let asked = record.settings.iter().filter(|setting| !setting.requested.is_null());
    let (mut settings, mut sources) = (Map::new(), Map::new());
    for setting in asked {
        settings.insert(setting.key.clone(), setting.requested.clone());
        sources.insert(setting.key.clone(), setting.source.clone());
    }
    settings.insert("out".into(), value_of(&folder));
    Ok(Requested {
        settings: serde_json::from_value(Value::Object(settings))?,
        sources: serde_json::from_value(Value::Object(sources))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_with_the_same_bytes_are_one_row() {
        let rank = |planned: usize, allocated: usize| {
            let mut both = [Ledger::default(); 2];
            both[0].add(Kind::ALL[0], planned);
            both[1].add(Kind::ALL[0], allocated);
            kinds(&both[0], &both[1])
        };
        let usual = || rank(8, 8);
        let found = distinct(vec![usual(), usual(), rank(4, 4), usual(), rank(8, 9)]);
        let rows: Vec<_> = found
            .iter()
            .map(|of| (&*of.ranks, of.kinds[0].planned_bytes, of.kinds[0].used_bytes))
            .collect();
        assert_eq!(rows, [("0-1,3", 8, 8), ("2", 4, 4), ("4", 8, 9)]);
    }

    #[test]
    fn neighbours_are_joined() {
        for (numbers, text) in
            [(&[][..], ""), (&[3], "3"), (&[0, 1, 2], "0-2"), (&[0, 2, 3, 9], "0,2-3,9")]
        {
            assert_eq!(super::ranges(numbers), text);
        }
    }
}
