//! Weights from every training topology to every rollout topology, and each way in which that can go wrong.

use crate::rig::{executor, graph_of, load};
use engine::{Blueprint, Engine, Job, Part};
use fabric::World;
use families::{LoraSpec, Train};
use program::{DType, Graph, Op, ParamId, Program, Rank, Topology};
use rollout::{Fingerprint, FingerprintError, Moved, ShardPlan, Since, SyncError, WeightSync};

fn lora() -> Train {
    Train::Lora(LoraSpec { r: 2, alpha: 4.0, rslora: false, targets: vec!["all-linear".into()] })
}

fn topology(tp: usize, cp: usize, dp: usize) -> Topology {
    Topology { tp, cp, dp, ..Topology::single() }
}

fn engine<'m>(graph: &Graph, member: fabric::Member<'m>) -> Engine<'m> {
    let executor = executor(1);
    let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
    let (topology, rank) = (*member.topology(), member.rank());
    let blueprint = Blueprint::new(graph, topology, rank, Job::default(), &workspace);
    Engine::new(graph.clone(), blueprint, executor).unwrap().with_exchange(Box::new(member))
}

fn whole(engine: &Engine<'_>, id: ParamId) -> Vec<u32> {
    let values = engine.gather_whole(id, Part::Value).unwrap().unwrap();
    values.iter().map(|v| v.to_bits()).collect()
}

/// Syncs twice, new weights in between, and compares every moved parameter; gives the fingerprints.
fn sync(train: &Train, from: Topology, to: Topology) -> Vec<Fingerprint> {
    let graph = graph_of(train.clone(), DType::F32);
    let plan = ShardPlan::new(&graph, Moved::Trained, &from, &to);
    let world = World::new(&[from, to]).run(|seat| -> Result<_, SyncError> {
        let mut trainer = seat.member(0).map(|member| engine(&graph, member));
        let mut rollout = seat.member(1).map(|member| engine(&graph, member));
        let mut sync = WeightSync::new(plan.clone());
        let mut prints = Vec::new();
        for seed in [3, 4] {
            if let Some(trainer) = &mut trainer {
                load(trainer, seed);
            }
            let since = Since::Updated;
            prints.push(sync.run(seat, trainer.as_ref(), rollout.as_mut(), since)?);
            for &id in plan.params() {
                // Both of a rank's topologies gather what their ranks hold.
                let theirs = trainer.as_ref().map(|engine| whole(engine, id));
                let ours = rollout.as_ref().map(|engine| whole(engine, id));
                if let (Some(theirs), Some(ours)) = (theirs, ours) {
                    assert!(theirs == ours, "{from:?} to {to:?}: {}", graph.param_info(id).name);
                }
            }
        }
        Ok(prints)
    });
    let prints = world.unwrap_or_else(|error| panic!("{from:?} to {to:?}: {error}"));
    assert!(prints.iter().all(|p| *p == prints[0]), "ranks agree");
    prints[0].clone()
}

#[test]
fn every_topology_to_every_other_with_one_fingerprint() {
    for train in [lora(), Train::Full] {
        let one = sync(&train, Topology::single(), Topology::single());
        assert_ne!(one[0], one[1]);
        for (from, to) in [
            (topology(1, 1, 1), topology(2, 2, 1)),
            (topology(4, 2, 1), topology(1, 1, 1)),
            (topology(2, 1, 2), topology(4, 1, 1)),
            (topology(8, 1, 1), topology(2, 4, 1)),
            (topology(2, 2, 1), topology(2, 2, 1)),
        ] {
            assert_eq!(sync(&train, from, to), one, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn only_adapters_move_and_only_where_ranks_do_not_hold_them() {
    let graph = graph_of(lora(), DType::F32);
    let (one, four) = (Topology::single(), topology(4, 1, 1));
    let adapters = ShardPlan::new(&graph, Moved::Trained, &four, &one);
    assert!(adapters.params().iter().all(|&id| graph.param_info(id).adapter));
    let all = ShardPlan::new(&graph, Moved::All, &four, &one);
    assert_eq!(all.params().len(), graph.params.len());
    assert!(all.received_bytes(0) > adapters.received_bytes(0));
    let same = ShardPlan::new(&graph, Moved::All, &four, &four);
    assert!((0..4).all(|rank| same.received_bytes(rank) == 0), "every rank holds its share");
    // Every element of every share comes once.
    for id in graph.param_ids() {
        let pieces = all.pieces().iter().filter(|p| p.param == id);
        let elements: usize = pieces.map(|p| p.rows.len() * p.cols.len()).sum();
        assert_eq!(elements, graph.param_info(id).padded_rows * graph.param_info(id).cols);
    }
}

/// A world of one rank of each side.
fn one_rank<T: Send>(
    theirs: &Graph,
    ours: &Graph,
    body: impl Fn(&mut fabric::Seat<'_>, &mut Engine<'_>, &mut Engine<'_>) -> Result<T, SyncError>
    + Sync,
) -> Result<T, SyncError> {
    let one = Topology::single();
    let mut all = World::new(&[one, one])
        .run(|seat| {
            let mut trainer = engine(theirs, seat.member(0).unwrap());
            let mut rollout = engine(ours, seat.member(1).unwrap());
            Ok::<_, std::fmt::Error>(body(seat, &mut trainer, &mut rollout))
        })
        .unwrap();
    all.remove(0)
}

fn plan(graph: &Graph) -> WeightSync {
    let one = Topology::single();
    WeightSync::new(ShardPlan::new(graph, Moved::Trained, &one, &one))
}

#[test]
fn an_update_that_changes_nothing_is_an_error() {
    let graph = graph_of(lora(), DType::F32);
    let unchanged = one_rank(&graph, &graph, |seat, trainer, rollout| {
        let mut sync = plan(&graph);
        load(trainer, 3);
        let first = sync.run(seat, Some(trainer), Some(rollout), Since::Updated)?;
        let again = sync.run(seat, Some(trainer), Some(rollout), Since::Anything)?;
        assert_eq!(first, again);
        sync.run(seat, Some(trainer), Some(rollout), Since::Updated)
    });
    assert!(matches!(unchanged, Err(SyncError::Unchanged { .. })), "{unchanged:?}");
}

/// Weights that the other side stores in another type do not arrive as they were.
#[test]
fn sides_that_differ_are_an_error() {
    let (theirs, ours) = (graph_of(Train::Full, DType::F32), graph_of(Train::Full, DType::Bf16));
    let differ = one_rank(&theirs, &ours, |seat, trainer, rollout| {
        load(trainer, 3);
        plan(&theirs).run(seat, Some(trainer), Some(rollout), Since::Anything)
    });
    assert!(matches!(differ, Err(SyncError::Differ { .. })), "{differ:?}");
}

#[test]
fn another_graph_is_an_error() {
    let (theirs, ours) = (graph_of(lora(), DType::F32), graph_of(Train::Nothing, DType::F32));
    let other = one_rank(&theirs, &ours, |seat, trainer, rollout| {
        plan(&theirs).run(seat, Some(trainer), Some(rollout), Since::Anything)
    });
    assert!(matches!(other, Err(SyncError::Params { .. })), "{other:?}");
}

#[test]
fn replicas_that_differ_are_named() {
    let graph = graph_of(lora(), DType::F32);
    let topology = topology(2, 2, 1);
    let ends = fabric::Ranks::new(topology).run(|member| {
        let index = member.index();
        let executor = executor(1);
        let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
        let rank = Rank::of(index, &topology);
        let blueprint = Blueprint::new(&graph, topology, rank, Job::default(), &workspace);
        let engine = Engine::new(graph.clone(), blueprint, executor).unwrap();
        let mut engine = engine.with_exchange(Box::new(member));
        load(&mut engine, 3);
        let params: Vec<ParamId> = graph.param_ids().collect();
        let same = Fingerprint::of(&engine, &params).is_ok();
        if index == 3 {
            let mut values = engine.read_param(params[5]);
            values[0] += 1.0;
            engine.write_param(params[5], &values);
        }
        Ok::<_, std::fmt::Error>((same, Fingerprint::of(&engine, &params).err()))
    });
    for (same, differ) in ends.unwrap() {
        assert!(same);
        let Some(FingerprintError::Replicas { name, rank: 3, .. }) = differ else {
            panic!("{differ:?}")
        };
        assert_eq!(name, *graph.param_info(ParamId(5)).name);
    }
}
