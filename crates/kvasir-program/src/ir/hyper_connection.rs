//! [`HyperForm`]: manifold-constrained hyper-connections (mHC) between parallel residual streams.

use crate::ir::weight::WeightId;
use serde::{Deserialize, Serialize};

/// Parameters of a hyper-connection. They define its weights (pre, post and the mixing matrix C, in
/// this order) as functions of their projections `x`, with scales `s` and biases `b`:
///
/// ```text
/// pre  = sigmoid(s[0] x + b) + eps
/// post = 2 sigmoid(s[1] x + b)
/// C    = softmax of each row of (s[2] x + b), plus eps
/// ```
///
/// Then Sinkhorn-Knopp normalization of C. The first iteration divides each column by its sum plus
/// eps. Every further iteration does so for the rows, then for the columns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct HyperForm {
    /// Number of residual streams.
    pub streams: usize,
    /// Sinkhorn iterations, at least 1.
    pub iterations: usize,
    /// Whether only pre is computed: the weights that join the streams before the final norm.
    #[serde(default)]
    pub is_join: bool,
    /// Added to weights and sums.
    pub eps: f32,
    /// Scales of pre, post and C; of pre only if `is_join`.
    pub scale: WeightId,
    /// One bias per projection.
    pub base: WeightId,
}

impl HyperForm {
    /// Number of weights for `streams` streams: pre, post and the mixing matrix, or pre only.
    pub fn width(streams: usize, is_join: bool) -> usize {
        if is_join { streams } else { (2 + streams) * streams }
    }
}
