//! Attention over what a plan lets each token see.
//!
//! A lane is one query head of one token. Its visible rows are reduced in chunks of 64 positions, in order of position, whatever their slots
//! and whoever else is in the batch: so every layout, mask and batch gives the same bits.

mod exact;
mod products;
mod softmax;
#[cfg(test)]
mod tests;
mod view;

pub(crate) use exact::attend_exact;
pub(crate) use view::Views;

use crate::dense::round_bf16;
use crate::pool::{KvType, LayerPool, Pool};
use crate::{Level, Team};
use kvasir_kv::Position;
use kvasir_program::LayerFacts;
use products::Keys;
use softmax::{LANES, Rule, Running, Scores, Sight};
use std::cell::RefCell;
use view::{CHUNK, Chunk, Entry, View};

/// Blocks of lanes that one piece of work takes at most: their sums stay in the second-level cache.
const BLOCKS: usize = 32;

/// One layer's attention in one step.
pub(crate) struct Attend<'a> {
    /// A row per token, a group per query head.
    pub(crate) q: &'a [f32],
    pub(crate) q_stride: usize,
    pub(crate) heads: usize,
    pub(crate) facts: &'a LayerFacts,
    pub(crate) layer: usize,
    pub(crate) pools: &'a [&'a Pool],
    pub(crate) views: &'a Views,
    /// Position of every token.
    pub(crate) positions: &'a [Position],
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    /// One per query head.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// Where results go: a row of `heads * value_dim` numbers per token.
pub(crate) struct Results(*mut f32, usize, usize);

// SAFETY: every lane's numbers are written by the one thread that has the lane.
unsafe impl Sync for Results {}

impl Results {
    /// Rows `stride` apart in `out`.
    pub(crate) fn new(out: &mut [f32], stride: usize) -> Self {
        Self(out.as_mut_ptr(), stride, out.len())
    }

    #[allow(clippy::mut_from_ref)] // that is what this type is for: disjoint rows of one slice
    fn lane(&self, token: usize, at: usize, len: usize) -> &mut [f32] {
        let start = token * self.1 + at;
        assert!(start + len <= self.2, "a lane's result lies outside");
        // SAFETY: within the slice this was made from; no other thread has the lane.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

impl Attend<'_> {
    fn group(&self) -> usize {
        self.heads / self.facts.kv_heads
    }

    fn pool(&self, entry: &Entry) -> &LayerPool {
        &self.pools[entry.pool as usize].layers[self.layer]
    }

    /// First and one past the last head that lanes of a token, `from` it sees at least.
    fn window_from(&self, token: usize) -> i32 {
        let position = self.positions[token] as i64;
        self.facts.window.map_or(0, |w| (position - i64::from(w) + 1).max(0) as i32)
    }

    /// Computes all tokens' results.
    pub(crate) fn run(&self, team: &Team, level: Level, out: &Results) {
        let group = self.group();
        // Enough pieces for all threads, each as large as the cache allows.
        let lanes: usize = self.views.views.iter().map(|v| v.tokens * group * self.facts.kv_heads).sum();
        let blocks = (lanes.div_ceil(LANES) / (2 * team.len())).clamp(1, BLOCKS);
        let per_item = (blocks * LANES / group).max(1);
        let pieces = |v: &View| v.tokens.div_ceil(per_item) * self.facts.kv_heads;
        let total = self.views.views.iter().map(pieces).sum();
        team.each(total, &|_, item| {
            let mut item = item;
            for view in &self.views.views {
                let n = pieces(view);
                if item >= n {
                    item -= n;
                    continue;
                }
                let first = item / self.facts.kv_heads * per_item;
                let tokens = first..view.tokens.min(first + per_item);
                SCRATCH.with_borrow_mut(|scratch| {
                    self.piece(level, view, item % self.facts.kv_heads, tokens, scratch, out)
                });
                break;
            }
        });
    }

    fn piece(
        &self,
        level: Level,
        view: &View,
        head: usize,
        queries: std::ops::Range<usize>,
        s: &mut Scratch,
        out: &Results,
    ) {
        let group = self.group();
        let shape = Shape::of(self.facts);
        let lanes = queries.len() * group;
        let blocks = lanes.div_ceil(LANES);
        s.prepare(shape, blocks);
        let token_of = |lane: usize| (queries.start + lane / group, head * group + lane % group);
        for lane in 0..lanes {
            let (query, q_head) = token_of(lane);
            let at = (view.token + query) * self.q_stride + q_head * self.facts.key_dim;
            s.put_query(shape, lane, &self.q[at..at + self.facts.key_dim]);
        }
        let sights: Vec<Sight> = (0..blocks).map(|b| self.sight(view, b, lanes, &token_of)).collect();
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level says that tiles are permitted.
        let _tiles = (level >= Level::Amx).then(|| unsafe { crate::amx::Tiles::configure() });
        let entries = self.views.entries(view);
        for chunk in self.views.chunks(view) {
            let part = &entries[chunk.first..chunk.first + chunk.len];
            let last = part[chunk.len - 1].position as i32;
            let sees = |sight: &Sight| {
                sight.visible.iter().zip(&sight.from).any(|(&v, &f)| v > chunk.first as i32 && f <= last)
            };
            if !sights.iter().any(sees) {
                continue;
            }
            let keys = self.stage(level, shape, head, chunk, part, s);
            let rule = Rule { scale: self.scale, soft_cap: self.soft_cap };
            for (block, sight) in sights.iter().enumerate().filter(|(_, sight)| sees(sight)) {
                let first = part[0].position as i32;
                let whole = chunk.len == CHUNK
                    && sight.visible.iter().all(|&v| v >= (chunk.first + CHUNK) as i32)
                    && sight.from.iter().all(|&f| f <= first);
                s.block(level, shape, block, keys, (!whole).then_some(sight), rule);
            }
        }
        for lane in 0..lanes {
            let (query, q_head) = token_of(lane);
            let to = out.lane(view.token + query, q_head * self.facts.value_dim, self.facts.value_dim);
            s.finish(shape, lane, self.sinks.map(|sinks| sinks[q_head]), to);
        }
    }

    fn sight(
        &self,
        view: &View,
        block: usize,
        lanes: usize,
        token_of: &dyn Fn(usize) -> (usize, usize),
    ) -> Sight {
        // Lanes past the end repeat the last one, so that they never stand in the way of the fast case.
        let of = |lane: usize| token_of((block * LANES + lane).min(lanes - 1)).0;
        Sight {
            visible: std::array::from_fn(|lane| view.visible(of(lane)) as i32),
            from: std::array::from_fn(|lane| self.window_from(view.token + of(lane))),
        }
    }

    /// Brings a chunk's keys and values into the form that the products take. Keys of a run of bf16 rows are used where they are.
    fn stage(
        &self,
        level: Level,
        shape: Shape,
        head: usize,
        chunk: &Chunk,
        part: &[Entry],
        s: &mut Scratch,
    ) -> Keys {
        let (kd, vd) = (self.facts.key_dim, self.facts.value_dim);
        s.rows = [(i32::MAX, 0); CHUNK];
        let mut key_rows: [*const u16; CHUNK] = [s.nothing.as_ptr(); CHUNK];
        let mut value_rows: [*const u16; CHUNK] = [s.nothing.as_ptr(); CHUNK];
        let in_place = |kind| kind == KvType::Bf16;
        let first = self.pool(&part[0]);
        let direct = chunk.run && in_place(first.keys.kind()) && kd == shape.key_width;
        for (i, entry) in part.iter().enumerate() {
            let r = entry.position as usize % CHUNK;
            s.rows[r] = ((chunk.first + i) as i32, entry.position as i32);
            let pool = self.pool(entry);
            let staged = s.staged_keys[r * shape.key_width..].as_ptr();
            if in_place(pool.keys.kind()) {
                key_rows[r] = pool.keys.row(entry.slot).wrapping_add(head * kd * 2).cast();
            } else {
                // SAFETY: the executor has checked the plan's slots, and writes come before reads.
                unsafe { pool.keys.read(entry.slot, head * kd, &mut s.wide[..kd]) };
                let to = &mut s.staged_keys[r * shape.key_width..][..kd];
                to.iter_mut().zip(&s.wide).for_each(|(t, &v)| *t = round_bf16(v));
                key_rows[r] = staged;
            }
            value_rows[r] = match &pool.values {
                None => key_rows[r],
                Some(values) if in_place(values.kind()) => {
                    values.row(entry.slot).wrapping_add(head * vd * 2).cast()
                }
                Some(values) => {
                    // SAFETY: as above.
                    unsafe { values.read(entry.slot, head * vd, &mut s.wide[..vd]) };
                    let to = &mut s.staged_values[r * shape.value_width..][..vd];
                    to.iter_mut().zip(&s.wide).for_each(|(t, &v)| *t = round_bf16(v));
                    s.staged_values[r * shape.value_width..].as_ptr()
                }
            };
        }
        for pair in 0..CHUNK / 2 {
            // SAFETY: each row has `value_dim` numbers, in the pool or staged; `nothing` is as long as any row.
            let (a, b) = unsafe {
                (
                    std::slice::from_raw_parts(value_rows[pair * 2], vd),
                    std::slice::from_raw_parts(value_rows[pair * 2 + 1], vd),
                )
            };
            products::interleave(level, a, b, pair % 16, pair / 16, &mut s.values);
        }
        if direct {
            return Keys { base: key_rows[0].cast(), stride: first.keys.row_bytes() };
        }
        for (r, &row) in key_rows.iter().enumerate() {
            let to = &mut s.staged_keys[r * shape.key_width..][..kd];
            if row != to.as_ptr() {
                // SAFETY: a row of `key_dim` numbers, in the pool or `nothing`; never within `staged_keys`.
                to.copy_from_slice(unsafe { std::slice::from_raw_parts(row, kd) });
            }
        }
        Keys { base: s.staged_keys.as_ptr().cast(), stride: shape.key_width * 2 }
    }
}

/// Widths in whole tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    key_width: usize,
    value_width: usize,
}

impl Shape {
    fn of(facts: &LayerFacts) -> Self {
        Self {
            key_width: facts.key_dim.next_multiple_of(32),
            value_width: facts.value_dim.next_multiple_of(LANES),
        }
    }

    fn steps(self) -> usize {
        self.key_width / 32
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Memory of one thread; grows to the largest piece of work and stays.
struct Scratch {
    shape: Option<Shape>,
    /// Per block: tiles of queries, a pair of numbers to a word.
    queries: Vec<[[u32; LANES]; LANES]>,
    /// Per lane: sums over the chunks so far.
    sums: Vec<f32>,
    running: Vec<Running>,
    staged_keys: Vec<u16>,
    staged_values: Vec<u16>,
    /// A row of zeros.
    nothing: Vec<u16>,
    wide: Vec<f32>,
    values: Vec<[[u32; LANES]; LANES]>,
    products: Vec<[[f32; LANES]; LANES]>,
    scores: Box<Scores>,
    packed: Box<[[u32; LANES]; CHUNK / 2]>,
    shares: Box<[[[u32; LANES]; LANES]; 2]>,
    /// Number of the entry at each position of the chunk, and the position.
    rows: [(i32, i32); CHUNK],
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            shape: None,
            queries: Vec::new(),
            sums: Vec::new(),
            running: Vec::new(),
            staged_keys: Vec::new(),
            staged_values: Vec::new(),
            nothing: Vec::new(),
            wide: Vec::new(),
            values: Vec::new(),
            products: Vec::new(),
            scores: Box::new([[0.0; LANES]; CHUNK]),
            packed: Box::new([[0; LANES]; CHUNK / 2]),
            shares: Box::new([[[0; LANES]; LANES]; 2]),
            rows: [(0, 0); CHUNK],
        }
    }
}

impl Scratch {
    fn prepare(&mut self, shape: Shape, blocks: usize) {
        if self.shape != Some(shape) {
            self.shape = Some(shape);
            let widest = shape.key_width.max(shape.value_width);
            self.staged_keys.clear();
            self.staged_keys.resize(CHUNK * shape.key_width, 0);
            self.staged_values.clear();
            self.staged_values.resize(CHUNK * shape.value_width, 0);
            self.nothing.clear();
            self.nothing.resize(widest, 0);
            self.wide.resize(widest, 0.0);
            let tiles = shape.value_width / LANES;
            // Places past the end of a value stay zero.
            self.values.clear();
            self.values.resize(tiles * 2, [[0; LANES]; LANES]);
            self.products.resize(tiles, [[0.0; LANES]; LANES]);
        }
        self.queries.clear();
        self.queries.resize(blocks * shape.steps(), [[0; LANES]; LANES]);
        self.sums.clear();
        self.sums.resize(blocks * LANES * shape.value_width, 0.0);
        self.running.clear();
        self.running.resize(blocks, Running::START);
    }

    fn put_query(&mut self, shape: Shape, lane: usize, q: &[f32]) {
        let block = &mut self.queries[lane / LANES * shape.steps()..][..shape.steps()];
        for (i, pair) in q.chunks(2).enumerate() {
            let low = u32::from(round_bf16(pair[0]));
            let high = pair.get(1).map_or(0, |&v| u32::from(round_bf16(v)));
            block[i / 16][i % 16][lane % LANES] = low | high << 16;
        }
    }

    fn block(
        &mut self,
        level: Level,
        shape: Shape,
        block: usize,
        keys: Keys,
        sight: Option<&Sight>,
        rule: Rule,
    ) {
        let queries = self.queries[block * shape.steps()..].as_ptr().cast();
        // SAFETY: the block has its tiles of queries, keys are 64 rows; tiles are configured by the caller.
        unsafe { products::scores(level, keys, queries, shape.steps(), &mut self.scores) };
        let run = &mut self.running[block];
        softmax::shares(level, &mut self.scores, &self.rows, sight, rule, run, &mut self.packed);
        products::pack_shares(level, &self.packed, &mut self.shares);
        let shares = self.shares.as_ptr().cast();
        // SAFETY: two tiles of shares, two tiles of values for each of `products`.
        unsafe { products::values(level, shares, self.values.as_ptr().cast(), &mut self.products) };
        let sums = &mut self.sums[block * LANES * shape.value_width..][..LANES * shape.value_width];
        softmax::fold(level, sums, shape.value_width, &self.products, &run.fade);
    }

    fn finish(&self, shape: Shape, lane: usize, sink: Option<f32>, to: &mut [f32]) {
        let run = &self.running[lane / LANES];
        let (most, sum) = (run.most[lane % LANES], run.sum[lane % LANES]);
        let (fade, total) = match sink {
            None => (1.0, sum),
            Some(sink) => {
                let top = most.max(sink);
                let fade = softmax::exp(most - top);
                (fade, sum.mul_add(fade, softmax::exp(sink - top)))
            }
        };
        let factor = if total > 0.0 { fade / total } else { 0.0 };
        let sums = &self.sums[lane * shape.value_width..];
        to.iter_mut().zip(sums).for_each(|(t, s)| *t = s * factor);
    }
}
