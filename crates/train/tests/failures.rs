//! What fails changes nothing and says where; what is the same gives the same.

mod common;

use common::{Fixture, Watch, files};
use engine::Engine;
use train::{Outcome, Run, TrainError};

/// Every trained value and moment, as bits.
fn state(engine: &Engine<'_>) -> Vec<Vec<u32>> {
    let bits = |numbers: Vec<f32>| numbers.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    engine
        .graph
        .param_ids()
        .filter_map(|id| Some((id, engine.read_moments(id)?)))
        .flat_map(|(id, (m, v))| [bits(engine.read_param(id)), bits(m), bits(v)])
        .collect()
}

/// Runs on weights that `spoil` changes; checks that nothing was updated, and gives the error.
fn failed(fixture: &Fixture, spoil: impl Fn(&mut Engine<'_>)) -> TrainError {
    let requested = fixture.requested("out", "mode = \"full\"\n");
    let resolved = fixture.resolved(&requested);
    let mut engine = fixture.engine(&resolved, None);
    spoil(&mut engine);
    let before = state(&engine);
    let mut run = Run {
        engine: &mut engine,
        checkpoint: &fixture.checkpoint,
        dataset: &fixture.dataset,
        requested: &requested,
        resolved: &resolved,
        extra_files: &[],
    };
    let mut watch = Watch::default();
    let error = run.start(&mut watch).unwrap_err();
    assert!(state(&engine) == before, "a failed step changed a parameter or a moment");
    assert!(watch.events.is_empty());
    error
}

fn spoil(engine: &mut Engine<'_>, name: &str, change: impl Fn(&mut [f32])) {
    let id = engine
        .graph
        .param_ids()
        .find(|&id| engine.graph.param_info(id).name.as_ref() == name)
        .unwrap();
    let mut values = engine.read_param(id);
    change(&mut values);
    engine.write_param(id, &values);
}

#[test]
fn a_log_prob_that_is_not_finite_names_the_step_and_the_sample() {
    let lines: Vec<String> = (0..10)
        .map(|i| {
            let last = if i == 6 { "h" } else { "b" };
            format!(r#"{{"prompt": "ab{last}", "completion": "c"}}"#)
        })
        .collect();
    let fixture = Fixture::with_lines("llama", &lines);
    let columns = fixture.checkpoint.config().hidden_size;
    let error = failed(&fixture, |engine| {
        // Only the seventh sample has the character `h`, which is token 8.
        spoil(engine, "model.embed_tokens.weight", |table| table[8 * columns] = f32::NAN);
    });
    let TrainError::NonFiniteLoss { step: 1, sample, value } = &error else { panic!("{error}") };
    assert!(sample.ends_with("data.jsonl:7") && value.is_nan(), "{error}");
}

#[test]
fn a_gradient_that_is_not_finite_names_the_step_and_its_samples() {
    let fixture = Fixture::new("llama");
    let error = failed(&fixture, |engine| {
        // The feed-forward's activations of some 1e36 reach no log-prob through a matrix of zeros, but its gradient is
        // their product with what the steep head sends back.
        let scale = |by: f32| move |weight: &mut [f32]| weight.iter_mut().for_each(|w| *w *= by);
        spoil(engine, "lm_head.weight", scale(1e4));
        spoil(engine, "model.layers.0.mlp.up_proj.weight", scale(1e36));
        spoil(engine, "model.layers.0.mlp.down_proj.weight", scale(0.0));
    });
    let TrainError::NonFiniteGradient { step: 1, samples, .. } = &error else { panic!("{error}") };
    assert!(samples.contains("data.jsonl:"), "{error}");
}

#[test]
fn an_engine_planned_for_other_settings_is_refused() {
    let fixture = Fixture::new("llama");
    let requested = fixture.requested("out", "");
    let resolved = fixture.resolved(&requested);
    let mut other = resolved.clone();
    other.accumulation.value = 2;
    let mut engine = fixture.engine(&other, None);
    let mut run = Run {
        engine: &mut engine,
        checkpoint: &fixture.checkpoint,
        dataset: &fixture.dataset,
        requested: &requested,
        resolved: &resolved,
        extra_files: &[],
    };
    let error = run.start(&mut Watch::default()).unwrap_err();
    assert!(
        matches!(error, TrainError::OtherPlan { what: "accumulation", planned: 2, needed: 3 }),
        "{error}"
    );
    assert!(!fixture.out("out").exists(), "nothing is written");
}

/// Packing, and accumulation with it, is part of a run's identity; threads and times are not.
#[test]
fn the_same_settings_give_the_same_run_and_others_another() {
    let fixture = Fixture::new("llama");
    let product = |out: &str, more: &str| {
        let outcome = fixture.run(out, more, false, &mut Watch::default()).unwrap();
        let Outcome::Finished { product } = outcome else { panic!("{outcome:?}") };
        files(&product)
    };
    let first = product("first", "");
    assert!(product("second", "") == first);
    assert!(product("slower", "lr = 1e-3\n") != first);
    assert_eq!(fixture.steps("first"), fixture.steps("second"));
}
