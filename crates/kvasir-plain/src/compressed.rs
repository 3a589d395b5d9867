//! Reference attention to a window and to compressed entries: one softmax over the keys of both.

use crate::attention::Pools;
use crate::indexer::Pooling;
use crate::mask::Reads;
use crate::math::{add_scaled, dot, softmax};
use crate::pool::Part;
use kvasir_program::LayerId;

/// The attention of one layer, whose keys are its values, too.
pub(crate) struct CompressedAttention<'a> {
    pub(crate) layer: LayerId,
    pub(crate) dim: usize,
    pub(crate) scale: f32,
    pub(crate) sinks: &'a [f32],
    pub(crate) window: u32,
    pub(crate) pooling: Pooling<'a>,
    pub(crate) kv_pools: Pools<'a>,
}

/// What one query sees.
pub(crate) struct VisibleEntries<'a> {
    pub(crate) reads: &'a Reads,
    pub(crate) visible: &'a [u32],
    /// Entries of selected pools; `None` if all pools are seen.
    pub(crate) selected: Option<&'a [u32]>,
    pub(crate) position: u32,
    pub(crate) final_len: u32,
}

impl CompressedAttention<'_> {
    /// Computes one query: its heads in `q`, the results in `out`.
    pub(crate) fn query(&self, seen: &VisibleEntries<'_>, q: &[f32], out: &mut [f32]) {
        let keys = self.keys(seen);
        for (head, (q, out)) in q.chunks(self.dim).zip(out.chunks_mut(self.dim)).enumerate() {
            let mut weights: Vec<f32> = keys.iter().map(|key| dot(q, key) * self.scale).collect();
            softmax(&mut weights, Some(self.sinks[head]));
            out.fill(0.0);
            weights.iter().zip(&keys).for_each(|(weight, key)| add_scaled(out, *weight, key));
        }
    }

    /// The keys of the window, then the entries, in order of position each.
    fn keys(&self, seen: &VisibleEntries<'_>) -> Vec<Vec<f32>> {
        let VisibleEntries { reads, visible, selected, position, final_len } = *seen;
        let of = |entry: &u32| reads.entries[*entry as usize];
        let row = |entry: &u32, part: Part| {
            let (pool, slot, _) = of(entry);
            self.kv_pools.row(self.layer, part, (pool, slot))
        };
        let near = visible.iter().filter(|entry| position.saturating_sub(of(entry).2) < self.window);
        let mut keys: Vec<Vec<f32>> = near.map(|entry| row(entry, Part::Key).to_vec()).collect();
        let (complete, _) = self.pooling.split(reads, visible);
        for (place, entries) in complete.iter().enumerate() {
            let is_selected = selected.is_none_or(|selected| selected.contains(&entries[0]));
            if is_selected {
                let before = place.checked_sub(1).map_or(&[][..], |before| complete[before]);
                let rows = |entries: &[u32]| -> Vec<&[f32]> {
                    entries.iter().map(|entry| row(entry, Part::Index)).collect()
                };
                let first = of(&entries[0]).2;
                keys.push(self.pooling.key(&rows(before), &rows(entries), first, final_len));
            }
        }
        keys
    }
}
