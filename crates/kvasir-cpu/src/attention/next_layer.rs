use super::Attend;
use super::view::Chunk;
use crate::meanwhile;
use std::ops::Range;

impl Attend<'_> {
    /// Notes where what these heads read of a chunk lies in the next layer, at most so many pages for a layer. Behind the last layer comes the first: the next
    /// step's. Where a layer keeps something else nothing is noted.
    pub(super) fn note_next_layer(&self, chunk: &Chunk, heads: Range<usize>, most: usize) {
        meanwhile::note(self.layer, most, |note| {
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
