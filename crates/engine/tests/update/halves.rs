//! What the two halves of a step refuse.

use super::common;
use super::model::{Case, batch, engine, graph, hyper};
use engine::EngineError;
use fabric::Ranks;
use families::Train;
use program::Topology;

fn case(coef_known: bool) -> Case {
    let graph = graph(8, false, false, &Train::Lora(common::lora_spec()));
    Case { graph, micro_batches: [2, 2], coef_known }
}

#[test]
fn a_backward_pass_needs_its_forward_pass_and_a_coefficient_a_token() {
    let ran = Ranks::new(Topology::single()).run(|member| {
        let mut engine = engine(&case(false), Topology::single(), member)?;
        let alone = engine.backward_micro_batch(&[0.0; 58]);
        assert!(matches!(alone, Err(EngineError::NotPlanned(_))));
        engine.forward_micro_batch(&batch(0), 0, 1)?;
        let few = engine.backward_micro_batch(&[0.0; 57]);
        assert!(matches!(few, Err(EngineError::Coefficients { given: 57, tokens: 58 })));
        Ok::<(), EngineError>(())
    });
    ran.unwrap();
    let ran = Ranks::new(Topology::single()).run(|member| {
        let mut engine = engine(&case(true), Topology::single(), member)?;
        let known = engine.forward_micro_batch(&batch(0), 0, 1);
        assert!(matches!(known, Err(EngineError::NotPlanned(_))));
        Ok::<(), EngineError>(())
    });
    ran.unwrap();
}

#[test]
fn another_replicas_micro_batch_is_refused() {
    let topology = Topology { dp: 2, ..Topology::single() };
    let ran = Ranks::new(topology).run(|member| {
        let mine = member.rank().dp;
        let mut engine = engine(&case(true), topology, member)?;
        let other = engine.train_micro_batch(&batch(0), 1 - mine, 2);
        assert!(matches!(other, Err(EngineError::OtherReplica { .. })), "{other:?}");
        Ok::<(), EngineError>(())
    });
    ran.unwrap();
}

/// A gradient that is not finite on one rank updates nothing on any.
#[test]
fn a_norm_that_is_not_finite_updates_nothing_anywhere() {
    let topology = Topology { tp: 2, dp: 2, ..Topology::single() };
    let ran = Ranks::new(topology).run(|member| {
        let rank = member.rank();
        let case = case(true);
        let mut engine = engine(&case, topology, member)?;
        let mut batch = batch(0);
        if rank.dp == 1 {
            batch.sequences[0].coef[5] = f32::INFINITY;
        }
        let before: Vec<Vec<f32>> =
            case.graph.param_ids().map(|id| engine.read_param(id)).collect();
        engine.train_micro_batch(&batch, rank.dp, 2)?;
        let refused = engine.update(&hyper(), 1);
        assert!(matches!(refused, Err(EngineError::NonFiniteGradient { .. })), "{refused:?}");
        let after: Vec<Vec<f32>> = case.graph.param_ids().map(|id| engine.read_param(id)).collect();
        assert!(before == after, "{rank:?}");
        Ok::<(), EngineError>(())
    });
    ran.unwrap();
}
