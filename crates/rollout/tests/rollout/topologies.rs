//! Tensor and context ranks, each with its own scheduler, come to the tokens and log-probs of one rank.

use crate::rig::{Outcome, PAGES_EACH, executor, graph, load, references, requests, run, shape};
use engine::{Blueprint, Engine, GenerateShape, Job};
use fabric::Ranks;
use program::{Op, Program, Topology};
use rollout::{Counts, RolloutError, Scheduler};

fn outcomes(topology: Topology, shape: GenerateShape) -> Vec<(Vec<Outcome>, Counts)> {
    let (graph, requests) = (graph(), requests());
    let job = Job { generate: Some(shape), ..Job::default() };
    let ranks = Ranks::new(topology).run(|member| -> Result<_, RolloutError> {
        let rank = member.rank();
        let executor = executor(1);
        let workspace = |op: &Op, program: &Program| executor.workspace_bytes(op, program);
        let blueprint = Blueprint::new(&graph, topology, rank, job, &workspace);
        let engine = Engine::new(graph.clone(), blueprint, executor)?;
        let mut engine = engine.with_exchange(Box::new(member));
        load(&mut engine, 3);
        let mut scheduler = Scheduler::new(&engine, None)?;
        let completions = run(&mut scheduler, &mut engine, &requests)?;
        Ok((completions.into_iter().map(Outcome::from).collect(), scheduler.counts()))
    });
    ranks.unwrap_or_else(|error| panic!("{topology:?}: {error}"))
}

#[test]
fn every_topology_gives_the_tokens_and_log_probs_of_one_rank() {
    let references = references(&requests());
    // A cache in which sequences must give way to each other, and one with room; interleaves of 1 to 3 pages.
    let tight = GenerateShape { interleave: 2, ..shape(6, 100, 2 * PAGES_EACH) };
    let roomy = GenerateShape { interleave: 1, ..shape(12, 64, 60) };
    let odd = GenerateShape { interleave: 3, ..shape(5, 41, 17) };
    for (tp, cp, shape) in [
        (2, 1, tight),
        (4, 1, roomy),
        (1, 2, tight),
        (1, 4, odd),
        (2, 2, roomy),
        (2, 4, tight),
        (4, 2, odd),
        (4, 4, tight),
    ] {
        let topology = Topology::new(tp, cp).unwrap();
        for (rank, (outcomes, counts)) in outcomes(topology, shape).into_iter().enumerate() {
            assert_eq!(outcomes.len(), references.len());
            for (index, (outcome, reference)) in outcomes.iter().zip(&references).enumerate() {
                assert_eq!(outcome, reference, "tp {tp} cp {cp} rank {rank}: request {index}");
            }
            assert_eq!(counts.evictions > 0, shape == tight, "{shape:?}: {counts:?}");
        }
    }
}
