//! Bytes that move between ranks are those that the cost model says.

use super::common;
use super::model::{Case, TOKENS, engine, graph, hyper};
use engine::{EngineError, INACTIVE, MicroBatch, Sequence};
use fabric::{Movement, Ranks};
use families::Train;
use program::cost::{self, Exchanged};
use program::{Op, Topology};
use std::collections::HashMap;

/// A micro-batch that fills its capacity.
fn full() -> MicroBatch {
    let sequence = |length: usize| Sequence {
        ids: (0..length as u32).map(|i| 7 * i % 200).collect(),
        targets: (0..length as u32).map(|i| if i % 3 == 0 { INACTIVE } else { i }).collect(),
        coef: vec![-0.01; length],
        ..Sequence::default()
    };
    MicroBatch { sequences: vec![sequence(40), sequence(TOKENS - 40)] }
}

#[test]
fn a_step_receives_what_is_predicted() {
    for train in [Train::Full, Train::Lora(common::lora_spec())] {
        let case =
            Case { graph: graph(8, false, false, &train), micro_batches: [2, 2], coef_known: true };
        for (tp, cp, dp) in [(2, 1, 1), (1, 4, 1), (1, 1, 2), (2, 2, 2), (4, 2, 1)] {
            let topology = Topology { tp, cp, dp, width: Topology::WIDTH };
            let ran = Ranks::new(topology).run(|member| {
                let rank = member.rank();
                let mut engine = engine(&case, topology, member)?;
                let before = engine.traffic();
                let mine = engine.micro_batches_of(2);
                for index in mine.clone() {
                    engine.train_micro_batch(&full(), index, 2)?;
                }
                engine.update(&hyper(), 1)?;
                let mut predicted: HashMap<Movement, u64> = HashMap::new();
                let ids: Vec<u32> = full().sequences.into_iter().flat_map(|s| s.ids).collect();
                let tokens = ids.chunks(TOKENS.div_ceil(cp)).nth(rank.cp).unwrap_or_default();
                let step = Exchanged { topology: &topology, rank, micro_batches: 2, tokens };
                let blueprint = &engine.blueprint;
                for (compiled, times) in [(&blueprint.train, mine.len()), (&blueprint.optimizer, 1)]
                {
                    let program = &compiled.as_ref().unwrap().program;
                    for op in &program.ops {
                        let Op::Collective(op) = op else { continue };
                        let bytes = cost::received(program, op, &step);
                        *predicted.entry(Movement::of(&op.kind)).or_default() +=
                            bytes * times as u64;
                    }
                }
                let after = engine.traffic();
                for movement in Movement::ALL {
                    let counted = after.bytes(movement) - before.bytes(movement);
                    let predicted = predicted.get(&movement).copied().unwrap_or(0);
                    let what = format!("{topology:?} {rank:?} {}", movement.name());
                    match movement {
                        // Log-probs to the host are no part of the programs.
                        Movement::Host => {}
                        _ => assert_eq!(counted, predicted, "{what}"),
                    }
                }
                Ok::<(), EngineError>(())
            });
            ran.unwrap_or_else(|error| panic!("{topology:?}: {error}"));
        }
    }
}
