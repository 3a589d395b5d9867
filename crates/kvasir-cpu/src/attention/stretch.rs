use super::block::Block;
use super::coming::Coming;
#[cfg(target_arch = "x86_64")]
use super::few;
use super::scratch::Scratch;
use super::share::Stretch;
use super::softmax::{self, LANES, Rule};
use super::soon::Soon;
use super::view::{CHUNK, Chunk};
#[cfg(target_arch = "x86_64")]
use super::wide::Making;
use super::{Attend, Piece, Shape, products};
use crate::Level;
use crate::lines::Lines;
use crate::tile::transpose;
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
    first: i32,
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

/// The tile unit, where the level has one.
struct Unit(#[cfg(target_arch = "x86_64")] Option<crate::amx::Tiles>);

impl Unit {
    fn of(level: Level) -> Self {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that tiles are permitted.
        return Self((level >= Level::Amx).then(|| unsafe { crate::amx::Tiles::configure() }));
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = level;
            Self()
        }
    }

    /// Products have so many rows from here on, of values with few shares, or columns, of keys with few queries.
    fn of_shape(&mut self, rows: usize, columns: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(tiles) = &mut self.0 {
            tiles.of_shape(rows, columns);
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (rows, columns);
    }
}

impl Seen<'_> {
    /// Positions up to the last one.
    pub(super) fn len(&self) -> usize {
        self.last as usize % CHUNK + 1
    }
}

impl Block {
    fn meets(&self, seen: &Seen<'_>) -> bool {
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
                unit.of_shape(LANES, if work.heads.len() > 1 { s.blocks[at].per_head } else { LANES });
                self.make_shares(level, piece, &work, s);
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
    fn make_shares(&self, level: Level, piece: &Piece<'_>, work: &Work<'_>, s: &mut Scratch) {
        let shape = Shape::of(self.facts);
        let head = piece.heads.start + work.heads.start;
        let many = work.blocks.len() > 1;
        let mut before: Option<Scored> = None;
        for (n, seen) in work.chunks.iter().enumerate() {
            self.number_rows(seen.chunk, s);
            self.stage_keys(level, shape, piece, (work.heads.clone(), many), seen.chunk, s);
            #[cfg(target_arch = "x86_64")]
            (s.later = [self.later_keys(seen.chunk, head), self.later_values(seen.chunk, head)]);
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
                s.score(level, shape, now, before, coming.as_mut());
                s.begin_shares(level, now, seen, self.rule());
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

    /// Adds the chunks' values, head by head, to the sums of all blocks. One head's values become tiles while those of the one before are multiplied.
    fn take_values(
        &self,
        level: Level,
        piece: &Piece<'_>,
        work: &Work<'_>,
        unit: &mut Unit,
        s: &mut Scratch,
    ) {
        let shape = Shape::of(self.facts);
        let last = &work.chunks[work.chunks.len() - 1];
        for (i, head) in work.heads.clone().enumerate() {
            let mut coming = if head + 1 < work.heads.end {
                let tiles = std::mem::replace(&mut s.values[1], Lines::new());
                self.coming(level, piece.heads.start + head + 1, last.chunk, (tiles, Soon::NOTHING), s)
            } else {
                let first = piece.heads.start + work.heads.start;
                let next = last.next.filter(|_| work.blocks.len() == 1);
                let keys = next.map_or(Soon::NOTHING, |next| self.soon(next, first).first_half());
                Coming::nothing(keys.in_parts(s.values[0].len()))
            };
            if level < Level::Amx && s.blocks[work.blocks.start].per_head > products::FEW {
                products::open_values(level, &s.values[0], &mut s.open_values);
            }
            for block in work.blocks.clone() {
                unit.of_shape(s.blocks[block].per_head, LANES);
                s.take_values(level, shape, (block, i), work.chunks, &mut coming);
            }
            // SAFETY: the rows are the pool's or staged.
            unsafe { coming.all(level) };
            if head + 1 < work.heads.end {
                s.values[1] = std::mem::replace(&mut s.values[0], coming.tiles);
            }
        }
    }
}

/// A block whose scores become shares.
#[derive(Clone, Copy)]
pub(super) struct Scored {
    pub(super) block: usize,
    /// Which of the chunks that are taken together.
    chunk: usize,
    /// Positions up to the last that is seen.
    seen: usize,
    /// Which of two scores are its own.
    pub(super) place: usize,
}

impl Scored {
    /// Its number among the shares of so many blocks.
    fn number(self, blocks: usize) -> usize {
        self.chunk * blocks + self.block
    }
}

/// What is done beside the products of a block's keys.
#[cfg(target_arch = "x86_64")]
struct Meanwhile<'a> {
    /// The block before.
    making: Making<'a>,
    soon: &'a mut Soon,
    /// The first head's values.
    coming: Option<&'a mut Coming>,
}

#[cfg(target_arch = "x86_64")]
impl products::Beside for Meanwhile<'_> {
    #[inline(always)]
    unsafe fn some(&mut self) {
        // SAFETY: the caller's instructions.
        unsafe { self.making.some() };
    }

    #[inline(always)]
    unsafe fn before(&mut self, last: bool, products: usize) {
        self.soon.ask();
        if last && let Some(coming) = self.coming.as_mut().filter(|coming| coming.is_coming()) {
            // SAFETY: the caller's instructions; the rows that come are the pool's or staged.
            (0..products).for_each(|_| unsafe { coming.some(Level::Amx) });
        }
    }
}

impl Scratch {
    /// Products of a chunk's keys with the queries of a block, while the scores of the one `before` become shares. Values are `coming` but where
    /// heads have few lanes.
    fn score(
        &mut self,
        level: Level,
        shape: Shape,
        now: Scored,
        before: Option<Scored>,
        coming: Option<&mut Coming>,
    ) {
        let queries = self.queries[self.blocks[now.block].queries..].as_ptr().cast();
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level was found on this machine; the block has a tile of queries for each step, keys are 64 rows each; tiles are configured by
            // the caller.
            Level::Amx => unsafe { self.score_beside(shape, queries, now, coming) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            _ if coming.is_none() => unsafe { self.score_few(level, shape, now) },
            _ => {
                let keys = (&self.keys[0], &self.open_keys[..]);
                // SAFETY: as above.
                unsafe { products::scores(level, keys, queries, shape.steps(), &mut self.scores[now.place]) };
            }
        }
        if let Some(before) = before {
            self.end_shares(level, before, false);
        }
    }

    /// The same on the tile unit.
    ///
    /// # Safety
    /// The machine must have the instructions, the block's queries and the keys must be there and tiles configured.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn score_beside(
        &mut self,
        shape: Shape,
        queries: *const u8,
        now: Scored,
        coming: Option<&mut Coming>,
    ) {
        let queries = (queries, self.blocks[now.block].per_head);
        let [first, second] = &mut self.scores[..] else { return };
        let (out, scores) = if now.place == 0 { (first, second) } else { (second, first) };
        // Nothing is left of it where there was no block before.
        let sharing = &mut self.sharing[1 - now.place];
        let making = Making::go_on(sharing, scores, &mut self.packed[0]);
        let keys = (&self.keys[..], now.seen, &self.later[1].at);
        let mut meanwhile = Meanwhile { making, soon: &mut self.soon, coming };
        // SAFETY: as the caller vouches.
        unsafe { products::tiles::scores(keys, queries, shape.steps(), out, &mut meanwhile) };
        meanwhile.making.leave();
    }

    /// What has been scored for a block is to become shares of the chunk's positions.
    fn begin_shares(
        &mut self,
        level: Level,
        Scored { block, place, .. }: Scored,
        seen: &Seen<'_>,
        rule: Rule,
    ) {
        let block = &self.blocks[block];
        let sharing = &mut self.sharing[place];
        sharing.run.most = block.gather(&self.most);
        sharing.run.sum = block.gather(&self.sum);
        let sight = (!block.sees_all(seen.chunk, seen.first)).then_some(&block.sight);
        sharing.begin(level, &mut self.scores[place], &self.rows, sight, rule);
    }

    /// The rest of a block's shares.
    fn end_shares(&mut self, level: Level, scored: Scored, few: bool) {
        let number = scored.number(self.blocks.len());
        let sharing = &mut self.sharing[scored.place];
        let packed = &mut self.packed[0];
        sharing.rest(level, &self.scores[scored.place], packed);
        if few {
            #[cfg(target_arch = "x86_64")]
            few::open(level, packed, &mut self.open_shares[0]);
        } else {
            for (part, tile) in packed.as_chunks().0.iter().zip(&mut self.shares[number]) {
                transpose(level, part, tile);
            }
        }
        sharing.end(level);
        let block = &self.blocks[scored.block];
        block.scatter(&sharing.run.most, &mut self.most);
        block.scatter(&sharing.run.sum, &mut self.sum);
        self.fades[number] = sharing.run.fade;
    }

    /// Adds the values of a block's `i`th head, as its lanes share them.
    fn take_values(
        &mut self,
        level: Level,
        shape: Shape,
        (b, i): (usize, usize),
        chunks: &[Seen<'_>],
        coming: &mut Coming,
    ) {
        let block = &self.blocks[b];
        let (from, lanes) = (i * block.per_head, block.per_head);
        let first = block.lanes[from] as usize * shape.value_width;
        let sums = &mut self.sums[first..][..lanes * shape.value_width];
        let fade = |chunk: usize| &self.fades[chunk * self.blocks.len() + b][from..from + lanes];
        let shared = |chunk: usize| {
            let shares = self.shares[chunk * self.blocks.len() + b..].as_ptr().cast::<u8>();
            (shares.wrapping_add(from * 64), self.values[chunk].as_ptr().cast())
        };
        let comes = coming.is_coming() || coming.soon.is_left();
        let mut at = 0;
        while at < chunks.len() {
            if !block.meets(&chunks[at]) {
                at += 1;
                continue;
            }
            // What follows is added in one go as long as no maximum moves.
            let steady = |c: &usize| block.meets(&chunks[*c]) && fade(*c).iter().all(|fade| *fade == 1.0);
            let end = at + 1 + (at + 1..chunks.len()).take_while(steady).count();
            softmax::fade(level, sums, shape.value_width, fade(at));
            let all: [products::Shared; TAKEN] = std::array::from_fn(|n| shared((at + n).min(end - 1)));
            // SAFETY: two tiles of shares and one behind them, two tiles of values for each 16 of the width; tiles are configured by the caller for so
            // many lanes.
            unsafe {
                let chunks = (&all[..end - at], &self.open_values[..]);
                if comes {
                    products::values(level, chunks, sums, shape.value_width, || coming.some(level));
                } else {
                    products::values(level, chunks, sums, shape.value_width, || ());
                }
            }
            at = end;
        }
    }
}
