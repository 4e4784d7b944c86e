//! Where ranks meet: posted contributions, and waits that end when a rank does.

use crate::error::FabricError;
use program::Topology;
use program::ops::Group;
use program::topology::Rank;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A copy of one rank's live rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Contribution {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f32>,
}

impl Contribution {
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.cols..][..self.cols]
    }
}

/// What a rank has called, with its contribution.
struct Post {
    operation: String,
    contribution: Arc<Contribution>,
}

/// One group of ranks. A round is complete when every member has posted; its posts are cleared, and the next round may
/// begin, when every member has taken them.
struct Round {
    /// Rank numbers, ascending.
    members: Vec<usize>,
    posts: Vec<Option<Post>>,
    complete: bool,
    taken: usize,
}

impl Round {
    fn new(members: Vec<usize>) -> Round {
        let posts = members.iter().map(|_| None).collect();
        Round { members, posts, complete: false, taken: 0 }
    }

    /// A member that has posted, with what it called.
    fn posted(&self) -> Option<(usize, &str)> {
        let mut posts = self.members.iter().zip(&self.posts);
        posts.find_map(|(&rank, post)| post.as_ref().map(|post| (rank, post.operation.as_str())))
    }

    /// A member whose operation is not that of the first.
    fn divergence(&self) -> Option<Fault> {
        let (rank, operation) = self.posted()?;
        self.members.iter().zip(&self.posts).find_map(|(&other, post)| {
            let post = post.as_ref().filter(|post| post.operation != operation)?;
            Some(diverged((rank, operation), (other, &post.operation)))
        })
    }
}

/// The first failure of the run.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The rank that failed, or a rank whose wait nothing could end.
    pub(crate) rank: usize,
    pub(crate) error: FabricError,
}

/// Where a rank is, as far as the others may wait for it.
#[derive(Clone)]
enum Place {
    /// It runs, and may come.
    Running,
    /// It waits in a round that is not complete.
    Waiting(String),
    /// Its closure has returned.
    Ended,
}

struct State {
    rounds: Vec<Round>,
    places: Vec<Place>,
    fault: Option<Fault>,
}

/// What the ranks of a run share.
pub(crate) struct Meeting {
    topology: Topology,
    state: Mutex<State>,
    change: Condvar,
}

impl Meeting {
    pub(crate) fn new(topology: Topology) -> Meeting {
        let ranks = topology.ranks();
        let members = |group: Group, first: usize| -> Vec<usize> {
            (0..ranks).filter(|&r| round_of(group, r, &topology) == first).collect()
        };
        // A group's round has the number of its first rank, tensor groups before context groups.
        let rounds = [Group::Tensor, Group::Context]
            .into_iter()
            .flat_map(|group| (0..ranks).map(move |first| (group, first)))
            .map(|(group, first)| Round::new(members(group, first)))
            .collect();
        let state = State { rounds, places: vec![Place::Running; ranks], fault: None };
        Meeting { topology, state: Mutex::new(state), change: Condvar::new() }
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Posts a contribution and takes those of the whole group, in the order of its members.
    pub(crate) fn exchange(
        &self,
        group: Group,
        rank: usize,
        operation: &str,
        contribution: Contribution,
    ) -> Result<Vec<Arc<Contribution>>, FabricError> {
        let ranks = self.topology.ranks();
        let index =
            round_of(group, rank, &self.topology) + if group == Group::Tensor { 0 } else { ranks };
        let mut state = self.lock();
        let place = state.rounds[index].members.iter().position(|&member| member == rank);
        let place = place.expect("a rank is a member of its groups");
        // Wait for the members that have yet to take the round before.
        while state.fault.is_none() && state.rounds[index].posts[place].is_some() {
            state = self.wait(state);
        }
        state.refuse_after_fault(operation)?;
        let contribution = Arc::new(contribution);
        state.rounds[index].posts[place] = Some(Post { operation: operation.into(), contribution });
        state.places[rank] = Place::Waiting(operation.into());
        state.complete(index);
        self.change.notify_all();
        while state.fault.is_none() && !state.rounds[index].complete {
            state = self.wait(state);
        }
        // A complete round is taken even if a rank has failed since: who got how far does not depend on timing.
        if !state.rounds[index].complete {
            state.refuse_after_fault(operation)?;
        }
        let round = &mut state.rounds[index];
        let all = round.posts.iter().flatten().map(|post| Arc::clone(&post.contribution)).collect();
        round.taken += 1;
        if round.taken == round.members.len() {
            *round = Round::new(std::mem::take(&mut round.members));
            self.change.notify_all();
        }
        Ok(all)
    }

    /// A rank's closure has returned well; whoever waits for it waits in vain.
    pub(crate) fn end(&self, rank: usize) {
        let mut state = self.lock();
        state.places[rank] = Place::Ended;
        state.find_vain_wait();
        self.change.notify_all();
    }

    /// A rank has failed: every wait ends. Only the first failure counts.
    pub(crate) fn fail(&self, rank: usize, operation: &str, message: String) {
        let mut state = self.lock();
        state.places[rank] = Place::Ended;
        let (operation, during) = (operation.to_string(), String::new());
        let error = FabricError::PeerFailed { rank, operation, message, during };
        state.fault.get_or_insert(Fault { rank, error });
        self.change.notify_all();
    }

    /// A failure that a rank found in what was posted: every wait ends with it.
    pub(crate) fn refuse(&self, rank: usize, error: &FabricError) {
        self.lock().fault.get_or_insert(Fault { rank, error: error.clone() });
        self.change.notify_all();
    }

    pub(crate) fn fault(&self) -> Option<Fault> {
        self.lock().fault.clone()
    }

    // The lock is never held while a rank's own code runs, so a panic leaves the state whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.change.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Completes the round if every member has posted, else looks for a wait that nothing can end.
    fn complete(&mut self, index: usize) {
        let round = &mut self.rounds[index];
        if round.posts.iter().any(Option::is_none) {
            self.find_vain_wait();
            return;
        }
        if let Some(error) = round.divergence() {
            self.fault.get_or_insert(error);
            return;
        }
        round.complete = true;
        for &member in &round.members {
            self.places[member] = Place::Running;
        }
    }

    /// A wait is vain when a missing member has ended, or when no rank runs: then each waits for another operation than
    /// the one that would free it.
    fn find_vain_wait(&mut self) {
        let no_one_runs = !self.places.iter().any(|place| matches!(place, Place::Running));
        let waiting = self.rounds.iter().filter(|round| !round.complete);
        let vain = waiting.into_iter().find_map(|round| {
            let posted = round.posted()?;
            round.members.iter().zip(&round.posts).find_map(|(&other, post)| {
                match (&self.places[other], post) {
                    (_, Some(_)) | (Place::Running, None) => None,
                    (Place::Ended, None) => {
                        Some(diverged(posted, (other, "the end of its program")))
                    }
                    (Place::Waiting(at), None) => {
                        no_one_runs.then(|| diverged(posted, (other, at)))
                    }
                }
            })
        });
        if let Some(error) = vain {
            self.fault.get_or_insert(error);
        }
    }

    fn refuse_after_fault(&self, at: &str) -> Result<(), FabricError> {
        let Some(fault) = &self.fault else { return Ok(()) };
        let mut error = fault.error.clone();
        if let FabricError::PeerFailed { during, .. } = &mut error {
            *during = at.into();
        }
        Err(error)
    }
}

/// The first rank of the group that a rank belongs to.
fn round_of(group: Group, rank: usize, topology: &Topology) -> usize {
    let place = Rank::of(rank, topology);
    match group {
        Group::Tensor => Rank { tp: 0, ..place },
        Group::Context => Rank { cp: 0, ..place },
    }
    .index(topology)
}

/// The fault of a rank that waits at an operation while another is elsewhere.
fn diverged((rank, operation): (usize, &str), (other, other_operation): (usize, &str)) -> Fault {
    let (operation, other_operation) = (operation.into(), other_operation.into());
    Fault { rank, error: FabricError::Diverged { rank, operation, other, other_operation } }
}
