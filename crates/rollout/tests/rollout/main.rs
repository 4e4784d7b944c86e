//! Rollouts of a small model of random weights: no choice of the scheduler, of the cache or of the topology changes a
//! bit of what a request becomes.

mod colocation;
mod refusals;
mod rig;
mod schedules;
mod stops;
mod syncs;
mod topologies;
mod weights;
