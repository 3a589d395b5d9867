//! Builds the query blocks of a work item: groups its query rows by 16, and packs their queries.

use crate::attention::kernel::AttentionKernel;
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::query_blocks::{QueryBlock, QueryBlocks};
use crate::attention::softmax::state::MaskBounds;
use crate::attention::work::WorkItem;
use crate::isa::features::Isa;
use crate::isa::float16::round_to_bf16;
use crate::isa::tile::{LANES, STEP, Tile, transpose};
use crate::kernels::max_decode_rows;
use crate::prefetch::ranges::prefetch;
use std::ops::Range;

impl LayerAttention<'_> {
    /// Whether the decode kernels take this many query rows of a KV head: V is then multiplied in
    /// place, as a GEMV. They read V by whole cache lines.
    pub(crate) fn uses_decode_kernels(&self, rows: usize) -> bool {
        rows <= max_decode_rows(self.isa) && self.facts.value_dim.is_multiple_of(STEP)
    }

    /// Builds the blocks of these tokens' query rows, ordered by KV head, and packs their queries.
    pub(crate) fn make_blocks<K: AttentionKernel>(
        &self,
        kernel: &mut K,
        item: &WorkItem<'_>,
        all: &[(usize, i32)],
        tokens: Range<usize>,
        queries: &mut QueryBlocks,
    ) {
        let (group, steps) = (self.per_head(), HeadShape::of(self.facts).steps());
        let per_head = tokens.len() * group;
        // In decode several KV heads share a block; each one's rows get columns of their own.
        let decode = self.uses_decode_kernels(per_head);
        let pack = if K::SHARES_BLOCKS || decode { (LANES / per_head.max(1)).max(1) } else { 1 };
        queries.blocks.clear();
        queries.tiles.clear();
        queries.steps = steps;
        queries.rows.grow(steps);
        let mut head = 0;
        while head < item.heads.len() {
            let heads = head..item.heads.len().min(head + pack);
            let mut from = 0;
            while from < per_head {
                let n = (per_head - from).min(LANES);
                let tiles = queries.tiles.len();
                let used = heads.len() * n;
                // Unused rows repeat the last one, so that they never force a mask.
                let place = |row: usize| {
                    let row = row.min(used - 1);
                    (heads.start + row / n, tokens.start + (from + row % n) / group, (from + row % n) % group)
                };
                let row = |row: usize| {
                    let (head, token, g) = place(row);
                    ((head * all.len() + token) * group + g) as u32
                };
                let sees = |row: usize| all[place(row).1];
                let bounds = MaskBounds {
                    visible: std::array::from_fn(|row| sees(row).1),
                    from: std::array::from_fn(|row| self.window_from(sees(row).0)),
                };
                let range = |all: &[i32; LANES]| {
                    all.iter().fold((i32::MAX, i32::MIN), |(a, b), &v| (a.min(v), b.max(v)))
                };
                let rows = std::array::from_fn(row);
                let block = QueryBlock {
                    heads: heads.clone(),
                    per_head: n,
                    rows,
                    consecutive: rows[..used].is_sorted_by(|a, b| a + 1 == *b),
                    bounds,
                    visible: range(&bounds.visible),
                    from: range(&bounds.from),
                };
                let query = |column: usize| {
                    let (head, token, g) = place(column);
                    let q_head = (item.heads.start + head) * group + g;
                    let at = all[token].0 * self.q_stride + q_head * self.facts.key_dim;
                    &self.q[at..at + self.facts.key_dim]
                };
                queries.tiles.grow(tiles + steps);
                let tiles = &mut queries.tiles[tiles..];
                if decode && K::DECODES_ROWS {
                    round_queries(self.isa, tiles, used, query);
                } else {
                    let rows = &mut queries.rows[..steps];
                    round_queries(self.isa, rows, used, query);
                    rows.iter().zip(tiles).for_each(|(rows, tile)| transpose(self.isa, rows, tile));
                }
                queries.blocks.push(block);
                from += n;
            }
            head = heads.end;
        }
        if decode {
            kernel.widen(&queries.tiles, &mut queries.widened);
        }
    }
}

/// Prefetch distance in query rows: they lie far apart, beyond the hardware prefetcher.
const AHEAD: usize = 4;

/// Rounds the queries of `used` rows to bf16, a tile per 32 numbers of the head dimension and a
/// tile row per query row; unused rows are zeroed.
fn round_queries<'q>(isa: Isa, tiles: &mut [Tile], used: usize, query: impl Fn(usize) -> &'q [f32]) {
    for row in 0..LANES {
        if row >= used {
            tiles.iter_mut().for_each(|tile| tile[row] = [0; LANES]);
            continue;
        }
        prefetch(query((row + AHEAD).min(used - 1)));
        let (whole, rest) = query(row).as_chunks::<STEP>();
        let mut last = [0.0; STEP];
        last[..rest.len()].copy_from_slice(rest);
        for (part, tile) in whole.iter().chain([&last]).zip(&mut *tiles) {
            // SAFETY: a tile row is 64 bytes, and a pair of bf16 fills a word.
            round_to_bf16(isa, part, unsafe { &mut *tile[row].as_mut_ptr().cast::<[u16; STEP]>() });
        }
    }
}
