//! [`Grouping`]: the layers of a program, grouped by what they store of a sequence.
//!
//! | group | stores |
//! |---|---|
//! | full | K and V of every token |
//! | window | K and V of the last tokens |
//! | state | one value of fixed size per recurrent layer |
//!
//! Group 0 is the full group, even if no layer belongs to it. Window groups follow from narrow to
//! wide, then the state group. At most two windows have groups: layers with a narrower one join the
//! narrower group, and their mask applies their own window.

use crate::ir::program::Program;

/// What the layers of a group store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerGroup {
    /// K and V of every token.
    Full,
    /// K and V of this many last tokens.
    Window(u32),
    /// Recurrent states.
    State,
}

/// Whether sliding-window layers form separate groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// At most [`Grouping::MAX_WINDOWS`] groups.
    Separate,
    /// None: sliding-window layers belong to the full group, and their mask applies the window.
    Joined,
}

/// The groups of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grouping {
    /// What each group stores.
    pub kinds: Vec<LayerGroup>,
    /// The group of each layer that stores K and V, by `LayerId`.
    pub of_layer: Vec<u8>,
    /// The group of the recurrent states, if there are any.
    pub of_state: Option<u8>,
    /// Elements per slot of each group: K and V of a token, or all states of a sequence.
    pub slot_elements: Vec<usize>,
}

impl Grouping {
    /// Upper bound of window groups.
    pub const MAX_WINDOWS: usize = 2;

    /// Number of window groups.
    pub fn window_count(&self) -> usize {
        self.kinds.iter().filter(|kind| matches!(kind, LayerGroup::Window(_))).count()
    }
}

impl Program {
    /// Groups the layers by what they store. Layers with an indexer belong to the full group,
    /// since it scores all tokens.
    pub fn grouping(&self, windows: Windows) -> Grouping {
        let mut widths = if windows == Windows::Separate { self.windows() } else { Vec::new() };
        // A window as long as the context never releases a row, so it needs no group.
        widths.retain(|width| (*width as usize) < self.max_positions);
        widths.sort_unstable();
        widths.dedup();
        // Only the widest windows have groups; narrower ones join the next wider group.
        let widths = widths.split_off(widths.len().saturating_sub(Grouping::MAX_WINDOWS));
        let mut kinds = vec![LayerGroup::Full];
        kinds.extend(widths.iter().map(|width| LayerGroup::Window(*width)));
        let of_layer = self.layers.iter().map(|layer| {
            let at =
                layer.retained_window().and_then(|window| widths.iter().position(|width| *width >= window));
            at.map_or(0, |at| at as u8 + 1)
        });
        let of_layer: Vec<u8> = of_layer.collect();
        let mut slot_elements = vec![0; kinds.len()];
        for (group, layer) in of_layer.iter().zip(&self.layers) {
            slot_elements[usize::from(*group)] += layer.width();
        }
        let of_state = self.is_recurrent().then_some(kinds.len() as u8);
        if of_state.is_some() {
            kinds.push(LayerGroup::State);
            slot_elements.push(self.state_elements());
        }
        Grouping { kinds, of_layer, of_state, slot_elements }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::source::Source;
    use crate::ir::recurrent::StateFacts;
    use crate::model::Model;
    use serde_json::json;

    /// A program whose layers have these windows.
    fn program(windows: &[Option<u32>]) -> Program {
        let config = json!({"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": windows.len(), "num_attention_heads": 4, "vocab_size": 100,
            "max_position_embeddings": 128});
        let mut program = Model::build(&Source::of_config(config)).unwrap().target;
        program.layers.iter_mut().zip(windows).for_each(|(layer, window)| layer.window = *window);
        program
    }

    #[test]
    fn a_third_window_joins_the_next_wider_one() {
        let program = program(&[None, Some(64), Some(16), Some(32), None]);
        let grouping = program.grouping(Windows::Separate);
        assert_eq!(grouping.kinds, [LayerGroup::Full, LayerGroup::Window(32), LayerGroup::Window(64)]);
        assert_eq!(grouping.of_layer, [0, 2, 1, 1, 0]);
        assert_eq!(grouping.slot_elements, [256, 256, 128]);
        assert_eq!(program.grouping(Windows::Joined).of_layer, [0; 5]);
    }

    #[test]
    fn a_window_as_long_as_the_context_joins_the_full_group() {
        let grouping = program(&[Some(128), Some(127)]).grouping(Windows::Separate);
        assert_eq!(grouping.kinds, [LayerGroup::Full, LayerGroup::Window(127)]);
        assert_eq!(grouping.of_layer, [0, 1]);
    }

    #[test]
    fn states_of_all_layers_form_the_last_group() {
        let mut program = program(&[Some(16)]);
        program.states =
            vec![StateFacts { elements: 7, tail_elements: 1 }, StateFacts { elements: 5, tail_elements: 1 }];
        let grouping = program.grouping(Windows::Separate);
        assert_eq!(grouping.kinds, [LayerGroup::Full, LayerGroup::Window(16), LayerGroup::State]);
        assert_eq!((grouping.of_state, &grouping.slot_elements[..]), (Some(2), &[0, 128, 12][..]));
        assert_eq!(program.grouping(Windows::Joined).of_state, Some(1));
    }
}
