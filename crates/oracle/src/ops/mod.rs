//! One file an operation, of the names in [`program::ops`].

mod adamw;
mod add;
mod attention;
mod attention_backward;
mod cache;
mod column_sum;
mod copy;
mod embed;
mod gate;
mod logprob;
mod matmul;
mod norm;
mod pick;
mod rope;
mod segments;

pub(crate) use adamw::{adamw, sum_squares};
pub(crate) use add::{add, add_row};
pub(crate) use attention::attention;
pub(crate) use attention_backward::attention_backward;
pub(crate) use cache::cache_write;
pub(crate) use column_sum::{column_sum, fold_rows};
pub(crate) use copy::copy;
pub(crate) use embed::{embed, embed_backward};
pub(crate) use gate::{gate, gate_backward};
pub(crate) use logprob::{log_prob, log_prob_backward, log_prob_combine, log_prob_stats};
pub(crate) use matmul::matmul;
pub(crate) use norm::{norm, norm_backward, norm_weight_grad};
pub(crate) use pick::pick_rows;
pub(crate) use rope::{rope, rope_table};
