use kvasir_kv::{RowMove, Slot};
use kvasir_program::{LayerFacts, LayerId};

/// K, V and indexer keys of a session, layer by layer, in f32.
#[derive(Default)]
pub struct Pool {
    layers: Vec<Layer>,
    slots: usize,
}

#[derive(Default)]
struct Layer {
    /// Numbers per slot of each of the three.
    widths: [usize; 3],
    data: [Vec<f32>; 3],
}

/// Which of a slot's parts.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Key = 0,
    Value = 1,
    Index = 2,
}

impl Pool {
    pub(crate) fn new(layers: &[LayerFacts]) -> Self {
        let layer = |facts: &LayerFacts| Layer {
            widths: [facts.key_width(), facts.value_width(), facts.index_dim],
            data: Default::default(),
        };
        Self { layers: layers.iter().map(layer).collect(), slots: 0 }
    }

    /// Makes room for every slot below `bound`.
    pub(crate) fn grow(&mut self, bound: usize) {
        if bound <= self.slots {
            return;
        }
        self.slots = bound.max(self.slots * 2);
        for layer in &mut self.layers {
            let sized = layer.data.iter_mut().zip(layer.widths);
            sized.for_each(|(data, width)| data.resize(self.slots * width, 0.0));
        }
    }

    pub(crate) fn row(&self, layer: LayerId, part: Part, slot: Slot) -> &[f32] {
        let layer = &self.layers[layer.0 as usize];
        let (width, slot) = (layer.widths[part as usize], slot as usize);
        &layer.data[part as usize][slot * width..(slot + 1) * width]
    }

    pub(crate) fn write(&mut self, layer: LayerId, part: Part, slot: Slot, row: &[f32]) {
        let layer = &mut self.layers[layer.0 as usize];
        let (width, slot) = (layer.widths[part as usize], slot as usize);
        layer.data[part as usize][slot * width..(slot + 1) * width].copy_from_slice(row);
    }

    /// All moves read before any writes.
    pub(crate) fn run_moves(&mut self, moves: &[RowMove]) {
        for layer in &mut self.layers {
            for (data, width) in layer.data.iter_mut().zip(layer.widths) {
                let range = |slot: Slot| slot as usize * width..(slot as usize + 1) * width;
                let rows: Vec<Vec<f32>> = moves.iter().map(|m| data[range(m.from)].to_vec()).collect();
                moves.iter().zip(rows).for_each(|(m, row)| data[range(m.to)].copy_from_slice(&row));
            }
        }
    }

    /// Slots that there is memory for.
    pub fn slots(&self) -> usize {
        self.slots
    }
}
