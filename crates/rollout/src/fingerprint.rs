//! A hash of whole parameters that does not depend on how ranks share them.

use engine::{Engine, EngineError};
use program::graph::{Param, Split};
use program::ops::Group;
use program::store::share;
use program::{ParamId, Rank, Topology};
use std::fmt;
use std::ops::Range;

const BYTES: usize = blake3::OUT_LEN;

/// The BLAKE3 hash of the names and leaves of some parameters, in order: each leaf of the canon hashed alone, row by row
/// as little-endian f32, padding rows included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; BYTES]);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A fingerprint that cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    /// Another rank failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Ranks that should hold the same leaf hold different ones.
    #[error("leaf {leaf} of `{name}` on rank {rank} is not that of the ranks before it")]
    Replicas {
        /// The parameter.
        name: String,
        /// The leaf.
        leaf: usize,
        /// The rank that differs.
        rank: usize,
    },
    /// Another number of hashes than the parameters have leaves.
    #[error("rank {rank} hashed other parameters than this one")]
    Count {
        /// The rank.
        rank: usize,
    },
}

impl Fingerprint {
    /// The fingerprint of an engine's parameters. All ranks of its topology ask together.
    ///
    /// # Errors
    /// [`FingerprintError`].
    pub fn of(engine: &Engine<'_>, params: &[ParamId]) -> Result<Fingerprint, FingerprintError> {
        let store = &engine.blueprint.store;
        let mut mine = Vec::new();
        for &id in params {
            let param = engine.graph.param_info(id);
            let (rows, cols) = share(param, &store.topology, store.rank);
            let values = engine.read_param(id);
            for leaf in leaves(param, &store.topology, store.rank) {
                let hash = hash_leaf(param, leaf, &values, (&rows, &cols));
                mine.extend(hash.as_bytes());
            }
        }
        let all = engine.all_gather(Group::All, "hashes of leaves", &mine)?;
        let named = params.iter().map(|&id| engine.graph.param_info(id));
        combine(&named.collect::<Vec<_>>(), &store.topology, &all)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// From the bytes of another; `None` for another number of them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Fingerprint> {
        Some(Fingerprint(bytes.try_into().ok()?))
    }
}

/// Leaves that a rank holds.
fn leaves(param: &Param, topology: &Topology, rank: Rank) -> Range<usize> {
    match &param.split {
        Split::Replicated => 0..1,
        Split::Rows(cut) | Split::Cols(cut) => cut.owned_leaves(topology.tp, rank.tp),
    }
}

fn hash_leaf(
    param: &Param,
    leaf: usize,
    values: &[f32],
    (rows, cols): (&Range<usize>, &Range<usize>),
) -> blake3::Hash {
    let (leaf_rows, leaf_cols) = match &param.split {
        Split::Replicated => (rows.clone(), cols.clone()),
        Split::Rows(cut) => (cut.leaf(leaf), cols.clone()),
        Split::Cols(cut) => (rows.clone(), cut.leaf(leaf)),
    };
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::with_capacity(leaf_cols.len() * size_of::<f32>());
    for row in leaf_rows {
        let start = (row - rows.start) * cols.len() + (leaf_cols.start - cols.start);
        bytes.clear();
        bytes.extend(values[start..start + leaf_cols.len()].iter().flat_map(|v| v.to_le_bytes()));
        hasher.update(&bytes);
    }
    hasher.finalize()
}

/// Joins the hashes of every rank; ranks that hold the same leaf must agree.
fn combine(
    params: &[&Param],
    topology: &Topology,
    all: &[Vec<u8>],
) -> Result<Fingerprint, FingerprintError> {
    let mut hashes: Vec<_> = all.iter().map(|bytes| bytes.chunks_exact(BYTES)).collect();
    let mut hasher = blake3::Hasher::new();
    for param in params {
        let count = match &param.split {
            Split::Replicated => 1,
            Split::Rows(cut) | Split::Cols(cut) => cut.leaves(),
        };
        let mut whole: Vec<Option<&[u8]>> = vec![None; count];
        for (rank, hashes) in hashes.iter_mut().enumerate() {
            for leaf in leaves(param, topology, Rank::of(rank, topology)) {
                let hash = hashes.next().ok_or(FingerprintError::Count { rank })?;
                if whole[leaf].replace(hash).is_some_and(|earlier| earlier != hash) {
                    let name = param.name.to_string();
                    return Err(FingerprintError::Replicas { name, leaf, rank });
                }
            }
        }
        hasher.update(param.name.as_bytes());
        whole.into_iter().flatten().for_each(|hash| {
            hasher.update(hash);
        });
    }
    if let Some(rank) = hashes.iter_mut().position(|hashes| hashes.next().is_some()) {
        return Err(FingerprintError::Count { rank });
    }
    Ok(Fingerprint(*hasher.finalize().as_bytes()))
}
