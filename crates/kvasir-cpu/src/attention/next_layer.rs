use super::Attend;
use super::view::Chunk;
use crate::meanwhile;
use crate::pool::LayerPool;
use std::ops::Range;

impl Attend<'_> {
    /// Notes where what these heads read of a chunk lies in the next layer, at most so many pages for a layer, behind the last one in the first: the next step's. Where that layer keeps something
    /// else, or elsewhere, nothing is noted.
    pub(super) fn note_next_layer(&self, chunk: &Chunk, heads: Range<usize>, most: usize) {
        meanwhile::note(self.layer, most, |note| {
            for run in self.views.runs(chunk) {
                let layers = &self.pools[run.pool as usize].layers;
                let (now, next) = (&layers[self.layer], &layers[(self.layer + 1) % layers.len()]);
                let alike = |a: &LayerPool, b: &LayerPool| {
                    let rows = |pool: &LayerPool| [pool.keys.row_bytes(), pool.read_as_values().row_bytes()];
                    a.ring == b.ring && a.values.is_some() == b.values.is_some() && rows(a) == rows(b)
                };
                if alike(now, next) {
                    for rows in [Some(&next.keys), next.values.as_ref()].into_iter().flatten() {
                        heads.clone().for_each(|head| rows.stretches(run.slot, run.len, head, &mut *note));
                    }
                }
            }
        });
    }
}
