//! Training and rollout in one memory: the peak of every phase is planned before the start, and is what is held.

use crate::rig::{
    Outcome, bytes, engine_of, executor, graph_of, load, references, request, run, shape,
};
use arena::{Account, AllocError};
use engine::{
    Blueprint, Engine, EngineError, Hyper, Job, MicroBatch, Phase, Phases, Sequence, TrainShape,
};
use fabric::{Seat, World};
use families::{LoraSpec, Train};
use program::keep::{Keep, Level};
use program::{DType, Graph, Kind, Op, Program, Rank, Topology};
use rollout::{Moved, RolloutError, Scheduler, ShardPlan, Since, SyncError, WeightSync};
use std::sync::Arc;

fn graph() -> Graph {
    let targets = vec!["all-linear".into()];
    graph_of(Train::Lora(LoraSpec { r: 2, alpha: 4.0, rslora: false, targets }), DType::F32)
}

fn blueprint(graph: &Graph, job: Job) -> Blueprint {
    let executor = executor(1);
    let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
    Blueprint::new(graph, Topology::single(), Rank::FIRST, job, &workspace)
}

fn train_job() -> Job {
    let keep = Keep::uniform(Level::All);
    let train = TrainShape { tokens: 128, segments: 2, accumulation: 1, keep, coef_known: true };
    Job { train: Some(train), ..Job::default() }
}

fn rollout_job() -> Job {
    Job { generate: Some(shape(3, 48, 12)), ..Job::default() }
}

fn step(engine: &mut Engine<'_>, step: u64) -> Result<(), EngineError> {
    let ids = bytes(step, 100);
    let mut sequence = Sequence::next_tokens(&ids, &[true; 100]);
    sequence.coef = vec![-0.01; 100];
    engine.train_micro_batch(&MicroBatch { sequences: vec![sequence] }, 0, 1)?;
    let (beta1, beta2, eps) = (0.9, 0.999, 1e-8);
    let hyper = Hyper { lr: 1e-2, beta1, beta2, eps, weight_decay: 0.0, max_grad_norm: 1.0 };
    engine.update(&hyper, step).map(|_| ())
}

/// Two engines that share an account.
fn engines(account: &Arc<Account>, phases: &Phases) -> (Engine<'static>, Engine<'static>) {
    let graph = graph();
    let of = |job| {
        let blueprint = blueprint(&graph, job);
        Engine::within(graph.clone(), blueprint, executor(1), account)
    };
    let mut trainer = of(train_job()).unwrap();
    // Its step's memory waits until rollouts have been made: there is no room for both.
    trainer.sleep(&[Kind::Gradient, Kind::Graph, Kind::Workspace]);
    let rollout = of(rollout_job()).unwrap();
    assert!(account.held() <= phases.peak());
    (trainer, rollout)
}

fn phases(keeps_weights: bool) -> Phases {
    let graph = graph();
    let of = |job| blueprint(&graph, job).ledger;
    Phases::new(&of(train_job()), &of(rollout_job()), keeps_weights)
}

#[test]
fn steps_of_rollout_and_training_hold_what_their_phases_plan() {
    let one = Topology::single();
    for keeps_weights in [true, false] {
        let run = |seat: &mut Seat<'_>| three_steps(seat, keeps_weights);
        World::new(&[one, one]).run(run).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn three_steps(seat: &mut Seat<'_>, keeps_weights: bool) -> Result<(), SyncError> {
    let phases = phases(keeps_weights);
    let both = blueprint(&graph(), train_job()).ledger.total()
        + blueprint(&graph(), rollout_job()).ledger.total();
    assert!(phases.peak() < both, "{} of {both}", phases.peak());
    let account = phases.account();
    let (mut trainer, mut rollout) = engines(&account, &phases);
    load(&mut trainer, 3);
    load(&mut rollout, 3);
    let one = Topology::single();
    let moved = if keeps_weights { Moved::Trained } else { Moved::All };
    let mut sync = WeightSync::new(ShardPlan::new(&trainer.graph, moved, &one, &one));
    let mut scheduler = Scheduler::new(&rollout, None).unwrap();
    let mut said = Vec::new();
    account.take_peak();
    for number in 1..=3 {
        for phase in Phase::ALL {
            let before = account.held();
            phases.enter(phase, Some(&mut trainer), Some(&mut rollout))?;
            let ledger = phases.ledger(phase);
            assert_eq!(trainer.ledger(), ledger.trainer, "{phase:?}");
            assert_eq!(rollout.ledger(), ledger.rollout, "{phase:?}");
            match phase {
                Phase::Sync => {
                    sync.run(seat, Some(&trainer), Some(&mut rollout), Since::Updated)?;
                }
                Phase::Rollout => {
                    let requests = [request(0, bytes(1, 100), 20)];
                    said.extend(run(&mut scheduler, &mut rollout, &requests).unwrap());
                }
                Phase::Train => step(&mut trainer, number)?,
            }
            assert_eq!(account.held(), ledger.total(), "{phase:?}: what was planned");
            assert_eq!(account.take_peak(), ledger.total().max(before), "{phase:?}");
        }
    }
    assert!(said.iter().all(|c| c.shared_tokens == 0), "no page outlives a phase");
    let different = |a: usize, b: usize| said[a].logprobs != said[b].logprobs;
    assert!(different(0, 1) && different(1, 2), "weights were new in every step");
    // With every weight in place, and the same as loaded, the first rollout is that of an engine of its own.
    let mut alone = engine_of(trainer.graph.clone(), shape(3, 48, 12));
    let mut scheduler = Scheduler::new(&alone, None).unwrap();
    let same = run(&mut scheduler, &mut alone, &[request(0, bytes(1, 100), 20)]).unwrap();
    assert_eq!(Outcome::from(said.swap_remove(0)), Outcome::from(same.into_iter().next().unwrap()));
    Ok(())
}

#[test]
fn what_sleeps_cannot_run_and_wakes_only_into_room() {
    let phases = phases(true);
    let account = phases.account();
    let (mut trainer, mut rollout) = engines(&account, &phases);
    load(&mut trainer, 3);
    load(&mut rollout, 3);
    phases.enter(Phase::Rollout, Some(&mut trainer), Some(&mut rollout)).unwrap();
    assert!(matches!(step(&mut trainer, 1), Err(EngineError::Asleep { program: "train", .. })));
    let early = trainer.wake(&[Kind::Gradient, Kind::Graph, Kind::Workspace]);
    assert!(matches!(early, Err(EngineError::Alloc(AllocError::NoRoom { .. }))), "{early:?}");
    phases.enter(Phase::Train, Some(&mut trainer), Some(&mut rollout)).unwrap();
    step(&mut trainer, 1).unwrap();
    let mut scheduler = Scheduler::new(&rollout, None).unwrap();
    scheduler.submit(request(0, bytes(0, 9), 4)).unwrap();
    let asleep = scheduler.step(&mut rollout);
    assert!(matches!(asleep, Err(RolloutError::Engine(EngineError::Asleep { .. }))));
}

#[test]
fn weights_that_slept_must_be_written_before_they_are_used() {
    let phases = phases(false);
    let account = phases.account();
    let (mut trainer, mut rollout) = engines(&account, &phases);
    load(&mut trainer, 3);
    load(&mut rollout, 3);
    let one = |rollout: &mut Engine<'_>| {
        let mut scheduler = Scheduler::new(rollout, None).unwrap();
        scheduler.submit(request(0, bytes(0, 9), 4)).unwrap();
        scheduler.run(rollout, |_| Ok::<(), RolloutError>(())).map(|completions| completions.len())
    };
    assert_eq!(one(&mut rollout).unwrap(), 1);
    phases.enter(Phase::Train, Some(&mut trainer), Some(&mut rollout)).unwrap();
    phases.enter(Phase::Rollout, Some(&mut trainer), Some(&mut rollout)).unwrap();
    let lost = one(&mut rollout);
    assert!(matches!(lost, Err(RolloutError::Engine(EngineError::Lost { .. }))), "{lost:?}");
    let ids: Vec<_> = trainer.graph.param_ids().collect();
    for id in ids {
        let values = trainer.read_param(id);
        rollout.write_param(id, &values);
    }
    assert_eq!(one(&mut rollout).unwrap(), 1);
}

#[test]
fn sequences_under_way_give_up_their_pages_before_the_cache_sleeps() {
    let requests = [request(0, bytes(0, 100), 30), request(1, bytes(2, 70), 30)];
    let references = references(&requests);
    let mut rollout = crate::rig::engine(shape(3, 48, 12));
    let mut scheduler = Scheduler::new(&rollout, None).unwrap();
    for request in &requests {
        scheduler.submit(request.clone()).unwrap();
    }
    for _ in 0..6 {
        scheduler.step(&mut rollout).unwrap();
    }
    scheduler.give_up_pages();
    rollout.sleep(&[Kind::Context, Kind::Graph]);
    rollout.wake(&[Kind::Context, Kind::Graph]).unwrap();
    let completions = scheduler.run(&mut rollout, |_| Ok::<(), RolloutError>(())).unwrap();
    let outcomes: Vec<Outcome> = completions.into_iter().map(Outcome::from).collect();
    assert_eq!(outcomes, references);

    scheduler.submit(requests[0].clone()).unwrap();
    scheduler.step(&mut rollout).unwrap();
    rollout.sleep(&[Kind::Context]);
    rollout.wake(&[Kind::Context]).unwrap();
    let gone = scheduler.step(&mut rollout);
    assert!(matches!(gone, Err(RolloutError::WeightsChanged { running: 1 })));
}
