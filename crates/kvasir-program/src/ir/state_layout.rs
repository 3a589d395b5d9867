//! [`StateLayout`]: layout of state slots and tail rows of a recurrent model.
//!
//! A *state slot* holds one state of each recurrent op. A *tail row* holds the inputs of one draft
//! token to each of them. Both are f32 elements, in the order of [`StateId`], without gaps, so a
//! slot has [`Program::state_elements`] elements.
//!
//! | op | state | tail row |
//! |---|---|---|
//! | `ShortConv` | the last `(kernel - 1) * dilation` rows of x, the oldest first | x |
//! | `GatedDelta` | per value head a matrix `[key_dim, value_dim]` | k, v, decay, β |
//! | `SelectiveScan` | per head a matrix `[state_dim, head_dim]` | x, B, dt |
//! | `NgramEmbed` | the last `size - 1` token ids, each plus 1, the nearest first; 0 marks no token | token id |
//!
//! Token ids are exact in f32: no vocabulary exceeds 2^24 tokens (`builder::config`).
//!
//! A tail row stores the op's operands as the program computes them. A replay applies normalization
//! and activation to them again.

use crate::ir::program::Program;
use crate::ir::recurrent::StateId;
use std::ops::Range;

/// Element ranges of one recurrent op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSpan {
    /// Its state in a state slot.
    pub slot: Range<usize>,
    /// Its inputs in a tail row.
    pub tail: Range<usize>,
}

/// The layout of the state slots and tail rows of a program. Empty without recurrent layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateLayout {
    /// By `StateId`.
    pub spans: Vec<StateSpan>,
    /// f32 elements of a state slot.
    pub slot_elements: usize,
    /// f32 elements of a tail row.
    pub tail_elements: usize,
}

impl StateLayout {
    /// The element ranges of a state. Panics if the program has no such state.
    pub fn span(&self, state: StateId) -> &StateSpan {
        &self.spans[state.0 as usize]
    }
}

impl Program {
    /// The layout of its state slots and tail rows.
    pub fn state_layout(&self) -> StateLayout {
        let mut layout = StateLayout::default();
        for state in &self.states {
            let slot = layout.slot_elements..layout.slot_elements.saturating_add(state.elements);
            let tail = layout.tail_elements..layout.tail_elements.saturating_add(state.tail_elements);
            (layout.slot_elements, layout.tail_elements) = (slot.end, tail.end);
            layout.spans.push(StateSpan { slot, tail });
        }
        layout
    }
}

#[cfg(test)]
mod tests {
    use crate::builder::source::Source;
    use crate::ir::recurrent::{StateFacts, StateId};
    use crate::model::Model;
    use serde_json::json;

    #[test]
    fn states_are_adjacent_without_gaps() {
        let config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 100,
            "max_position_embeddings": 128});
        let mut program = Model::build(&Source::of_config(config)).unwrap().target;
        assert_eq!(program.state_layout().slot_elements, 0);
        program.states =
            vec![StateFacts { elements: 7, tail_elements: 2 }, StateFacts { elements: 5, tail_elements: 3 }];
        let layout = program.state_layout();
        assert_eq!((layout.slot_elements, layout.tail_elements), (program.state_elements(), 5));
        let second = layout.span(StateId(1));
        assert_eq!((second.slot.clone(), second.tail.clone()), (7..12, 2..5));
    }
}
