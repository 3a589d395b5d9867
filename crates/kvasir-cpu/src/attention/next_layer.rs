//! Enqueues the prefetch of the next layer's KV rows (see `prefetch/kv_prefetch.rs`).

use crate::attention::Attend;
use crate::attention::views::Chunk;
use crate::prefetch::kv_prefetch;
use std::ops::Range;

impl Attend<'_> {
    /// Records where these heads' K and V rows of a chunk lie in the next layer, at most `most`
    /// pages per layer. The last layer is followed by the first one, of the next step. Nothing is
    /// recorded if the next layer has another shape.
    pub(super) fn note_next_layer(&self, chunk: &Chunk, heads: Range<usize>, most: usize) {
        kv_prefetch::note(self.layer, most, |note| {
            for run in self.views.runs(chunk) {
                let pool = &self.pools[run.pool as usize];
                let next = (self.layer + 1) % pool.layers.len();
                if pool.facts()[next] == pool.facts()[self.layer] {
                    let next = &pool.layers[next];
                    for rows in [Some(&next.keys), next.values.as_ref()].into_iter().flatten() {
                        heads.clone().for_each(|head| rows.stretches(run.slot, run.len, head, &mut *note));
                    }
                }
            }
        });
    }
}
