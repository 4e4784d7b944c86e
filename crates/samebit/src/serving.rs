//! What a server takes of what a run makes: an adapter beside the base, or merged weights, and why.
//!
//! The facts are in `serving.toml`, each with its source.

use anyhow::{Context, Result};
use clap::ValueEnum;
use families::{LoraSpec, PatternMatch, Train};
use formats::{ModelConfig, RopeScaling};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt::Write;

const TABLE: &str = include_str!("serving.toml");

/// A server that a plan can be made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Server {
    Vllm,
    #[value(name = "llama.cpp")]
    LlamaCpp,
    Transformers,
}

impl Server {
    fn name(self) -> &'static str {
        match self {
            Server::Vllm => "vllm",
            Server::LlamaCpp => "llama.cpp",
            Server::Transformers => "transformers",
        }
    }
}

/// The table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Targets {
    target: Vec<Target>,
}

/// What one server takes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    name: String,
    version: String,
    sources: Vec<String>,
    /// The form of adapters that it loads.
    adapter: String,
    /// How an adapter is loaded; `{rank}` is the rank to ask for.
    load: String,
    /// How adapters change while it runs.
    hot: String,
    /// Values of its limit on ranks; none where it has no limit.
    ranks: Vec<usize>,
    /// Its limit where none is asked for.
    default_rank: Option<usize>,
    /// Modules that an adapter may change, by the last part of their names.
    modules: Vec<String>,
    rslora: bool,
    module_ranks: bool,
    modules_to_save: bool,
    dora: bool,
    /// Types of whole weights.
    weights: Vec<String>,
    /// How whole weights are served.
    whole: String,
    /// Rope scalings that it does not compute.
    unsupported_rope: Vec<String>,
}

/// What to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Form {
    /// The adapter, beside the base.
    Adapter,
    /// Whole weights.
    Whole,
    /// Neither.
    Nothing,
}

/// What a server takes of this run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Serving {
    server: String,
    /// The version that the facts are of.
    version: String,
    form: Form,
    /// Why this form, and what to mind.
    why: Vec<String>,
    /// The commands.
    how: String,
    /// How adapters change while the server runs.
    hot: String,
    /// Types of whole weights that it takes.
    weights: Vec<String>,
    /// What it takes of adapters in general, for runs that will differ.
    takes: Takes,
    sources: Vec<String>,
}

/// What a server takes of adapters.
#[derive(Clone, Debug, Serialize)]
struct Takes {
    adapter: String,
    max_rank: Option<usize>,
    modules: Vec<String>,
    rslora: bool,
    module_ranks: bool,
    modules_to_save: bool,
    dora: bool,
}

/// Judges what a run would make.
pub(crate) fn serving(
    server: Server,
    config: &ModelConfig,
    train: &Train,
    patterns: &[PatternMatch],
) -> Result<Serving> {
    let targets: Targets = toml::from_str(TABLE).context("serving.toml")?;
    let target = targets
        .target
        .into_iter()
        .find(|target| target.name == server.name())
        .with_context(|| format!("serving.toml has nothing on {}", server.name()))?;
    Ok(judge(target, config, train, patterns))
}

fn judge(
    target: Target,
    config: &ModelConfig,
    train: &Train,
    patterns: &[PatternMatch],
) -> Serving {
    let mut why = Vec::new();
    let rope = rope_name(&config.rope_scaling);
    let form = if target.unsupported_rope.iter().any(|name| name == rope) {
        why.push(format!("{} computes no {rope} rope scaling, which this model has", target.name));
        Form::Nothing
    } else {
        match train {
            Train::Lora(spec) | Train::Adapted(spec) => {
                let against = objections(&target, spec, patterns);
                let form = if against.is_empty() { Form::Adapter } else { Form::Whole };
                why.extend(against);
                if form == Form::Adapter {
                    why.extend(praise(&target, spec));
                }
                form
            }
            Train::Full | Train::Nothing => {
                why.push("every parameter is trained, so the product is a whole model".into());
                Form::Whole
            }
        }
    };
    if config.tie_word_embeddings {
        why.push(
            "the head is tied to the embedding: neither can be in an adapter, and merging leaves them tied".into(),
        );
    }
    let how = match (form, train) {
        (Form::Nothing, _) => "nothing to run".into(),
        (Form::Adapter, Train::Lora(spec) | Train::Adapted(spec)) => {
            let rank = limit(&target, spec.r).unwrap_or(spec.r);
            target.load.replace("{rank}", &rank.to_string())
        }
        (_, Train::Full) => target.whole.replace(" --adapter ADAPTER", "").replace(
            "samebit merge MODEL ADAPTER --out FOLDER, then ",
            "FOLDER is the run's model/: ",
        ),
        _ => target.whole.clone(),
    };
    Serving {
        server: target.name,
        version: target.version,
        form,
        why,
        how,
        hot: target.hot,
        weights: target.weights,
        takes: Takes {
            adapter: target.adapter,
            max_rank: target.ranks.last().copied(),
            modules: target.modules,
            rslora: target.rslora,
            module_ranks: target.module_ranks,
            modules_to_save: target.modules_to_save,
            dora: target.dora,
        },
        sources: target.sources,
    }
}

/// The limit on ranks to ask for; `None` where there is none, or none that is enough.
fn limit(target: &Target, rank: usize) -> Option<usize> {
    target.ranks.iter().copied().find(|&limit| limit >= rank)
}

/// Why the adapter cannot be loaded.
fn objections(target: &Target, spec: &LoraSpec, patterns: &[PatternMatch]) -> Vec<String> {
    let mut why = Vec::new();
    if let (Some(most), None) = (target.ranks.last(), limit(target, spec.r)) {
        why.push(format!("rank {} is over the {most} that {} takes", spec.r, target.name));
    }
    if spec.rslora && !target.rslora {
        why.push(format!("{} does not read use_rslora and would scale otherwise", target.name));
    }
    let kinds: BTreeSet<&str> = patterns
        .iter()
        .flat_map(|pattern| &pattern.modules)
        .filter_map(|module| module.rsplit('.').next())
        .collect();
    for kind in kinds {
        if !target.modules.iter().any(|known| known == kind) {
            why.push(format!("{} takes no adapter of {kind}", target.name));
        }
    }
    why
}

/// What makes the adapter load, and what to mind.
fn praise(target: &Target, spec: &LoraSpec) -> Vec<String> {
    let mut why = Vec::new();
    match (limit(target, spec.r), target.default_rank) {
        (Some(limit), Some(default)) if spec.r > default => why.push(format!(
            "rank {} needs a limit of {limit}; without asking, {} stops at {default}",
            spec.r, target.name
        )),
        (Some(limit), _) => why.push(format!("rank {} is within a limit of {limit}", spec.r)),
        (None, _) => why.push(format!("{} has no limit on ranks", target.name)),
    }
    why.push("one rank and one scale for all modules, plain A and B: what samebit trains".into());
    if spec.rslora {
        why.push("use_rslora is read".into());
    }
    if target.adapter == "gguf" {
        why.push("adapters are GGUF files, over a GGUF base of any type".into());
    }
    why
}

fn rope_name(scaling: &RopeScaling) -> &'static str {
    match scaling {
        RopeScaling::None => "none",
        RopeScaling::Linear { .. } => "linear",
        RopeScaling::Dynamic { .. } => "dynamic",
        RopeScaling::Llama3 { .. } => "llama3",
        RopeScaling::Yarn { .. } => "yarn",
    }
}

/// For people.
pub(crate) fn text(serving: &Serving) -> String {
    let form = match serving.form {
        Form::Adapter => "the adapter loads as it is",
        Form::Whole => "merged weights",
        Form::Nothing => "not at all",
    };
    let mut text = format!("serve with {} ({}): {form}\n", serving.server, serving.version);
    for why in &serving.why {
        writeln!(text, "  - {why}").expect("a string can be written to");
    }
    writeln!(text, "  how: {}", serving.how).expect("a string can be written to");
    if serving.form == Form::Adapter {
        writeln!(text, "  while it runs: {}", serving.hot).expect("a string can be written to");
    }
    writeln!(text, "  whole weights as: {}", serving.weights.join(", "))
        .expect("a string can be written to");
    for source in &serving.sources {
        writeln!(text, "  source: {source}").expect("a string can be written to");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rope: &str) -> ModelConfig {
        let json = serde_json::json!({
            "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 12,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
            "rms_norm_eps": 1e-6, "max_position_embeddings": 64, "tie_word_embeddings": true,
            "rope_scaling": if rope == "none" { serde_json::Value::Null }
                else { serde_json::json!({"rope_type": rope, "factor": 2.0}) },
        });
        ModelConfig::from_json(json.as_object().unwrap().clone()).unwrap()
    }

    fn lora(r: usize) -> Train {
        Train::Lora(LoraSpec { r, alpha: 1.0, rslora: true, targets: vec!["all-linear".into()] })
    }

    fn of(server: Server, rope: &str, train: &Train, module: &str) -> Serving {
        let patterns = [PatternMatch {
            pattern: "x".into(),
            modules: vec![format!("model.layers.0.{module}")],
            layers_without: Vec::new(),
        }];
        serving(server, &config(rope), train, &patterns).unwrap()
    }

    #[test]
    fn every_server_is_in_the_table_with_sources() {
        for server in Server::value_variants() {
            let serving = of(*server, "none", &lora(8), "mlp.up_proj");
            assert_eq!(serving.form, Form::Adapter, "{}", serving.server);
            assert!(
                serving.sources.iter().all(|s| s.starts_with("https://"))
                    && !serving.sources.is_empty()
            );
            assert!(serving.why.iter().any(|why| why.contains("tied")));
            assert!(text(&serving).contains("the adapter loads as it is"));
        }
        let targets: Targets = toml::from_str(TABLE).unwrap();
        assert_eq!(targets.target.len(), Server::value_variants().len());
    }

    #[test]
    fn ranks_are_held_against_limits() {
        let how = |r| of(Server::Vllm, "none", &lora(r), "mlp.up_proj");
        assert!(how(16).how.contains("--max-lora-rank 16"));
        assert!(how(20).how.contains("--max-lora-rank 32"));
        assert!(how(20).why[0].contains("stops at 16"));
        let over = how(513);
        assert_eq!(over.form, Form::Whole);
        assert!(over.why[0].contains("rank 513 is over the 512"), "{:?}", over.why);
        assert!(over.how.contains("samebit merge"));
        assert_eq!(of(Server::LlamaCpp, "none", &lora(513), "mlp.up_proj").form, Form::Adapter);
    }

    #[test]
    fn what_is_not_taken_is_merged_or_refused() {
        let head = of(Server::Vllm, "none", &lora(8), "lm_head");
        assert_eq!(head.form, Form::Whole);
        assert!(head.why[0].contains("lm_head"));
        let rope = of(Server::LlamaCpp, "dynamic", &lora(8), "mlp.up_proj");
        assert_eq!(rope.form, Form::Nothing);
        assert_eq!(of(Server::Vllm, "dynamic", &lora(8), "mlp.up_proj").form, Form::Adapter);
        let full = of(Server::Transformers, "none", &Train::Full, "mlp.up_proj");
        assert_eq!(full.form, Form::Whole);
        assert!(full.how.contains("the run's model/"), "{}", full.how);
    }

    /// A fact that is turned round changes the verdict.
    #[test]
    fn rslora_and_modules_are_read_from_the_table() {
        let targets: Targets = toml::from_str(TABLE).unwrap();
        let mut target = targets.target[0].clone();
        let verdict = |target: &Target| judge(target.clone(), &config("none"), &lora(8), &[]).form;
        assert_eq!(verdict(&target), Form::Adapter);
        target.rslora = false;
        assert_eq!(verdict(&target), Form::Whole);
    }
}
