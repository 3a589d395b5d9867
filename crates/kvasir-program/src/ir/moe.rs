//! Mixtures of experts (MoE): how a token's experts are chosen, and the weights of a layer's
//! experts.

use crate::ir::activation::Activation;
use crate::ir::weight::{Matrices, WeightId};
use serde::{Deserialize, Serialize};

/// MoE routing: how a token's experts and their weights follow from the router's scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Routing {
    /// How scores become expert weights.
    pub score: Score,
    /// Experts per token, in descending order of weight; the lower index first among equals.
    pub top_k: usize,
    /// Added to the weights for the selection only (DeepSeek's `e_score_correction_bias`).
    pub correction: Option<WeightId>,
    /// Group-limited routing: experts may be chosen only from the best groups.
    pub groups: Option<Groups>,
    /// If set, divide the chosen weights by their sum plus this epsilon.
    pub renormalize: Option<f32>,
    /// Multiplies the final weights (`routed_scaling_factor`).
    pub scale: f32,
    /// If set, the experts of each token id, [vocabulary, top_k], instead of those with the best
    /// scores (hash routing).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_table: Option<WeightId>,
    /// Multiplies the final weight of each expert (Gemma 4's `per_expert_scale`).
    #[serde(default)]
    pub expert_scale: Option<WeightId>,
}

/// The scoring function of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each score.
    Sigmoid,
    /// Square root of the softplus of each score (DeepSeek-V4).
    SqrtSoftplus,
}

/// Groups of experts (group-limited routing). A group's score is the sum of its two best corrected
/// weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Number of groups, of equal size.
    pub count: usize,
    /// Number of groups that experts are chosen from.
    pub keep: usize,
}

/// The expert weights of one MoE layer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Gate projections: hidden to intermediate.
    pub gate: Matrices,
    /// Up projections: hidden to intermediate.
    pub up: Matrices,
    /// Down projections: intermediate to hidden.
    pub down: Matrices,
    /// The gated activation between them.
    pub activation: Activation,
    /// Router index of the first local expert; 0 unless ranks divide the experts. Routes to experts
    /// of other ranks contribute nothing.
    #[serde(default)]
    pub first: usize,
}
