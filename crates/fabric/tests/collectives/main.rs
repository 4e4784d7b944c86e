//! Every collective against its definition, and every way ranks can fail each other.

mod columns;
mod failures;
mod rig;
mod rows;
mod slices;
mod tree_sum;
mod world;
