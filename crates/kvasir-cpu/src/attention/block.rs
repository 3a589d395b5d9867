use super::scratch::{Scratch, Tile};
use super::share::Stretch;
use super::softmax::{self, LANES, Rule, Running, Sight};
use super::view::{CHUNK, Chunk};
use super::{Attend, Piece, Shape, products};
use crate::Level;
use crate::dense::round_bf16;
use std::ops::Range;

/// Up to 16 lanes that are worked on together: some of one head, or all of several heads.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// Heads, counted within the piece.
    heads: Range<usize>,
    /// Lanes of each head.
    per_head: usize,
    lanes: [u32; LANES],
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
        let together = self.make_blocks(level, piece, tokens, s);
        let view = &self.views.views[self.views.order[stretch.views.0] as usize];
        let chunks = &self.views.chunks(view)[stretch.chunks.0..stretch.chunks.1];
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that tiles are permitted.
        let mut tiles = (level >= Level::Amx).then(|| unsafe { crate::amx::Tiles::configure() });
        for chunk in chunks {
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
                self.stage_keys(level, shape, piece, heads.clone(), chunk, s);
                let mut staged = None;
                for b in at..next {
                    if !s.blocks[b].sees(chunk, last) {
                        continue;
                    }
                    let whole = s.blocks[b].sees_all(chunk, first);
                    #[cfg(target_arch = "x86_64")]
                    if together && let Some(tiles) = &mut tiles {
                        tiles.full();
                    }
                    let fade = s.shares(level, shape, b, whole, self.rule());
                    #[cfg(target_arch = "x86_64")]
                    if together && let Some(tiles) = &mut tiles {
                        tiles.of_rows(s.blocks[b].per_head);
                    }
                    for (i, head) in heads.clone().enumerate() {
                        if staged != Some(head) {
                            self.stage_values(level, shape, piece.heads.start + head, chunk, s);
                            staged = Some(head);
                        }
                        s.take_values(level, shape, b, i, &fade);
                    }
                }
                at = next;
            }
        }
    }

    /// Blocks of the lanes of these tokens, in order of head; says whether heads share blocks.
    fn make_blocks(&self, level: Level, piece: &Piece<'_>, tokens: Range<usize>, s: &mut Scratch) -> bool {
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
                s.queries.resize(queries + heads.len() * steps, [[0; LANES]; LANES]);
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
                let block = Block {
                    heads: heads.clone(),
                    per_head: n,
                    lanes: std::array::from_fn(lane),
                    queries,
                    sight,
                    visible: bounds(&sight.visible),
                    from: bounds(&sight.from),
                };
                for column in 0..used {
                    let (head, token, g) = place(column);
                    let q_head = (piece.heads.start + head) * group + g;
                    let at = s.tokens[token].0 * self.q_stride + q_head * self.facts.key_dim;
                    let tiles = &mut s.queries[queries + (head - heads.start) * steps..][..steps];
                    put_query(tiles, column, &self.q[at..at + self.facts.key_dim]);
                }
                s.blocks.push(block);
                from += n;
            }
            head = heads.end;
        }
        pack > 1
    }
}

/// Puts a query into its column, pairs of numbers to a word.
fn put_query(tiles: &mut [Tile], column: usize, q: &[f32]) {
    for (i, pair) in q.chunks(2).enumerate() {
        let low = u32::from(round_bf16(pair[0]));
        let high = pair.get(1).map_or(0, |&v| u32::from(round_bf16(v)));
        tiles[i / LANES][i % LANES][column] = low | high << 16;
    }
}

impl Scratch {
    /// Shares of a chunk's positions for the lanes of block `b`; gives what the lanes' sums must be multiplied with.
    fn shares(&mut self, level: Level, shape: Shape, b: usize, whole: bool, rule: Rule) -> [f32; LANES] {
        let block = &self.blocks[b];
        let queries = self.queries[block.queries..].as_ptr().cast();
        // SAFETY: the block has tiles of queries for each head, keys are 64 rows each; tiles are configured by the caller.
        unsafe { products::scores(level, &self.keys, queries, shape.steps(), &mut self.scores) };
        let at = |lane: usize| block.lanes[lane] as usize;
        let mut run = Running {
            most: std::array::from_fn(|lane| self.most[at(lane)]),
            sum: std::array::from_fn(|lane| self.sum[at(lane)]),
            fade: [0.0; LANES],
        };
        let sight = (!whole).then_some(&block.sight);
        softmax::shares(level, &mut self.scores, &self.rows, sight, rule, &mut run, &mut self.packed);
        for lane in 0..block.used() {
            (self.most[at(lane)], self.sum[at(lane)]) = (run.most[lane], run.sum[lane]);
        }
        let [a, b, _] = &mut *self.shares;
        products::pack_shares(level, &self.packed, [a, b]);
        run.fade
    }

    /// Adds the staged values of the block's `i`th head, as its lanes share them.
    fn take_values(&mut self, level: Level, shape: Shape, b: usize, i: usize, fade: &[f32; LANES]) {
        let block = &self.blocks[b];
        let (from, n) = (i * block.per_head, block.per_head);
        let shares = self.shares.as_ptr().cast::<u8>().wrapping_add(from * 64);
        // SAFETY: two tiles of shares and one behind them, two tiles of values for each of `products`.
        unsafe { products::values(level, shares, n, self.values.as_ptr().cast(), &mut self.products) };
        let first = block.lanes[from] as usize * shape.value_width;
        let sums = &mut self.sums[first..][..n * shape.value_width];
        softmax::fold(level, sums, shape.value_width, &self.products, &fade[from..from + n]);
    }
}
