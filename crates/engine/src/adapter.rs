//! LoRA matrices: initial values, reading and writing PEFT adapters.

use crate::error::EngineError;
use crate::run::Engine;
use crate::whole::Part;
use canon::random::{Numbers, Purpose};
use formats::peft::{Adapter, AdapterConfig, Factors, Origin};
use program::ParamId;
use std::collections::HashMap;
use std::path::Path;

/// A LoRA pair of the graph.
struct Pair {
    module: String,
    a: ParamId,
    b: ParamId,
}

impl Engine<'_> {
    fn pairs(&self) -> Vec<Pair> {
        let mut found: HashMap<&str, [Option<ParamId>; 2]> = HashMap::new();
        let mut order = Vec::new();
        for id in self.graph.param_ids() {
            let param = self.graph.param_info(id);
            if let Some(module) = families::lora_module(&param.name) {
                let which = usize::from(param.name.ends_with(".lora_B.weight"));
                found.entry(module).or_insert_with(|| {
                    order.push(module);
                    [None; 2]
                })[which] = Some(id);
            }
        }
        order
            .into_iter()
            .filter_map(|module| match found[module] {
                [Some(a), Some(b)] => Some(Pair { module: module.into(), a, b }),
                _ => None,
            })
            .collect()
    }

    /// Gives every LoRA matrix its first values: A uniform in ±1/√in (as PEFT initialises), B zero. The numbers of a whole
    /// matrix are those of its name's index; a rank takes its share of them.
    pub fn init_adapter(&mut self, seed: u64) {
        for (index, pair) in self.pairs().into_iter().enumerate() {
            let a = self.graph.param_info(pair.a);
            let bound = 1.0 / (a.cols as f32).sqrt();
            let mut whole = vec![0.0; a.rows * a.cols];
            Numbers::new(seed, Purpose::Init, index as u64)
                .fill_uniform(0, -bound, bound, &mut whole);
            let b = self.graph.param_info(pair.b);
            let zeros = vec![0.0; b.rows * b.cols];
            self.write_whole(pair.a, &whole);
            self.write_whole(pair.b, &zeros);
        }
    }

    /// Gives every LoRA matrix the values of a PEFT adapter.
    ///
    /// # Errors
    /// Its modules or shapes are not the model's.
    pub fn load_adapter(&mut self, adapter: &Adapter) -> Result<(), EngineError> {
        let pairs = self.pairs();
        for module in adapter.modules() {
            if !pairs.iter().any(|p| p.module == module.name) {
                return Err(EngineError::Adapter(format!(
                    "it changes `{}`, which this model does not have",
                    module.name
                )));
            }
        }
        for pair in pairs {
            let module = adapter.modules().iter().find(|m| m.name == pair.module);
            let Some(module) = module else {
                return Err(EngineError::Adapter(format!("it has nothing for `{}`", pair.module)));
            };
            let (a, b) = (self.graph.param_info(pair.a), self.graph.param_info(pair.b));
            let ours = [a.rows, a.cols, b.rows];
            let theirs = [module.rank, module.in_features, module.out_features];
            if ours != theirs {
                return Err(EngineError::Adapter(format!(
                    "`{}` has rank, inputs, outputs {theirs:?} and the model takes {ours:?}",
                    pair.module
                )));
            }
            let (mut a, mut b) = (vec![0.0; a.elements()], vec![0.0; b.elements()]);
            adapter.read_a(module, &mut a)?;
            adapter.read_b(module, &mut b)?;
            self.write_whole(pair.a, &a);
            self.write_whole(pair.b, &b);
        }
        Ok(())
    }

    /// Writes the adapter to a PEFT folder that must not exist, or be empty, with what it was trained on. On the first rank,
    /// while the others [`Engine::follow`].
    ///
    /// # Errors
    /// Whatever writing gives.
    pub fn save_adapter(
        &self,
        folder: &Path,
        config: &AdapterConfig,
        origin: Option<&Origin>,
    ) -> Result<(), EngineError> {
        let mut values: Vec<(Pair, Vec<f32>, Vec<f32>)> = Vec::new();
        for pair in self.pairs() {
            let whole = |id| self.gather_served(id, Part::Value);
            let (a, b) = (whole(pair.a)?, whole(pair.b)?);
            values.push((pair, a, b));
        }
        let factors: Vec<Factors<'_>> = values
            .iter()
            .map(|(pair, a, b)| Factors {
                module: &pair.module,
                in_features: self.graph.param_info(pair.a).cols,
                out_features: self.graph.param_info(pair.b).rows,
                a,
                b,
            })
            .collect();
        formats::peft::write(folder, config, origin, &factors)?;
        Ok(())
    }
}
