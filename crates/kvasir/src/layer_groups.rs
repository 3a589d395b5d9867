//! The layer groups of a model with their slot sizes, and the division of memory among them.

use crate::error::Error;
use crate::opened::OpenedModel;
use crate::speculation::Speculation;
use kvasir_cpu::KvType;
use kvasir_engine::{EngineConfig, Facts, GroupFacts, JoinReason, MemoryDivision};
use kvasir_kv::GroupKind;
use kvasir_program::{LayerFacts, LayerGroup, Program, Windows};

/// The layer groups of a program whose K and V have the data type `kv`; sliding-window layers form
/// groups of their own. `draft_layers` are the layers of the draft model, whose KV pool has as many
/// slots as the target's full group.
pub(crate) fn group_facts(program: &Program, draft_layers: &[LayerFacts], kv: KvType) -> Vec<GroupFacts> {
    let grouping = program.grouping(Windows::Separate);
    let facts = |(group, kind): (u8, &LayerGroup)| {
        let of_group = program.layers.iter().zip(&grouping.of_layer).filter(|(_, of)| **of == group);
        let mut layers: Vec<_> = of_group.map(|(layer, _)| *layer).collect();
        match kind {
            LayerGroup::State => GroupFacts {
                kind: GroupKind::State,
                slot_bytes: f32_bytes(grouping.slot_elements[usize::from(group)]),
                tail_row_bytes: f32_bytes(program.state_layout().tail_elements),
            },
            LayerGroup::Window(window) => GroupFacts {
                kind: GroupKind::Window(*window),
                slot_bytes: kv.slot_bytes(&layers) as u64,
                tail_row_bytes: 0,
            },
            LayerGroup::Full => {
                layers.extend(draft_layers);
                GroupFacts::full(kv.slot_bytes(&layers) as u64)
            }
        }
    };
    (0..).zip(&grouping.kinds).map(facts).collect()
}

fn f32_bytes(elements: usize) -> u64 {
    (elements as u64).saturating_mul(4)
}

impl Speculation {
    /// Why sliding-window layers join the full group under this drafter; `None` if they need not.
    pub(crate) fn joins_windows(&self) -> Option<JoinReason> {
        self.proposes_trees().then_some(JoinReason::TreeDrafts)
    }

    /// Maximum draft tokens per sequence and step.
    pub(crate) fn longest_draft(&self) -> u32 {
        let shape = self.parameters.shape;
        if self.proposes_trees() { shape.nodes } else { shape.nodes.min(shape.depth) }
    }
}

impl OpenedModel {
    /// How an engine on the CPU divides `free` bytes of memory, of which the weights take their
    /// stored size. K and V have the data type `kv`, and at most `max_default_capacity` slots.
    pub fn memory_division(
        &self,
        config: &EngineConfig,
        kv: KvType,
        free: Option<u64>,
        max_default_capacity: Option<u32>,
    ) -> Result<MemoryDivision, Error> {
        let target = &self.model.target;
        let draft_layers = self.draft().map_or(&[][..], |(program, _)| &program.layers);
        let max_model_len = u32::try_from(target.max_positions).unwrap_or(u32::MAX);
        let facts = Facts {
            max_model_len: max_model_len.saturating_add(target.is_encoder().into()),
            free_bytes: free.map(|free| free.saturating_sub(self.stored_bytes())),
            groups: group_facts(target, draft_layers, kv),
            join_reason: self.speculation().and_then(Speculation::joins_windows),
            max_default_capacity,
            longest_draft: self.speculation().map_or(0, Speculation::longest_draft),
            is_encoder: target.is_encoder(),
            is_cpu: true,
            ..Facts::default()
        };
        Ok(config.resolve(&facts)?.division)
    }
}
