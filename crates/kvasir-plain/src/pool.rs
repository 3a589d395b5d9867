//! The KV cache memory of the reference backend: K, V and indexer keys per layer and slot, in f32.
//!
//! Slots are assigned by the cache's plan; the pool knows no sequence and no block table. Memory
//! grows by doubling.

use kvasir_kv::{Slot, SlotCopy};
use kvasir_program::{LayerFacts, LayerId};

/// KV cache memory of a session, one array per layer and part.
#[derive(Default)]
pub struct Pool {
    layers: Vec<Layer>,
    slots: usize,
}

#[derive(Default)]
struct Layer {
    /// Elements per slot of each part.
    widths: [usize; 3],
    data: [Vec<f32>; 3],
}

/// A part of a slot.
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

    /// Allocates memory for every slot below `bound`; existing rows keep their contents.
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

    /// Copies slots (compaction, accepted tree nodes). All sources are read before any destination
    /// is written.
    pub(crate) fn run_moves(&mut self, moves: &[SlotCopy]) {
        for layer in &mut self.layers {
            for (data, width) in layer.data.iter_mut().zip(layer.widths) {
                let range = |slot: Slot| slot as usize * width..(slot as usize + 1) * width;
                let rows: Vec<Vec<f32>> = moves.iter().map(|m| data[range(m.from)].to_vec()).collect();
                moves.iter().zip(rows).for_each(|(m, row)| data[range(m.to)].copy_from_slice(&row));
            }
        }
    }

    /// Slots for which memory is allocated.
    pub fn slots(&self) -> usize {
        self.slots
    }
}
