//! Recurrent layers: short convolution, gated delta rule, selective scan (Mamba-2), embeddings of
//! hashed n-grams.
//!
//! - `inputs.rs`: the inputs of a step and where states are stored.
//! - `op_context.rs`: the inputs, state pool and threads of an op.
//! - `weights.rs`: the weights of recurrent ops.
//! - `short_conv.rs`, `ngram_embed.rs`, `gated_delta.rs`, `selective_scan.rs`: one op each.
//!   `columns.rs`: how the latter two divide a state matrix. `vectors.rs`: their f32 vectors.
//!
//! Numerics: a state matrix `S[i][j]` is f32. A product `Σ_i S[i][j] x[i]` has four partial sums,
//! one per `i mod 4`: fused multiply-adds in ascending i, then `(s0 + s1) + (s2 + s3)`. The decay
//! is a multiplication that is rounded by itself; the update is one fused multiply-add. Columns are
//! independent. So results depend neither on the division of a sequence into steps, nor on the
//! number of threads, nor on the instruction set.

pub(crate) mod columns;
pub(crate) mod gated_delta;
pub(crate) mod inputs;
pub(crate) mod ngram_embed;
pub(crate) mod op_context;
pub(crate) mod selective_scan;
pub(crate) mod short_conv;
#[cfg(test)]
mod tests;
pub(crate) mod vectors;
pub(crate) mod weights;
