use super::coming::Coming;
use super::lines::Lines;
use super::scratch::{Scratch, Tile};
use super::share::Stretch;
use super::softmax::{self, LANES, Rule, Sight};
use super::soon::{Soon, ask};
use super::view::{CHUNK, Chunk};
use super::{Attend, Piece, Shape, products};
use crate::Level;
use crate::dense::{STEP, narrow};
use std::ops::Range;

/// Up to 16 lanes that are worked on together: some of one head, or all of several heads.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Heads, counted within the piece.
    heads: Range<usize>,
    /// Lanes of each head.
    per_head: usize,
    lanes: [u32; LANES],
    /// Whether there are 16, and each is the next of the one before.
    in_line: bool,
    /// First tile of its queries, [`Shape::steps`] for each head.
    queries: usize,
    sight: Sight,
    /// Bounds of what its lanes see: entries that the least and the most seeing one sees, first positions of the widest and the narrowest.
    visible: (i32, i32),
    from: (i32, i32),
}

impl Block {
    fn used(&self) -> usize {
        self.heads.len() * self.per_head
    }

    /// Its lanes' numbers.
    fn gather(&self, from: &[f32]) -> [f32; LANES] {
        let at = self.lanes[0] as usize;
        match from.get(at..at + LANES).and_then(<[f32]>::first_chunk) {
            Some(all) if self.in_line => *all,
            _ => self.lanes.map(|lane| from[lane as usize]),
        }
    }

    /// Puts numbers where [`gather`](Self::gather) finds them.
    fn scatter(&self, numbers: &[f32; LANES], to: &mut [f32]) {
        let at = self.lanes[0] as usize;
        match to.get_mut(at..at + LANES).and_then(<[f32]>::first_chunk_mut) {
            Some(all) if self.in_line => *all = *numbers,
            _ => {
                let used = self.lanes.iter().zip(numbers).take(self.used());
                used.for_each(|(lane, number)| to[*lane as usize] = *number);
            }
        }
    }

    fn sees(&self, chunk: &Chunk, last: i32) -> bool {
        self.visible.1 > chunk.first as i32 && self.from.0 <= last
    }

    /// Whether every lane sees a whole chunk, which begins at position `first`.
    fn sees_all(&self, chunk: &Chunk, first: i32) -> bool {
        chunk.len as usize == CHUNK
            && self.visible.0 >= (chunk.first + chunk.len) as i32
            && self.from.1 <= first
    }
}

impl Attend<'_> {
    /// Takes all lanes of a stretch's views through its chunks.
    pub(super) fn stretch(&self, level: Level, piece: &Piece<'_>, stretch: &Stretch, s: &mut Scratch) {
        let shape = Shape::of(self.facts);
        let first_view = stretch.views.0 - piece.group.views.0;
        let last_view = stretch.views.1 - piece.group.views.0;
        let of = |at: usize| at.clamp(piece.tokens.start, piece.tokens.end) - piece.tokens.start;
        let tokens = of(s.starts[first_view])..of(s.starts[last_view]);
        self.make_blocks(level, piece, tokens, s);
        let view = &self.views.views[self.views.order[stretch.views.0] as usize];
        let chunks = &self.views.chunks(view)[stretch.chunks.0..stretch.chunks.1];
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that tiles are permitted.
        let mut tiles = (level >= Level::Amx).then(|| unsafe { crate::amx::Tiles::configure() });
        for (number, chunk) in chunks.iter().enumerate() {
            let (Some(first), Some(end)) = (self.views.runs(chunk).first(), self.views.runs(chunk).last())
            else {
                continue;
            };
            let (first, last) = (first.position as i32, (end.position + end.len - 1) as i32);
            if !s.blocks.iter().any(|block| block.sees(chunk, last)) {
                continue;
            }
            self.number_rows(chunk, s);
            let mut at = 0;
            while at < s.blocks.len() {
                let heads = s.blocks[at].heads.clone();
                let next = at + s.blocks[at..].iter().take_while(|b| b.heads == heads).count();
                self.stage_keys(level, shape, piece, (heads.clone(), next > at + 1), chunk, s);
                #[cfg(target_arch = "x86_64")]
                if let Some(tiles) = &mut tiles {
                    tiles.of_rows(LANES);
                }
                // All blocks' shares, then all blocks' values: keys and values would not fit the first-level cache together. Products of
                // a block run while the shares of the one before are made.
                let seen = |s: &Scratch, b: &usize| s.blocks[*b].sees(chunk, last);
                let group = piece.heads.start + heads.start..piece.heads.start + heads.end;
                // One head's values become tiles while something else is multiplied: the last head's keys, then the values of the head before.
                let [ready, mut spare] = std::mem::replace(&mut s.values, [Lines::new(), Lines::new()]);
                let mut first_values = self.coming(level, group.start, chunk, (ready, Soon::NOTHING), s);
                let mut before = None;
                for b in at..next {
                    if seen(s, &b) {
                        let now =
                            Scored { block: b, place: before.map_or(0, |before: Scored| 1 - before.place) };
                        s.score(level, shape, now, before, &mut first_values);
                        s.begin_shares(level, now, chunk, first, self.rule());
                        before = Some(now);
                    }
                }
                if let Some(before) = before {
                    s.end_shares(level, before);
                }
                // SAFETY: the rows are the pool's or staged.
                unsafe { first_values.all(level) };
                let mut ready = first_values.tiles;
                let keys = chunks
                    .get(number + 1)
                    .map_or(Soon::NOTHING, |next| self.soon(next, group.start).halves().0);
                for (i, head) in group.clone().enumerate() {
                    let mut coming = if head + 1 < group.end {
                        self.coming(level, head + 1, chunk, (spare, Soon::NOTHING), s)
                    } else {
                        Coming::nothing(spare, keys.in_parts(ready.len()))
                    };
                    if level < Level::Amx && s.blocks[at].per_head > products::FEW {
                        products::open_values(level, &ready, &mut s.open_values);
                    }
                    for b in at..next {
                        if seen(s, &b) {
                            #[cfg(target_arch = "x86_64")]
                            if let Some(tiles) = &mut tiles {
                                tiles.of_rows(s.blocks[b].per_head);
                            }
                            s.take_values(level, shape, (b, i), &ready, &mut coming);
                        }
                    }
                    // SAFETY: as above.
                    unsafe { coming.all(level) };
                    (ready, spare) = (coming.tiles, ready);
                }
                s.values = [ready, spare];
                at = next;
            }
        }
    }

    /// Blocks of the lanes of these tokens, in order of head.
    fn make_blocks(&self, level: Level, piece: &Piece<'_>, tokens: Range<usize>, s: &mut Scratch) {
        let (group, steps) = (self.per_head(), Shape::of(self.facts).steps());
        let per_head = tokens.len() * group;
        // Zeros in the other heads' columns cost the tile unit nothing; vectors would work on them for nothing.
        let pack = if level >= Level::Amx { (LANES / per_head.max(1)).max(1) } else { 1 };
        s.blocks.clear();
        s.queries.clear();
        let mut head = 0;
        while head < piece.heads.len() {
            let heads = head..piece.heads.len().min(head + pack);
            let mut from = 0;
            while from < per_head {
                let n = (per_head - from).min(LANES);
                let queries = s.queries.len();
                s.queries.grow(queries + heads.len() * steps);
                let used = heads.len() * n;
                // Lanes past the end repeat the last one, so that they never stand in the way of the fast case.
                let place = |lane: usize| {
                    let lane = lane.min(used - 1);
                    (
                        heads.start + lane / n,
                        tokens.start + (from + lane % n) / group,
                        (from + lane % n) % group,
                    )
                };
                let lane = |lane: usize| {
                    let (head, token, g) = place(lane);
                    ((head * s.tokens.len() + token) * group + g) as u32
                };
                let sees = |lane: usize| s.tokens[place(lane).1];
                let sight = Sight {
                    visible: std::array::from_fn(|lane| sees(lane).1),
                    from: std::array::from_fn(|lane| self.window_from(sees(lane).0)),
                };
                let bounds = |all: &[i32; LANES]| {
                    all.iter().fold((i32::MAX, i32::MIN), |(a, b), &v| (a.min(v), b.max(v)))
                };
                let lanes = std::array::from_fn(lane);
                let block = Block {
                    heads: heads.clone(),
                    per_head: n,
                    lanes,
                    in_line: lanes.is_sorted_by(|a, b| a + 1 == *b),
                    queries,
                    sight,
                    visible: bounds(&sight.visible),
                    from: bounds(&sight.from),
                };
                for (i, columns) in (0..used).step_by(n).map(|first| first..first + n).enumerate() {
                    let query = |column: usize| {
                        let (head, token, g) = place(column);
                        let q_head = (piece.heads.start + head) * group + g;
                        let at = s.tokens[token].0 * self.q_stride + q_head * self.facts.key_dim;
                        &self.q[at..at + self.facts.key_dim]
                    };
                    put_queries(
                        level,
                        (&mut s.queries[queries + i * steps..][..steps], &mut s.lying),
                        columns,
                        query,
                    );
                }
                s.blocks.push(block);
                from += n;
            }
            head = heads.end;
        }
        s.shares.grow(2 * s.blocks.len() + 1);
        s.fades.resize(s.blocks.len(), [0.0; LANES]);
    }
}

/// How many lanes ahead queries are asked for: they lie far apart, and nothing foresees them.
const AHEAD: usize = 4;

/// Puts one head's queries into their columns, pairs of numbers to a word; `lying` is room for them as rows.
fn put_queries<'q>(
    level: Level,
    (tiles, lying): (&mut [Tile], &mut [Tile]),
    columns: Range<usize>,
    query: impl Fn(usize) -> &'q [f32],
) {
    for column in 0..LANES {
        if !columns.contains(&column) {
            lying.iter_mut().for_each(|tile| tile[column] = [0; LANES]);
            continue;
        }
        ask(query((column + AHEAD).min(columns.end - 1)));
        for (part, tile) in query(column).chunks(STEP).zip(&mut *lying) {
            // SAFETY: a row's bytes; pairs of numbers are words as they lie.
            let bits = unsafe { &mut *tile[column].as_mut_ptr().cast::<[u16; STEP]>() };
            narrow(level, part, &mut bits[..part.len()]);
            bits[part.len()..].fill(0);
        }
    }
    for (rows, tile) in lying.iter().zip(tiles) {
        products::transpose(level, rows, tile);
    }
}

/// Pairs of positions that are shared out beside one product of another block.
const TOGETHER: usize = 2;

/// A block whose scores become shares.
#[derive(Clone, Copy)]
struct Scored {
    block: usize,
    /// Which of two scores are its own.
    place: usize,
}

impl Scratch {
    /// Products of a chunk's keys with the queries of a block, while the scores of the one `before` become shares.
    fn score(
        &mut self,
        level: Level,
        shape: Shape,
        now: Scored,
        before: Option<Scored>,
        coming: &mut Coming,
    ) {
        let queries = self.queries[self.blocks[now.block].queries..].as_ptr().cast();
        let (soon, last) = (&mut self.soon, self.keys.len() - 1);
        let [first, second] = &mut self.scores[..] else { return };
        let (out, scores) = if now.place == 0 { (first, second) } else { (second, first) };
        let (packed, sharing) = (&mut self.packed, &mut self.sharing[1 - now.place]);
        let mut shares = before.map(|before| &mut self.shares[2 * before.block..]);
        let during = |head: usize| {
            soon[head].ask();
            if head == last {
                // SAFETY: the rows that come are the pool's or staged.
                unsafe { coming.some(level) };
            }
            if let Some(shares) = &mut shares {
                sharing.some(level, TOGETHER, scores, packed, shares);
            }
        };
        // SAFETY: the block has tiles of queries for each head, keys are 64 rows each; tiles are configured by the caller.
        unsafe {
            products::scores(level, (&self.keys, &self.open_keys), queries, shape.steps(), out, during)
        };
        if let Some(before) = before {
            self.end_shares(level, before);
        }
    }

    /// What has been scored for a block is to become shares of the chunk's positions.
    fn begin_shares(
        &mut self,
        level: Level,
        Scored { block, place }: Scored,
        chunk: &Chunk,
        first: i32,
        rule: Rule,
    ) {
        let block = &self.blocks[block];
        let sharing = &mut self.sharing[place];
        sharing.run.most = block.gather(&self.most);
        sharing.run.sum = block.gather(&self.sum);
        let sight = (!block.sees_all(chunk, first)).then_some(&block.sight);
        sharing.begin(level, &mut self.scores[place], &self.rows, sight, rule);
    }

    /// The rest of a block's shares.
    fn end_shares(&mut self, level: Level, Scored { block: b, place }: Scored) {
        let sharing = &mut self.sharing[place];
        let tiles = &mut self.shares[2 * b..];
        sharing.some(level, CHUNK / 2, &self.scores[place], &mut self.packed, tiles);
        sharing.end(level);
        let block = &self.blocks[b];
        block.scatter(&sharing.run.most, &mut self.most);
        block.scatter(&sharing.run.sum, &mut self.sum);
        self.fades[b] = sharing.run.fade;
    }

    /// Adds the `values` of the block's `i`th head, as its lanes share them.
    fn take_values(
        &mut self,
        level: Level,
        shape: Shape,
        (b, i): (usize, usize),
        values: &[Tile],
        coming: &mut Coming,
    ) {
        let block = &self.blocks[b];
        let (from, n) = (i * block.per_head, block.per_head);
        let shares = self.shares[2 * b..].as_ptr().cast::<u8>().wrapping_add(from * 64);
        let first = block.lanes[from] as usize * shape.value_width;
        let sums = &mut self.sums[first..][..n * shape.value_width];
        softmax::fade(level, sums, shape.value_width, &self.fades[b][from..from + n]);
        // The next block's sums lie behind these.
        let mut next = Soon::NOTHING;
        next.add(sums.as_ptr_range().end.cast(), size_of_val(sums));
        let mut next = next.in_parts(values.len());
        let during = || {
            next.ask();
            // SAFETY: the rows that come are the pool's or staged.
            unsafe { coming.some(level) };
        };
        // SAFETY: two tiles of shares and one behind them, two tiles of values for each 16 of the width; tiles are configured by the caller for so
        // many lanes.
        unsafe {
            let values = (values.as_ptr().cast(), &self.open_values[..]);
            products::values(level, shares, values, sums, shape.value_width, during);
        }
    }
}
