//! Recurrent layers: short convolution, gated delta rule, selective scan (Mamba-2).
//!
//! - `inputs.rs`: the inputs of a step and where states are stored.
//! - `weights.rs`: the weights of a recurrence.
//! - `short_conv.rs`, `gated_delta.rs`, `selective_scan.rs`: one op each. `columns.rs`: how the
//!   latter two divide a state matrix. `lanes.rs`: their vectors.
//!
//! Numerics: a state matrix is f32 `S[i][j]`, i the reduced index. A product `Σ_i S[i][j] x[i]` has
//! four partial sums by i mod 4, fused multiply-adds in ascending i, then `(s0 + s1) + (s2 + s3)`. A
//! decay is a rounded product, an update one fused multiply-add. Columns are independent. So
//! results depend neither on the division of a sequence into steps, nor on threads, nor on the
//! instruction set.

pub(crate) mod columns;
pub(crate) mod gated_delta;
pub(crate) mod inputs;
pub(crate) mod lanes;

pub(crate) mod selective_scan;
pub(crate) mod short_conv;
#[cfg(test)]
mod tests;
pub(crate) mod weights;
