//! Reference of `Op::CompressedAttend`: one softmax over the keys of a sliding window and of
//! compressed entries.

use crate::attention::Pools;
use crate::indexer::ResolvedKeyPool;
use crate::mask::Reads;
use crate::math::{add_scaled, dot, softmax};
use crate::pool::Part;
use kvasir_program::LayerId;

/// Compressed attention of one layer. Its keys are also its values.
pub(crate) struct CompressedAttention<'a> {
    pub(crate) layer: LayerId,
    pub(crate) dim: usize,
    pub(crate) scale: f32,
    pub(crate) sinks: &'a [f32],
    pub(crate) window: u32,
    pub(crate) key_pool: ResolvedKeyPool<'a>,
    pub(crate) kv_pools: Pools<'a>,
}

/// The cache entries that one query sees.
pub(crate) struct VisibleEntries<'a> {
    pub(crate) reads: &'a Reads<'a>,
    pub(crate) visible: &'a [u32],
    /// Entries of the pools that the indexer selected; `None` if the layer has no indexer.
    pub(crate) selected: Option<&'a [u32]>,
    pub(crate) position: u32,
    pub(crate) final_len: u32,
}

impl CompressedAttention<'_> {
    /// Computes the attention of all heads of one query.
    pub(crate) fn query(&self, seen: &VisibleEntries<'_>, q: &[f32], out: &mut [f32]) {
        let keys = self.keys(seen);
        for (head, (q, out)) in q.chunks(self.dim).zip(out.chunks_mut(self.dim)).enumerate() {
            let mut weights: Vec<f32> = keys.iter().map(|key| dot(q, key) * self.scale).collect();
            softmax(&mut weights, Some(self.sinks[head]));
            out.fill(0.0);
            weights.iter().zip(&keys).for_each(|(weight, key)| add_scaled(out, *weight, key));
        }
    }

    /// The keys of the window, then the compressed entries, both in order of position.
    fn keys(&self, seen: &VisibleEntries<'_>) -> Vec<Vec<f32>> {
        let VisibleEntries { reads, visible, selected, position, final_len } = *seen;
        let slot_of = |entry: &u32| reads.entries[*entry as usize];
        let row = |entry: &u32, part: Part| {
            let (pool, slot, _) = slot_of(entry);
            self.kv_pools.row(self.layer, part, (pool, slot))
        };
        let in_window =
            visible.iter().filter(|entry| position.saturating_sub(slot_of(entry).2) < self.window);
        let mut keys: Vec<Vec<f32>> = in_window.map(|entry| row(entry, Part::Key).to_vec()).collect();
        let (complete, _) = self.key_pool.split(reads, visible);
        for (index, entries) in complete.iter().enumerate() {
            let is_selected = selected.is_none_or(|selected| selected.contains(&entries[0]));
            if is_selected {
                let row = |entry: &u32| row(entry, Part::Index);
                keys.push(self.key_pool.key(&complete, index, reads, final_len, row));
            }
        }
        keys
    }
}
