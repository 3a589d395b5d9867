//! The KV cache memory of the reference backend: K, V and indexer keys per layer and slot, in f32.
//!
//! Slots are assigned by the cache's plan; the pool knows no sequence and no block table. A layer
//! has the slots of its layer group. Memory is allocated by pages as slots are written; a slot that
//! was never written, or whose page was released, reads as zeros.

use kvasir_kv::{GroupId, Slot, SlotCopy};
use kvasir_program::{Grouping, LayerFacts, LayerId};
use std::ops::Range;

/// Slots per page.
const PAGE: usize = 64;

/// KV cache memory of a session, one array per layer and part.
pub(crate) struct Pool {
    layers: Vec<Layer>,
}

struct Layer {
    group: GroupId,
    /// Elements per slot of each part.
    widths: [usize; 3],
    /// What a slot that was never written holds.
    zeros: Vec<f32>,
    /// Each part's rows by page; empty until a slot of the page is written.
    pages: [Vec<Vec<f32>>; 3],
}

/// A part of a slot.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    Key = 0,
    Value = 1,
    Index = 2,
}

impl Layer {
    fn row(&self, part: usize, slot: Slot) -> &[f32] {
        let (slot, width) = (slot as usize, self.widths[part]);
        let page = self.pages[part].get(slot / PAGE).filter(|page| !page.is_empty());
        page.map_or(&self.zeros[..width], |page| &page[slot % PAGE * width..][..width])
    }

    fn row_mut(&mut self, part: usize, slot: Slot) -> &mut [f32] {
        let (slot, width, pages) = (slot as usize, self.widths[part], &mut self.pages[part]);
        if pages.len() <= slot / PAGE {
            pages.resize(slot / PAGE + 1, Vec::new());
        }
        let page = &mut pages[slot / PAGE];
        page.resize(PAGE * width, 0.0);
        &mut page[slot % PAGE * width..][..width]
    }
}

impl Pool {
    pub(crate) fn new(layers: &[LayerFacts], grouping: &Grouping) -> Self {
        let layer = |(facts, group): (&LayerFacts, &u8)| {
            let widths = [facts.key_width(), facts.value_width(), facts.index_dim];
            let widest = widths.into_iter().max().unwrap_or(0);
            Layer { group: GroupId(*group), widths, zeros: vec![0.0; widest], pages: Default::default() }
        };
        Self { layers: layers.iter().zip(&grouping.of_layer).map(layer).collect() }
    }

    /// The group whose slots hold a layer's rows.
    pub(crate) fn group(&self, layer: LayerId) -> GroupId {
        self.layers[layer.0 as usize].group
    }

    /// Number of layer groups up to the last one that has a layer. If it is 1, a slot holds a row
    /// of every layer.
    pub(crate) fn group_count(&self) -> usize {
        self.layers.iter().map(|layer| layer.group.index() + 1).max().unwrap_or(1)
    }

    fn layers_of(&mut self, group: GroupId) -> impl Iterator<Item = &mut Layer> {
        self.layers.iter_mut().filter(move |layer| layer.group == group)
    }

    pub(crate) fn row(&self, layer: LayerId, part: Part, slot: Slot) -> &[f32] {
        self.layers[layer.0 as usize].row(part as usize, slot)
    }

    pub(crate) fn write(&mut self, layer: LayerId, part: Part, slot: Slot, row: &[f32]) {
        self.layers[layer.0 as usize].row_mut(part as usize, slot).copy_from_slice(row);
    }

    /// Bytes of a slot's row: all parts of all layers.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.widths.iter().sum::<usize>() * 4).sum()
    }

    /// Copies the row of a slot to the front of `into`; returns the rest of it.
    pub(crate) fn copy_out<'a>(&self, slot: Slot, into: &'a mut [u8]) -> &'a mut [u8] {
        let (row, rest) = into.split_at_mut(self.slot_bytes());
        let parts = self.layers.iter().flat_map(|layer| (0..3).map(move |part| layer.row(part, slot)));
        let numbers = parts.flatten().map(|number| number.to_le_bytes());
        row.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(to, bytes)| *to = bytes);
        rest
    }

    /// Replaces the row of a slot by the front of `from`; returns the rest of it.
    pub(crate) fn copy_in<'a>(&mut self, slot: Slot, from: &'a [u8]) -> &'a [u8] {
        let (row, rest) = from.split_at(self.slot_bytes());
        let mut numbers = row.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        for layer in &mut self.layers {
            for part in 0..3 {
                let row = layer.row_mut(part, slot);
                row.iter_mut().zip(&mut numbers).for_each(|(to, number)| *to = number);
            }
        }
        rest
    }

    /// Frees the pages of a group of which all slots are in `slots`.
    pub(crate) fn release(&mut self, group: GroupId, slots: Range<Slot>) {
        let (first, end) = ((slots.start as usize).div_ceil(PAGE), slots.end as usize / PAGE);
        for pages in self.layers_of(group).flat_map(|layer| &mut layer.pages) {
            let end = end.min(pages.len());
            pages.get_mut(first..end).unwrap_or_default().fill(Vec::new());
        }
    }

    /// Copies slots of a group (copy-on-write, compaction, accepted tree nodes). All sources are
    /// read before any destination is written.
    pub(crate) fn run_moves(&mut self, group: GroupId, moves: &[SlotCopy]) {
        if moves.is_empty() {
            return;
        }
        for layer in self.layers_of(group) {
            for part in 0..layer.pages.len() {
                let rows: Vec<Vec<f32>> = moves.iter().map(|m| layer.row(part, m.from).to_vec()).collect();
                moves.iter().zip(rows).for_each(|(m, row)| layer.row_mut(part, m.to).copy_from_slice(&row));
            }
        }
    }
}
