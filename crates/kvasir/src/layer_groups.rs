//! The layer groups of a model, with the sizes of their slots, and how an engine with default
//! options would divide this machine's memory among them.

use crate::error::Error;
use crate::opened::OpenedModel;
use crate::speculation::Speculation;
use kvasir_cpu::KvType;
use kvasir_engine::{EngineConfig, Facts, GroupFacts, MemoryDivision};
use kvasir_kv::GroupKind;
use kvasir_program::{LayerFacts, LayerGroup, Program, Windows};

/// The layer groups of a program whose K and V have the data type `kv`. `drafts` are the layers of
/// the draft model, which has a row per K/V slot of the target.
///
/// Sliding-window layers belong to the full group: no cache but `contiguous` with rings releases
/// rows behind a window.
pub(crate) fn group_facts(program: &Program, drafts: &[LayerFacts], kv: KvType) -> Vec<GroupFacts> {
    let grouping = program.grouping(Windows::Joined);
    let tail_elements = program.states.iter().map(|state| state.tail_elements).sum::<usize>();
    let facts = |(group, kind): (u8, &LayerGroup)| {
        let of_group = program.layers.iter().zip(&grouping.of_layer).filter(|(_, of)| **of == group);
        let mut layers: Vec<_> = of_group.map(|(layer, _)| *layer).collect();
        match kind {
            LayerGroup::State => GroupFacts {
                kind: GroupKind::State,
                slot_bytes: f32_bytes(grouping.slot_elements[usize::from(group)]),
                tail_row_bytes: f32_bytes(tail_elements),
            },
            LayerGroup::Window(window) => GroupFacts {
                kind: GroupKind::Window(*window),
                slot_bytes: kv.slot_bytes(&layers) as u64,
                tail_row_bytes: 0,
            },
            LayerGroup::Full => {
                layers.extend(drafts);
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
    /// Maximum draft tokens per sequence and step.
    pub(crate) fn longest_draft(&self) -> u32 {
        let shape = self.parameters.shape;
        if self.proposes_trees() { shape.nodes } else { shape.nodes.min(shape.depth) }
    }
}

impl OpenedModel {
    /// How an engine on the CPU divides `free` bytes of memory, of which the weights take their
    /// stored size. K and V have the data type `kv`, and at most `default_capacity` slots.
    pub fn memory_division(
        &self,
        config: &EngineConfig,
        kv: KvType,
        free: Option<u64>,
        default_capacity: Option<u32>,
    ) -> Result<MemoryDivision, Error> {
        let target = &self.model.target;
        let drafts = self.draft().map_or(&[][..], |(program, _)| &program.layers);
        let max_model_len = u32::try_from(target.max_positions).unwrap_or(u32::MAX);
        let facts = Facts {
            max_model_len: max_model_len.saturating_add(target.is_encoder().into()),
            bytes: free.map(|free| free.saturating_sub(self.stored_bytes())),
            groups: group_facts(target, drafts, kv),
            default_capacity,
            longest_draft: self.speculation().map_or(0, Speculation::longest_draft),
            is_encoder: target.is_encoder(),
            is_cpu: true,
            ..Facts::default()
        };
        Ok(config.resolve(&facts)?.division)
    }
}
