//! The main loop of attention: all query blocks of a work item over a stretch of KV chunks.
//!
//! Per chunk (two at a time in prefill on AMX) and per set of KV heads that share query blocks:
//!
//! 1. Stage K, start packing V, set up prefetch.
//! 2. `make_shares`: S = Q K^T and online softmax, pipelined over the query blocks.
//! 3. O += P V: `take_values` (GEMM on packed V) or `take_rows` (decode, V in place).

use crate::attention::block::Block;
use crate::attention::scored::Scored;
use crate::attention::scratch::Scratch;
use crate::attention::shared_prefix::Stretch;
use crate::attention::unit::Unit;
use crate::attention::views::{CHUNK, Chunk};
use crate::attention::{Attend, Piece, Shape, products};
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::memory::aligned::Lines;
use crate::prefetch::ranges::Soon;
use std::ops::Range;

/// Chunks processed together at most: the attention weights of all of them are made first, then O
/// is loaded and stored once. The V tiles of two chunks fit L1.
pub(crate) const TAKEN: usize = 2;

/// A chunk of which some query row sees a part.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'c> {
    pub(super) chunk: &'c Chunk,
    /// The chunk that follows.
    pub(super) next: Option<&'c Chunk>,
    /// First and last position with an entry.
    pub(super) first: i32,
    last: i32,
}

/// Chunks and query blocks that are processed together, of the same KV heads.
pub(crate) struct Work<'c> {
    pub(super) chunks: &'c [Seen<'c>],
    pub(super) blocks: Range<usize>,
    /// KV heads, relative to the work item's first.
    pub(super) heads: Range<usize>,
    /// Whether the decode path is used: few query rows per KV head, V multiplied in place.
    few: bool,
}

impl Seen<'_> {
    /// Positions of the chunk up to the last entry.
    pub(super) fn len(&self) -> usize {
        self.last as usize % CHUNK + 1
    }
}

impl Block {
    pub(super) fn meets(&self, seen: &Seen<'_>) -> bool {
        self.sees(seen.chunk, seen.last)
    }
}

impl Attend<'_> {
    /// Runs all query rows of a stretch's views over its chunks.
    pub(super) fn stretch(&self, level: Level, piece: &Piece<'_>, stretch: &Stretch, s: &mut Scratch) {
        let first_view = stretch.views.0 - piece.group.views.0;
        let last_view = stretch.views.1 - piece.group.views.0;
        let of = |at: usize| at.clamp(piece.tokens.start, piece.tokens.end) - piece.tokens.start;
        let tokens = of(s.starts[first_view])..of(s.starts[last_view]);
        self.make_blocks(level, piece, tokens, s);
        let view = &self.views.views[self.views.order[stretch.views.0] as usize];
        let mut chunks = &self.views.chunks(view)[stretch.chunks.0..stretch.chunks.1];
        let mut unit = Unit::of(level);
        // With many query rows per head, loading and storing O dominates; with few, memory
        // bandwidth does, and K and V are read in order.
        let most =
            if level >= Level::Amx && piece.heads.len() == 1 && s.blocks.len() > 1 { TAKEN } else { 1 };
        while let Some(seen) = self.next_seen(&mut chunks, &s.blocks) {
            let mut taken = [seen; TAKEN];
            let more = (1..most).map_while(|_| self.next_seen(&mut chunks, &s.blocks));
            let n = 1 + more.zip(&mut taken[1..]).map(|(seen, to)| *to = seen).count();
            let mut at = 0;
            while at < s.blocks.len() {
                let heads = s.blocks[at].heads.clone();
                let next = at + s.blocks[at..].iter().take_while(|b| b.heads == heads).count();
                let few = next - at == 1 && self.is_few(level, s.blocks[at].per_head);
                let work = Work { chunks: &taken[..n], blocks: at..next, heads, few };
                self.make_shares(level, piece, &work, &mut unit, s);
                match few {
                    #[cfg(target_arch = "x86_64")]
                    true => self.take_rows(level, piece, &work, s),
                    _ => self.take_values(level, piece, &work, &mut unit, s),
                }
                at = next;
            }
        }
    }

    /// Advances to the next chunk of which some block sees a part.
    fn next_seen<'c>(&self, chunks: &mut &'c [Chunk], blocks: &[Block]) -> Option<Seen<'c>> {
        while let Some((chunk, rest)) = chunks.split_first() {
            *chunks = rest;
            let runs = self.views.runs(chunk);
            if let (Some(first), Some(end)) = (runs.first(), runs.last()) {
                let (first, last) = (first.position as i32, (end.position + end.len - 1) as i32);
                let seen = Seen { chunk, next: rest.first(), first, last };
                if blocks.iter().any(|block| block.meets(&seen)) {
                    return Some(seen);
                }
            }
        }
        None
    }

    /// S = Q K^T and online softmax of the chunks for all blocks. The products of a block overlap
    /// with the softmax of the one before, and the packing of the first head's V with the products
    /// of its keys.
    fn make_shares(
        &self,
        level: Level,
        piece: &Piece<'_>,
        work: &Work<'_>,
        unit: &mut Unit,
        s: &mut Scratch,
    ) {
        let shape = Shape::of(self.facts);
        unit.of_shape(LANES, if work.heads.len() > 1 { s.blocks[work.blocks.start].per_head } else { LANES });
        let head = piece.heads.start + work.heads.start;
        let many = work.blocks.len() > 1;
        let mut before: Option<Scored> = None;
        for (n, seen) in work.chunks.iter().enumerate() {
            let hides = |block: &Block| block.meets(seen) && !block.sees_all(seen.chunk, seen.first);
            if s.blocks[work.blocks.clone()].iter().any(hides) {
                self.number_entries(seen.chunk, s);
            }
            self.stage_keys(level, shape, piece, (work.heads.clone(), many), seen.chunk, s);
            #[cfg(target_arch = "x86_64")]
            (s.later = self.first_later(level, seen.chunk, head));
            if work.few && piece.pages > 0 {
                self.note_next_layer(seen.chunk, head..piece.heads.start + work.heads.end, piece.pages);
            }
            s.soon = Soon::NOTHING;
            if work.heads.len() == 1 {
                let meeting = s.blocks[work.blocks.clone()].iter().filter(|b| b.meets(seen)).count();
                let soon = match seen.next {
                    Some(next) if many => self.soon_values(next, head, self.soon(next, head)).far(),
                    _ if many => Soon::NOTHING,
                    _ if work.few => self.soon_values(seen.chunk, head, Soon::NOTHING).far(),
                    // The first half was prefetched beside the previous chunk's values.
                    _ => self.soon(seen.chunk, head).second_half(),
                };
                s.soon = soon.in_parts(meeting * products::asks(shape.steps()));
            }
            let mut coming = (!work.few).then(|| {
                let tiles = std::mem::replace(&mut s.values[n], Lines::new());
                self.coming(level, head, seen.chunk, (tiles, Soon::NOTHING), s)
            });
            for block in work.blocks.clone() {
                if !s.blocks[block].meets(seen) {
                    continue;
                }
                let place = before.map_or(0, |before| 1 - before.place);
                let now = Scored { block, chunk: n, seen: seen.len(), place };
                // SAFETY: blocks and keys were made, and tiles are configured; the rows are the
                // pool's or staged.
                unsafe { s.score(level, shape, now, before, coming.as_mut()) };
                s.begin_shares(level, now, seen, self.rule(), work.few);
                before = Some(now);
            }
            if let Some(mut coming) = coming {
                // SAFETY: the rows are the pool's or staged.
                unsafe { coming.all(level) };
                s.values[n] = coming.tiles;
            }
        }
        if let Some(before) = before {
            s.end_shares(level, before, work.few);
        }
    }
}
