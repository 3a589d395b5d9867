//! A stretch: neighbouring chunks that the same views read, taken by all lanes of a piece of work.

use super::block::Block;
use super::scored::Scored;
use super::scratch::Scratch;
use super::share::Stretch;
use super::soon::Soon;
use super::unit::Unit;
use super::view::{CHUNK, Chunk};
use super::{Attend, Piece, Shape, products};
use crate::Level;
use crate::lines::Lines;
use crate::tile::LANES;
use std::ops::Range;

/// Chunks that are taken together at most: shares of all of them are made first, then sums are read and written once. Two chunks' values
/// leave room in the first-level cache.
pub(super) const TAKEN: usize = 2;

/// A chunk that some lane sees some of.
#[derive(Clone, Copy)]
pub(super) struct Seen<'c> {
    pub(super) chunk: &'c Chunk,
    /// The chunk behind it.
    pub(super) next: Option<&'c Chunk>,
    /// Its first position and its last.
    pub(super) first: i32,
    last: i32,
}

/// Chunks that are taken together by blocks which read the same heads.
pub(super) struct Work<'c> {
    pub(super) chunks: &'c [Seen<'c>],
    pub(super) blocks: Range<usize>,
    /// Heads, counted within the piece.
    pub(super) heads: Range<usize>,
    /// Whether values are multiplied as they lie, because each head has few lanes.
    few: bool,
}

impl Seen<'_> {
    /// Positions up to the last one.
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
    /// Takes all lanes of a stretch's views through its chunks.
    pub(super) fn stretch(&self, level: Level, piece: &Piece<'_>, stretch: &Stretch, s: &mut Scratch) {
        let first_view = stretch.views.0 - piece.group.views.0;
        let last_view = stretch.views.1 - piece.group.views.0;
        let of = |at: usize| at.clamp(piece.tokens.start, piece.tokens.end) - piece.tokens.start;
        let tokens = of(s.starts[first_view])..of(s.starts[last_view]);
        self.make_blocks(level, piece, tokens, s);
        let view = &self.views.views[self.views.order[stretch.views.0] as usize];
        let mut chunks = &self.views.chunks(view)[stretch.chunks.0..stretch.chunks.1];
        let mut unit = Unit::of(level);
        // Where many lanes share a head it is their sums that cost; heads of few lanes wait for memory, which is read in order.
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

    /// Goes on to the next chunk that a block sees some of.
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

    /// Scores the chunks for all blocks and makes shares of that: products of a block run while the shares of the one before are made. The first
    /// head's values become tiles beside products of its keys.
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
                    // The first half has been asked for.
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
                // SAFETY: blocks and keys are there, and the unit is as it should be; the rows are the pool's or staged.
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
