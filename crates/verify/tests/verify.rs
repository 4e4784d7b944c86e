//! The proof passes where it should, and fails where a rule is broken.

use arena::Executor;
use cpu::{Cpu, Precision};
use families::{LoraSpec, Train};
use program::Topology;
use verify::{Cell, Pair, Rule, Settings, SmallModel, VerifyError, Work, cases, matrix};

fn executor() -> Box<dyn Executor> {
    let settings = cpu::Settings { threads: 1, precision: Precision::F32, isa: None };
    Box::new(Cpu::new(settings).unwrap())
}

fn work(train: &Train) -> Work<'static> {
    SmallModel::new(train, Topology::WIDTH).unwrap().work(&executor, "cpu-f32".into())
}

fn lora() -> Train {
    Train::Lora(LoraSpec { r: 4, alpha: 8.0, rslora: false, targets: vec!["all-linear".into()] })
}

fn topology(tp: usize, cp: usize, dp: usize) -> Topology {
    Topology { tp, cp, dp, width: Topology::WIDTH }
}

fn pair(train: (usize, usize, usize), rollout: (usize, usize)) -> Pair {
    let train = topology(train.0, train.1, train.2);
    Pair { train, rollout: topology(rollout.0, rollout.1, 1) }
}

#[test]
fn topologies_of_both_sides_give_the_bytes_of_one_rank() {
    let settings = Settings::default();
    for train in [Train::Full, lora()] {
        let work = work(&train);
        let mut reference = None;
        for pair in [
            pair((1, 1, 1), (2, 2)),
            pair((2, 2, 1), (1, 4)),
            pair((4, 2, 1), (2, 1)),
            pair((2, 1, 2), (2, 4)),
        ] {
            let (verdict, trace) =
                verify::verify(&work, &settings, pair, None, reference.as_ref()).unwrap();
            assert!(verdict.same, "{pair}: {:?} {:?}", verdict.differences.first(), verdict.origin);
            assert!(verdict.compared > 2 * trace.steps[0].parameters.len());
            reference = Some(trace);
        }
        let steps = reference.unwrap().steps;
        assert_eq!(steps.len(), 2);
        for step in &steps {
            assert!(step.natural_stops > 0 && step.active > step.natural_stops, "{step:?}");
            assert_eq!(step.differing_log_prob_bytes, 0);
        }
        assert_ne!(steps[0].tokens, steps[1].tokens);
    }
}

fn truncated(settings: Settings) -> Settings {
    let sampling =
        engine::Sampling { temperature: 0.8, top_p: 0.9, top_k: 40, ..settings.sampling };
    Settings { sampling, ..settings }
}

/// Candidates that are dropped, a temperature, and a divergence from the reference model: the policy's
/// log-probs are others than the vocabulary's, in rollout and in training alike.
#[test]
fn policies_and_divergences_have_the_bytes_of_one_rank() {
    let settings = Settings { kl_coef: 0.1, ..truncated(Settings::default()) };
    for (train, pair) in [(Train::Full, pair((2, 2, 1), (2, 1))), (lora(), pair((2, 1, 2), (1, 2)))]
    {
        let work = work(&train);
        let (verdict, trace) = verify::verify(&work, &settings, pair, None, None).unwrap();
        assert!(verdict.same, "{pair}: {:?} {:?}", verdict.differences.first(), verdict.origin);
        let [first, second] = trace.steps.as_slice() else { panic!("{trace:?}") };
        for step in [first, second] {
            assert_eq!(step.differing_log_prob_bytes, 0);
            assert_ne!(step.train_log_probs, step.train_full_log_probs);
            assert_eq!(step.ratio_bits, format!("{:016x}", 1f64.to_bits()));
        }
        assert_ne!(second.reference_log_probs, second.train_full_log_probs);
        assert!(second.kl > 0.0, "{}", second.kl);
        // With LoRA the reference is the base, and the small model's adapters do not begin at zero; else it is the model
        // before the first update, and the divergence of that one is exactly 0.
        let begins_there = train == Train::Full;
        assert_eq!(first.reference_log_probs == first.train_full_log_probs, begins_there);
        assert_eq!(first.kl == 0.0, begins_there);
        // A divergence in the loss changes what is learnt.
        let without = Settings { kl_coef: 0.0, ..settings };
        let (_, plain) = verify::verify(&work, &without, pair, None, None).unwrap();
        assert_eq!(plain.steps[0].parameters == trace.steps[0].parameters, begins_there);
        assert_ne!(plain.steps[1].parameters, trace.steps[1].parameters);
    }
}

/// Breaks a rule; checks what is found first, and the operation that is named.
fn found_in(settings: Settings, rule: Rule, pair: Pair, first: &str, operation: &str) {
    let work = work(&Train::Full);
    let (verdict, _) = verify::verify(&work, &settings, pair, Some(rule), None).unwrap();
    assert!(!verdict.same, "{}", rule.name());
    let difference = &verdict.differences[0];
    assert!(difference.what.starts_with(first), "{}: {difference:?}", rule.name());
    let named = verdict.origin.map(|origin| origin.what).unwrap_or_default();
    assert!(named.starts_with(operation), "{}: {named}", rule.name());
}

fn found(rule: Rule, pair: Pair, first: &str, operation: &str) {
    found_in(Settings::default(), rule, pair, first, operation);
}

fn one() -> Pair {
    Pair::reference(Topology::WIDTH)
}

#[test]
fn sums_of_another_width_are_found() {
    found(Rule::Width, one(), "training log-probs", "MatMul 0.o");
}

#[test]
fn swapped_leaves_are_found() {
    found(Rule::SwapLeaves, one(), "training log-probs", "MatMul 0.o");
}

#[test]
fn a_split_chain_is_found() {
    found(Rule::SplitChain, one(), "training log-probs", "MatMul 0.q");
}

#[test]
fn another_attention_scale_is_found() {
    found(Rule::AttentionScale, one(), "training log-probs", "Attention");
}

#[test]
fn joined_vocabulary_leaves_are_found() {
    found(Rule::VocabularyLeaves, one(), "training log-probs", "LogProb");
}

#[test]
fn a_doubled_temperature_is_found() {
    found(Rule::Temperature, one(), "tokens", "Sample");
}

#[test]
fn candidates_that_rollout_dropped_are_found() {
    let settings = truncated(Settings::default());
    found_in(settings, Rule::KeptSet, one(), "training log-probs", "LogProb");
}

#[test]
fn another_key_of_draws_is_found() {
    found(Rule::DrawKey, one(), "tokens", "Sample");
}

#[test]
fn a_tie_that_goes_the_other_way_is_found() {
    found_in(truncated(Settings::default()), Rule::Tie, one(), "training log-probs", "LogProb");
}

#[test]
fn another_order_of_tokens_is_found() {
    found(Rule::TokenOrder, one(), "gradient", "Embed");
}

#[test]
fn another_tree_over_micro_batches_is_found() {
    let settings = Settings { accumulation: 4, ..Settings::default() };
    found_in(settings, Rule::MicroBatchTree, one(), "gradient", "Embed");
}

#[test]
fn a_local_count_in_the_loss_is_found() {
    found(Rule::LossCount, one(), "gradient", "LogProbBackward");
}

#[test]
fn a_gradient_that_counts_twice_is_found() {
    found(Rule::NormCount, one(), "gradient norm", "SumSquares");
}

#[test]
fn weight_decay_in_the_wrong_place_is_found() {
    found(Rule::Decay, one(), "value of", "AdamW");
}

#[test]
fn a_subtree_that_is_left_out_is_found_on_its_ranks() {
    found(Rule::DropSubtree, pair((2, 1, 1), (1, 1)), "training log-probs", "Collective");
}

/// Each guard against a run that proves nothing fires, and says which it is.
#[test]
fn a_run_that_proves_nothing_fails_by_name() {
    let work = work(&Train::Full);
    let pair = pair((1, 2, 1), (2, 1));
    let (verdict, reference) =
        verify::verify(&work, &Settings::default(), pair, None, None).unwrap();
    assert!(verdict.same);
    let fails = |rule, by: fn(&VerifyError) -> bool| {
        let ran = verify::verify(&work, &Settings::default(), pair, Some(rule), Some(&reference));
        let error = ran.expect_err(rule.name());
        assert!(by(&error), "{}: {error}", rule.name());
    };
    fails(Rule::NoActiveToken, |e| matches!(e, VerifyError::NoActiveTokens { step: 1 }));
    fails(Rule::NonFinite, |e| matches!(e, VerifyError::NonFinite { step: 1, what: "loss", .. }));
    fails(Rule::LostStep, |e| matches!(e, VerifyError::MissingStep { step: 2 }));
    fails(Rule::LostUpdate, |e| matches!(e, VerifyError::Unchanged { step: 1, .. }));
    fails(Rule::LostReplica, |e| {
        matches!(e, VerifyError::Pass(_)) && e.to_string().contains("rank 1")
    });
    fails(Rule::RolloutRank, |e| matches!(e, VerifyError::RolloutRanks { step: 1, rank: 1 }));
    fails(Rule::LostSync, |e| matches!(e, VerifyError::Sync { step: 1, .. }));
    fails(Rule::OtherWeights, |e| matches!(e, VerifyError::Identity { .. }));
    // A reference of other settings is one of another thing.
    let others = Settings { samples: 2, ..Settings::default() };
    let ran = verify::verify(&work, &others, pair, None, Some(&reference));
    assert!(matches!(ran, Err(VerifyError::Identity { .. })), "{ran:?}");
}

#[test]
fn a_rule_with_nothing_to_break_is_an_error() {
    let work = work(&Train::Full);
    for rule in [
        Rule::DropSubtree,
        Rule::KeptSet,
        Rule::Tie,
        Rule::MicroBatchTree,
        Rule::RolloutRank,
        Rule::LostReplica,
    ] {
        let ran = verify::verify(&work, &Settings::default(), one(), Some(rule), None);
        assert!(matches!(ran, Err(VerifyError::NothingToPerturb { .. })), "{rule:?}: {ran:?}");
    }
    let single = Settings { samples: 2, accumulation: 8, ..Settings::default() };
    let ran = verify::verify(&work, &single, one(), Some(Rule::TokenOrder), None);
    assert!(matches!(ran, Err(VerifyError::NothingToPerturb { .. })), "{ran:?}");
}

#[test]
fn rules_have_names() {
    for rule in Rule::all() {
        assert_eq!(Rule::of(rule.name()), Some(rule));
    }
    assert_eq!(Rule::of("nothing"), None);
}

#[test]
fn runs_that_would_prove_nothing_are_refused() {
    let work = work(&Train::Full);
    let refused = |settings: &Settings, pair| {
        verify::verify(&work, settings, pair, None, None).unwrap_err().to_string()
    };
    let settings = Settings::default();
    let error = refused(&Settings { kl_coef: f64::NAN, ..settings }, one());
    assert!(error.starts_with("kl-coef"), "{error}");
    for (settings, word) in [
        (Settings { steps: 0, ..settings }, "steps"),
        (Settings { samples: 1, ..settings }, "samples"),
        (Settings { max_response: 0, ..settings }, "max-response-len"),
        (Settings { accumulation: 3, ..settings }, "accumulation"),
    ] {
        let error = refused(&settings, one());
        assert!(error.starts_with(word), "{error}");
    }
    let long = Settings { max_response: 250, ..settings };
    assert!(refused(&long, pair((2, 1, 1), (1, 1))).contains("max_position_embeddings"));
    assert!(refused(&settings, one()).contains("one rank would be compared with itself"));
    assert!(refused(&settings, pair((16, 1, 1), (1, 1))).contains("training topology: tp = 16"));
    assert!(refused(&settings, pair((1, 1, 1), (3, 1))).contains("rollout topology: tp = 3"));
}

#[test]
fn a_matrix_has_forty_pairs_and_goes_on_where_it_stopped() {
    let all = cases(Topology::WIDTH);
    let pairs = all.iter().filter(|case| case.pair.train.tp * case.pair.train.cp == 8);
    assert_eq!(pairs.filter(|case| case.pair.train.dp == 1).count(), 40);
    assert!([2, 4].iter().all(|dp| all.iter().any(|case| case.pair.train.dp == *dp)));
    assert!([2, 4].iter().all(|a| all.iter().any(|case| case.accumulation == *a)));

    let folder = tempfile::tempdir().unwrap();
    let work = work(&lora());
    let settings = Settings { steps: 1, ..Settings::default() };
    let some = &all[40..41];
    let mut told = 0;
    let first = matrix(&work, &settings, some, folder.path(), &mut |_, _| told += 1).unwrap();
    assert_eq!((first.passing, first.total, told), (1, 1, 1));
    // What passed is taken from the archive.
    let name = some[0].name();
    let path = folder.path().join(format!("{name}.json"));
    let written = std::fs::metadata(&path).unwrap().modified().unwrap();
    let again = matrix(&work, &settings, some, folder.path(), &mut |_, _| ()).unwrap();
    assert_eq!(again.cells, first.cells);
    assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), written, "nothing ran");
    // What computes is part of the identity: under another profile it is run again, and the old file is kept.
    let other = Work { arithmetic: "cpu-other".into(), ..self::work(&lora()) };
    let other = matrix(&other, &settings, some, folder.path(), &mut |_, _| ()).unwrap();
    assert_ne!(other.identity, first.identity);
    let kept = std::fs::read(path.with_extension("other-1.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Cell>(&kept).unwrap(), first.cells[0]);
    // A file that is not what a run of its case wrote does not count; nor does one that did not pass.
    let text = serde_json::to_string_pretty(&first.cells[0]).unwrap();
    let failed = {
        let mut cell = first.cells[0].clone();
        (cell.verdict, cell.failure) = (None, Some("it failed".into()));
        cell.sealed()
    };
    let failed = serde_json::to_string(&failed).unwrap();
    let topology = text.replace("\"accumulation\": 2", "\"accumulation\": 4");
    assert_ne!(topology, text);
    let mut anew = first.clone();
    for (content, why) in [
        (text.replace("\"compared\": ", "\"compared\": 9"), "edited-1"),
        (topology, "edited-2"),
        (String::new(), "unreadable-1"),
        (failed, "failed-1"),
    ] {
        std::fs::write(&path, content).unwrap();
        anew = matrix(&work, &settings, some, folder.path(), &mut |_, _| ()).unwrap();
        assert_eq!(anew.cells, first.cells);
        assert!(path.with_extension(format!("{why}.json")).exists(), "{why}");
    }
    let page = verify::html(&anew);
    assert!(page.contains("1 of 1 runs have 0 differing bytes"));
    assert!(verify::markdown(&anew).contains("| tp 1 cp 1 dp 2 | tp 2 cp 2 | 2 | yes |"));
}

/// What proves nothing is an error of its own name, never a pass.
#[test]
fn nothing_learnt_is_no_pass() {
    let work = work(&Train::Full);
    let pair = pair((2, 1, 1), (1, 1));
    let ran = |settings: Settings| verify::verify(&work, &settings, pair, None, None).unwrap_err();
    let defaults = Settings::default();
    // Greedy completions of one prompt are all alike.
    let greedy = Settings {
        sampling: engine::Sampling { temperature: 0.0, ..defaults.sampling },
        ..defaults
    };
    let error = ran(greedy);
    assert!(matches!(error, VerifyError::NoAdvantage { step: 1 }), "{error}");
    let still = Settings { hyper: engine::Hyper { lr: 0.0, ..defaults.hyper }, ..defaults };
    let error = ran(still);
    assert!(matches!(error, VerifyError::Unchanged { step: 1, .. }), "{error}");
    let far = Settings { hyper: engine::Hyper { lr: 1e30, ..defaults.hyper }, ..defaults };
    let error = ran(far);
    assert!(matches!(error, VerifyError::Rollout(_) | VerifyError::Engine(_)), "{error}");
}
