//! Where ranks meet: posted contributions, and waits that end when a rank does.

use crate::contribution::Contribution;
use crate::error::FabricError;
use crate::transport::{Circle, Transport};
use program::Topology;
use program::ops::Group;
use program::topology::Rank;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

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
    rounds: BTreeMap<Circle, Round>,
    places: Vec<Place>,
    /// What each rank is at.
    operations: Vec<String>,
    fault: Option<Fault>,
}

/// What the ranks of a run share: threads of one process.
pub(crate) struct Meeting {
    spaces: Vec<Topology>,
    state: Mutex<State>,
    change: Condvar,
}

impl Meeting {
    /// A meeting of the ranks of `spaces`; the last is the world, with as many ranks as the largest.
    pub(crate) fn new(spaces: Vec<Topology>) -> Meeting {
        let rounds =
            spaces.iter().enumerate().flat_map(|(space, topology)| rounds(space, topology));
        let ranks = spaces.last().map_or(0, Topology::ranks);
        let state = State {
            rounds: rounds.collect(),
            places: vec![Place::Running; ranks],
            operations: vec!["its first operation".into(); ranks],
            fault: None,
        };
        Meeting { spaces, state: Mutex::new(state), change: Condvar::new() }
    }

    /// A rank's closure has returned well; whoever waits for it waits in vain.
    pub(crate) fn end(&self, rank: usize) {
        let mut state = self.lock();
        state.places[rank] = Place::Ended;
        state.find_vain_wait();
        self.change.notify_all();
    }

    /// A rank has failed: every wait ends. Only the first failure counts. Returns what the rank was at.
    pub(crate) fn fail(&self, rank: usize, message: String) -> String {
        let mut state = self.lock();
        state.places[rank] = Place::Ended;
        let operation = state.operations[rank].clone();
        let during = String::new();
        let error = FabricError::PeerFailed { rank, operation: operation.clone(), message, during };
        state.fault.get_or_insert(Fault { rank, error });
        self.change.notify_all();
        operation
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

impl Transport for Meeting {
    fn spaces(&self) -> &[Topology] {
        &self.spaces
    }

    fn exchange(
        &self,
        circle: Circle,
        rank: usize,
        operation: &str,
        contribution: Contribution,
    ) -> Result<Vec<Arc<Contribution>>, FabricError> {
        let mut state = self.lock();
        let members = &state.round(circle).members;
        let place = members.iter().position(|&member| member == rank);
        let place = place.expect("a rank is a member of its groups");
        // Wait for the members that have yet to take the round before.
        while state.fault.is_none() && state.round(circle).posts[place].is_some() {
            state = self.wait(state);
        }
        state.refuse_after_fault(operation)?;
        let contribution = Arc::new(contribution);
        state.round(circle).posts[place] = Some(Post { operation: operation.into(), contribution });
        state.places[rank] = Place::Waiting(operation.into());
        state.complete(circle);
        self.change.notify_all();
        while state.fault.is_none() && !state.round(circle).complete {
            state = self.wait(state);
        }
        // A complete round is taken even if a rank has failed since: who got how far does not depend on timing.
        if !state.round(circle).complete {
            // What was posted is not read any more: its owner may fill its block again.
            state.round(circle).posts[place] = None;
            state.refuse_after_fault(operation)?;
        }
        let round = state.round(circle);
        let all = round.posts.iter().flatten().map(|post| Arc::clone(&post.contribution)).collect();
        round.taken += 1;
        if round.taken == round.members.len() {
            *round = Round::new(std::mem::take(&mut round.members));
            self.change.notify_all();
        }
        Ok(all)
    }

    fn refuse(&self, rank: usize, error: &FabricError) {
        self.lock().fault.get_or_insert(Fault { rank, error: error.clone() });
        self.change.notify_all();
    }

    fn entering(&self, rank: usize, operation: &str) {
        operation.clone_into(&mut self.lock().operations[rank]);
    }
}

/// The rounds of every group of a topology.
fn rounds(space: usize, topology: &Topology) -> BTreeMap<Circle, Round> {
    let mut members: BTreeMap<Circle, Vec<usize>> = BTreeMap::new();
    for rank in 0..topology.ranks() {
        for group in Group::ALL {
            let first = group.first(Rank::of(rank, topology), topology);
            members.entry(Circle { space, group, first }).or_default().push(rank);
        }
    }
    members.into_iter().map(|(circle, members)| (circle, Round::new(members))).collect()
}

impl State {
    fn round(&mut self, circle: Circle) -> &mut Round {
        self.rounds.get_mut(&circle).expect("every group has its round")
    }

    /// Completes the round if every member has posted, else looks for a wait that nothing can end.
    fn complete(&mut self, circle: Circle) {
        let round = self.rounds.get_mut(&circle).expect("every group has its round");
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
        let waiting = self.rounds.values().filter(|round| !round.complete);
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

/// The fault of a rank that waits at an operation while another is elsewhere.
fn diverged((rank, operation): (usize, &str), (other, other_operation): (usize, &str)) -> Fault {
    let (operation, other_operation) = (operation.into(), other_operation.into());
    Fault { rank, error: FabricError::Diverged { rank, operation, other, other_operation } }
}
