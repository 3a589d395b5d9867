//! [`Facts`]: the properties of the model and the device from which `EngineConfig::resolve` derives
//! defaults and checks.

use crate::config::join_reason::JoinReason;
use kvasir_kv::GroupKind;

/// Properties of a model and a device on which configuration defaults and checks depend.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Context length of the model.
    pub max_model_len: u32,
    /// Memory that the weights leave, in bytes; `None` if unknown.
    pub free_bytes: Option<u64>,
    /// The layer groups, with the size of their slots. Window groups are listed separately, even if
    /// the configuration joins them to the full group.
    pub groups: Vec<GroupFacts>,
    /// Why window groups join the full group regardless of the configuration.
    pub join_reason: Option<JoinReason>,
    /// Upper bound of the KV cache capacity in slots if the configuration does not set the
    /// capacity; `None` if only memory bounds it.
    pub max_default_capacity: Option<u32>,
    /// Maximum draft tokens per sequence and step; 0 without speculative decoding.
    pub longest_draft: u32,
    /// Sliding windows of the model's layers.
    pub windows: Vec<u32>,
    /// Whether the model is an encoder. `max_model_len` is then the maximum text length plus one.
    pub is_encoder: bool,
    /// Whether the device is a CPU.
    pub is_cpu: bool,
    /// Whether the device is simulated, so that sequences may exceed the model's positions.
    pub is_simulated: bool,
    /// Whether decode steps can run as captured graphs.
    pub has_graphs: bool,
    /// Whether the backend has ring buffers for sliding-window layers.
    pub has_rings: bool,
    /// Batch sizes that decode steps are padded to, in rising order.
    pub batch_sizes: Vec<u32>,
    /// Whether steps overlap with scheduling by default.
    pub overlaps: bool,
}

/// The kind of a layer group and the size of its cached data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// Which cached data of a sequence the layers of the group read.
    pub kind: GroupKind,
    /// Bytes of a slot: K and V of a token in all layers, or the states of a sequence.
    pub slot_bytes: u64,
    /// Bytes of a tail row of the states: the inputs of one draft token. 0 for K and V.
    pub tail_row_bytes: u64,
}

impl GroupFacts {
    /// A group of full-attention layers with slots of `slot_bytes` bytes.
    pub fn full(slot_bytes: u64) -> Self {
        Self { kind: GroupKind::Full, slot_bytes, tail_row_bytes: 0 }
    }
}

impl Facts {
    /// The group of the recurrent states, if the model has any.
    pub(super) fn states(&self) -> Option<&GroupFacts> {
        self.groups.iter().find(|group| group.kind == GroupKind::State)
    }
}
