//! Recurrent layers: the sizes of their states, and the heads and weights of their recurrences.
//!
//! A state is a value of fixed size per sequence, whatever the sequence's length. It holds f32
//! elements: the last inputs of a convolution in order of position, a matrix per head, row-major,
//! or the last token ids.

use crate::ir::weight::WeightId;
use serde::{Deserialize, Serialize};

/// A recurrent state: an index into [`Program::states`](crate::ir::program::Program::states).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateId(pub u32);

/// The size of one recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFacts {
    /// f32 elements per sequence.
    pub elements: usize,
    /// f32 elements per draft token: the inputs from which the recurrence is replayed over the
    /// accepted draft tokens.
    pub tail_elements: usize,
}

/// The key head that a value head belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadMap {
    /// Consecutive value heads share a key head: `h / (value_heads / key_heads)`.
    Grouped,
    /// Every `key_heads`-th value head shares a key head: `h % key_heads`.
    Tiled,
}

/// How decay weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayRate {
    /// The logarithm: the rate is `-exp(w)` (`A_log`).
    Logarithm,
    /// The rate itself, which is negative (GGUF's `ssm_a`).
    Rate,
}

impl DecayRate {
    /// The rate of a stored weight.
    pub fn of(self, stored: f32) -> f32 {
        match self {
            Self::Logarithm => -stored.exp(),
            Self::Rate => stored,
        }
    }
}

/// Number and formula of the decays of a gated delta rule. `g` is the logarithm of a decay, `rate`
/// the decay rate of the value head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DecayGate {
    /// One decay per value head (Gated DeltaNet): `g = rate * softplus(decay + dt_bias)`.
    #[default]
    Head,
    /// One decay per key channel of each value head (Kimi Delta Attention), with the same formula.
    Channel,
    /// One decay per key channel: `g = lower_bound * sigmoid(-rate * (decay + dt_bias))`.
    BoundedChannel {
        /// Lower bound of `g`, negative.
        lower_bound: f32,
    },
}

/// Heads and decay weights of a gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaForm {
    /// Number of query and key heads.
    pub key_heads: usize,
    /// Number of value heads, a multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query or key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// The key head of each value head.
    pub head_map: HeadMap,
    /// Decay weight of each value head.
    pub decay: WeightId,
    /// How `decay` is stored.
    pub decay_rate: DecayRate,
    /// Bias of the decay projection, one per decay.
    pub dt_bias: WeightId,
    /// Number of decays per value head, and their formula.
    #[serde(default)]
    pub gate: DecayGate,
}

impl DeltaForm {
    /// Number of decays per token. The decays of a value head are adjacent.
    pub fn decays(&self) -> usize {
        match self.gate {
            DecayGate::Head => self.value_heads,
            DecayGate::Channel | DecayGate::BoundedChannel { .. } => {
                self.value_heads.saturating_mul(self.key_dim)
            }
        }
    }

    /// The key head of a value head.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.head_map {
            HeadMap::Grouped => value_head / (self.value_heads / self.key_heads.max(1)).max(1),
            HeadMap::Tiled => value_head % self.key_heads.max(1),
        }
    }

    /// Multiply-adds per token: decay, `kᵀ S`, update and `qᵀ S`, each over the whole state.
    pub fn multiply_adds(&self) -> usize {
        self.state().elements.saturating_mul(4)
    }

    /// The state: a matrix [key_dim, value_dim] per value head. The tail keeps k, v, g and β.
    pub fn state(&self) -> StateFacts {
        StateFacts {
            elements: (self.value_heads * self.key_dim).saturating_mul(self.value_dim),
            tail_elements: (self.key_heads * self.key_dim + self.value_heads * (self.value_dim + 1))
                .saturating_add(self.decays()),
        }
    }
}

/// Heads and weights of a selective scan.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScanForm {
    /// Number of heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Number of groups that share B and C; consecutive heads belong to one.
    pub groups: usize,
    /// Elements of B and C in a group.
    pub state_dim: usize,
    /// Decay weight of each head.
    pub decay: WeightId,
    /// How `decay` is stored.
    pub decay_rate: DecayRate,
    /// Bias of the time step, one per head.
    pub dt_bias: WeightId,
    /// Skip weight D of each head.
    pub skip: WeightId,
    /// Bounds of the time step.
    pub dt_limits: TimeStepLimits,
}

/// Bounds that time steps are clamped to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimeStepLimits {
    /// Lower bound.
    pub min: f32,
    /// Upper bound; `None` is unbounded.
    pub max: Option<f32>,
}

impl ScanForm {
    /// The group of a head.
    pub fn group(&self, head: usize) -> usize {
        head / (self.heads / self.groups.max(1)).max(1)
    }

    /// Multiply-adds per token: decay, update and `S C`, each over the whole state.
    pub fn multiply_adds(&self) -> usize {
        self.state().elements.saturating_mul(3)
    }

    /// The state: a matrix [state_dim, head_dim] per head. The tail keeps x, B and dt.
    pub fn state(&self) -> StateFacts {
        StateFacts {
            elements: (self.heads * self.head_dim).saturating_mul(self.state_dim),
            tail_elements: self.heads * (self.head_dim + 1) + self.groups * self.state_dim,
        }
    }
}
