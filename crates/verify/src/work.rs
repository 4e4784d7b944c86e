//! What is verified: a model, prompts, settings, a pair of topologies.

use crate::error::VerifyError;
use crate::seen::sha256;
use arena::Executor;
use canon::policy::scale;
use engine::{Engine, EngineError, Hyper, Sampling};
use program::lower::Head;
use program::{Graph, Topology};
use rl::loss::{KlEstimator, Normalise, PolicyLoss};

/// How an engine gets its weights.
pub type Load<'a> = dyn Fn(&mut Engine<'_>) -> Result<(), EngineError> + Sync + 'a;

/// A model and what it is asked.
pub struct Work<'a> {
    /// The model in words.
    pub name: String,
    /// Hash of its weights before training.
    pub weights: String,
    /// What computes: the arithmetic profile and the program's own hash. Part of the identity.
    pub arithmetic: String,
    /// Its graph, with what is trained.
    pub graph: Graph,
    /// Gives an engine's ranks their first weights.
    pub load: &'a Load<'a>,
    /// Makes the executor of one rank.
    pub executor: &'a (dyn Fn() -> Box<dyn Executor> + Sync),
    /// Prompts as tokens.
    pub prompts: Vec<Vec<u32>>,
    /// Tokens that end a completion.
    pub stops: Vec<u32>,
}

impl Work<'_> {
    /// Hash of everything that may change a bit of a run, topologies apart: weights, graph (with what is trained, types
    /// and constants), prompts, settings, and what computes.
    pub fn identity(&self, settings: &Settings) -> String {
        let Work { name, weights, arithmetic, graph, prompts, stops, .. } = self;
        let version = env!("CARGO_PKG_VERSION");
        let parts = format!(
            "{name} {weights} {arithmetic} {version} {graph:?} {prompts:?} {stops:?} {settings:?}"
        );
        sha256(parts.into_bytes())
    }
}

/// Settings of the updates: part of the identity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Updates.
    pub steps: usize,
    /// Completions of each prompt.
    pub samples: usize,
    /// Most tokens of a completion.
    pub max_response: usize,
    /// Logical micro-batches of a step; divides prompts × samples.
    pub accumulation: usize,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Coefficient in the loss of the divergence from the reference model (estimator k3); 0 for none. With LoRA the
    /// reference is the base, else the model before the first update.
    pub kl_coef: f64,
    /// The optimizer.
    pub hyper: Hyper,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            steps: 2,
            samples: 4,
            max_response: 24,
            accumulation: 2,
            sampling: Sampling { temperature: 1.0, seed: 1, ..Sampling::default() },
            kl_coef: 0.0,
            hyper: Hyper {
                lr: 1e-3,
                beta1: 0.9,
                beta2: 0.999,
                eps: 1e-8,
                weight_decay: 0.01,
                max_grad_norm: 1.0,
            },
        }
    }
}

/// A training topology with a rollout topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Of training.
    pub train: Topology,
    /// Of rollout.
    pub rollout: Topology,
}

impl Pair {
    /// One rank for both: the reference.
    pub fn reference(width: usize) -> Pair {
        let one = Topology { width, ..Topology::single() };
        Pair { train: one, rollout: one }
    }

    /// Refuses topologies that cannot run, before anything does.
    ///
    /// # Errors
    /// [`VerifyError::Topology`], [`VerifyError::Setting`].
    pub fn check(&self) -> Result<(), VerifyError> {
        for (side, topology) in [("training", self.train), ("rollout", self.rollout)] {
            topology.check().map_err(|source| VerifyError::Topology { side, source })?;
        }
        if self.rollout.dp > 1 {
            let (what, value) = ("rollout dp", self.rollout.dp);
            return Err(VerifyError::Setting { what, value, needed: "rollout has one replica" });
        }
        Ok(())
    }
}

impl std::fmt::Display for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (t, r) = (self.train, self.rollout);
        write!(f, "training tp {} cp {} dp {}, rollout tp {} cp {}", t.tp, t.cp, t.dp, r.tp, r.cp)
    }
}

impl Settings {
    /// What the head of training finds of each token.
    pub(crate) fn head(&self) -> Head {
        let Sampling { temperature, top_k, top_p, .. } = self.sampling;
        Head { scale: scale(temperature), truncated: top_k > 0 || top_p < 1.0, entropy: false }
    }

    /// The loss: clipped ratios and advantages, every token alike, and the divergence.
    pub(crate) fn loss(&self) -> PolicyLoss {
        PolicyLoss {
            normalise: Normalise::Token,
            max_tokens: self.max_response,
            clip_low: 0.2,
            clip_high: 0.2,
            kl: (self.kl_coef != 0.0).then_some((self.kl_coef, KlEstimator::K3)),
            entropy: 0.0,
        }
    }

    /// Refuses settings under which nothing would be proved.
    ///
    /// # Errors
    /// [`VerifyError::Setting`], [`VerifyError::KlCoef`].
    pub(crate) fn check(&self, work: &Work<'_>) -> Result<(), VerifyError> {
        let completions = work.prompts.len() * self.samples;
        let refuse = |what, value, needed| Err(VerifyError::Setting { what, value, needed });
        if self.steps == 0 {
            return refuse("steps", 0, "at least one update is compared");
        }
        if self.samples < 2 {
            return refuse("samples", self.samples, "a group of at least 2 has advantages");
        }
        if self.max_response == 0 {
            return refuse("max-response-len", 0, "at least one token is generated");
        }
        if !self.kl_coef.is_finite() {
            return Err(VerifyError::KlCoef { value: self.kl_coef });
        }
        let prompt = work.prompts.iter().map(Vec::len).max().unwrap_or(0);
        let positions = work.graph.max_positions;
        if prompt + self.max_response > positions {
            return refuse(
                "max-response-len",
                self.max_response,
                "with the longest prompt it must fit the model's context (max_position_embeddings)",
            );
        }
        if self.accumulation == 0 || !completions.is_multiple_of(self.accumulation) {
            return refuse(
                "accumulation",
                self.accumulation,
                "it must divide prompts × samples, so that micro-batches are alike",
            );
        }
        Ok(())
    }
}
