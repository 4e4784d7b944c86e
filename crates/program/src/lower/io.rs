//! Inputs that the host writes and results that it reads.

use super::{Lowering, Mode};
use crate::buffer::{Axis, BufferId, DType, Kind};
use crate::ops::PAGE;

/// Where a program's inputs and results are; absent ones are not used by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Io {
    /// Token ids of this rank, U32 `[tokens, 1]`.
    pub ids: Option<BufferId>,
    /// Positions of this rank's tokens, U32 `[tokens, 1]`.
    pub positions: Option<BufferId>,
    /// Segment table of this rank's queries, U32 `[segments, 4]`: first query row (of this rank), rows, position of the
    /// first row, key row of position 0.
    pub segments: Option<BufferId>,
    /// Segment table of the whole micro-batch, for the backward pass (the same buffer with one context rank).
    pub all_segments: Option<BufferId>,
    /// Target of each token of this rank, U32; `u32::MAX` is inactive.
    pub targets: Option<BufferId>,
    /// d loss / d log-prob of each token of this rank.
    pub coef: Option<BufferId>,
    /// Last kept candidate of each token of this rank, F32 logits and U32 ids; truncated policies only.
    pub kept: Option<(BufferId, BufferId)>,
    /// d loss / d entropy of each token of this rank; where entropies are found.
    pub coef_entropy: Option<BufferId>,
    /// d loss / d log-prob over the whole vocabulary of each token of this rank; truncated policies only.
    pub coef_full: Option<BufferId>,
    /// Ids of all tokens (the same buffer as `ids` with one context rank); trained embeddings only.
    pub all_ids: Option<BufferId>,
    /// Targets of all tokens; trained heads only.
    pub all_targets: Option<BufferId>,
    /// Coefficients of all tokens; trained heads only.
    pub all_coef: Option<BufferId>,
    /// Last kept candidates of all tokens; trained heads only.
    pub all_kept: Option<(BufferId, BufferId)>,
    /// Entropy coefficients of all tokens; trained heads only.
    pub all_coef_entropy: Option<BufferId>,
    /// Whole-vocabulary coefficients of all tokens; trained heads only.
    pub all_coef_full: Option<BufferId>,
    /// Row in this rank's cache of each token of all ranks ([`crate::ops::ELSEWHERE`] where another rank holds its page), U32
    /// `[all tokens, 1]`; generation only.
    pub slots: Option<BufferId>,
    /// Block table, U32 `[blocks, 1]`; generation on one context rank only.
    pub blocks: Option<BufferId>,
    /// Rows of the block table's pages; generation on several context ranks only.
    pub block_rows: Option<Placed>,
    /// Rows whose logits are wanted; generation only.
    pub picked: Option<BufferId>,
    /// The context rank of each picked row, U32 `[picked, 1]`; generation on several context ranks only.
    pub picked_owners: Option<BufferId>,
    /// Log-prob of each token of this rank `[tokens, 1]`.
    pub logp: Option<BufferId>,
    /// Entropy of what each token of this rank was chosen from `[tokens, 1]`, where asked for.
    pub entropy: Option<BufferId>,
    /// Log-prob of each token of this rank over the whole vocabulary `[tokens, 1]`; truncated policies only.
    pub full_logp: Option<BufferId>,
    /// Logits over the padded vocabulary for the picked rows `[picked, padded vocabulary]`, on every rank.
    pub logits: Option<BufferId>,
}

/// Rows that context ranks hold between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Row on this rank, U32 `[rows, 1]`, [`crate::ops::ELSEWHERE`] where another rank holds it.
    pub rows: BufferId,
    /// The rank that holds it, U32 `[rows, 1]`.
    pub owners: BufferId,
}

impl Lowering<'_> {
    pub(super) fn make_inputs(&mut self) {
        let cp = self.store.topology.cp;
        let segments = self.options.segments;
        self.io.ids = Some(self.token_input("ids", DType::U32));
        self.io.positions = Some(self.token_input("positions", DType::U32));
        let table = self.buffer("segments", DType::U32, segments, 4, Axis::Segments, Kind::Input);
        self.io.segments = Some(table);
        match self.options.mode {
            Mode::Generate { picked, blocks } => self.make_rollout_inputs(picked, blocks),
            Mode::Score => self.make_targets(),
            Mode::Train { .. } => {
                self.make_targets();
                self.io.coef = Some(self.token_input("coef", DType::F32));
                let head = self.options.head;
                self.io.coef_entropy =
                    head.entropy.then(|| self.token_input("coef_entropy", DType::F32));
                self.io.coef_full =
                    head.truncated.then(|| self.token_input("coef_full", DType::F32));
                self.io.all_ids = self.of_all_tokens("all_ids", self.io.ids, DType::U32);
                self.io.all_targets =
                    self.of_all_tokens("all_targets", self.io.targets, DType::U32);
                self.io.all_coef = self.of_all_tokens("all_coef", self.io.coef, DType::F32);
                self.io.all_coef_entropy =
                    self.of_all_tokens("all_coef_entropy", self.io.coef_entropy, DType::F32);
                self.io.all_coef_full =
                    self.of_all_tokens("all_coef_full", self.io.coef_full, DType::F32);
                let (logits, ids) = self.io.kept.unzip();
                self.io.all_kept = self
                    .of_all_tokens("all_kept_logits", logits, DType::F32)
                    .zip(self.of_all_tokens("all_kept_ids", ids, DType::U32));
                self.io.all_segments = if cp == 1 {
                    self.io.segments
                } else {
                    Some(self.buffer(
                        "all_segments",
                        DType::U32,
                        segments,
                        4,
                        Axis::AllSegments,
                        Kind::Input,
                    ))
                };
            }
        }
    }

    /// An input of one number for each token of this rank.
    fn token_input(&mut self, name: &str, dtype: DType) -> BufferId {
        self.buffer(name, dtype, self.local_tokens(), 1, Axis::Tokens, Kind::Input)
    }

    /// Targets, and the last kept candidates of a truncated policy.
    fn make_targets(&mut self) {
        self.io.targets = Some(self.token_input("targets", DType::U32));
        self.io.kept = self.options.head.truncated.then(|| {
            (self.token_input("kept_logits", DType::F32), self.token_input("kept_ids", DType::U32))
        });
    }

    fn make_rollout_inputs(&mut self, picked: usize, blocks: usize) {
        let words = |l: &mut Self, name: &str, rows: usize, axis| {
            Some(l.buffer(name, DType::U32, rows, 1, axis, Kind::Input))
        };
        self.io.slots = words(self, "slots", self.all_tokens(), Axis::AllTokens);
        self.io.picked = words(self, "picked", picked, Axis::Picked);
        if self.store.topology.cp == 1 {
            self.io.blocks = words(self, "blocks", blocks, Axis::Blocks);
            return;
        }
        self.io.picked_owners = words(self, "picked_owners", picked, Axis::Picked);
        let rows = words(self, "block_rows", blocks * PAGE, Axis::BlockRows);
        let owners = words(self, "block_owners", blocks * PAGE, Axis::BlockRows);
        self.io.block_rows = rows.zip(owners).map(|(rows, owners)| Placed { rows, owners });
    }

    /// The same input for the tokens of every context rank: the very buffer when there is one rank.
    fn of_all_tokens(
        &mut self,
        name: &str,
        mine: Option<BufferId>,
        dtype: DType,
    ) -> Option<BufferId> {
        if self.store.topology.cp == 1 || mine.is_none() {
            return mine;
        }
        let rows = self.all_tokens();
        Some(self.buffer(name, dtype, rows, 1, Axis::AllTokens, Kind::Input))
    }
}
