//! Every operation of the oracle against values worked out by hand, the canon's examples, and numerical derivatives.

mod adamw;
mod attention;
mod attention_backward;
mod elementwise;
mod embed;
mod logprob;
mod matmul;
mod norm;
mod numeric;
mod policy;
mod rig;
mod rows;
