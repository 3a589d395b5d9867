//! Exact attention in f32 with online softmax, on K and V as stored: for models that are not
//! rounded to bf16, and as a reference for those that are.
//!
//! Per KV head and block of 16 query rows, over the KV chunks in rising order of position:
//!
//! 1. S = Q K^T, soft cap, mask.
//! 2. m_new = max(m, S); P = exp(S - m_new); l and O are rescaled by exp(m - m_new).
//! 3. O = O + P V. At the end the result is O / l, with the attention sink added to l.
//!
//! A row's chunk bounds and order of summation depend on positions alone, so its bits do not depend
//! on batch composition.

use crate::attention::Attend;
use crate::attention::views::{CHUNK, Chunk, View};
use crate::gemm::f32::fma::{Lying, add_products};
use crate::isa::dispatch::per_level;
use crate::isa::features::Level;
use crate::isa::tile::LANES;
use crate::memory::aligned::Lines;
use crate::rowwise::gate::exp;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::Parts;
use std::cell::RefCell;
use std::ops::Range;

/// Query blocks per work item; they share each read of K and V.
const BLOCKS: usize = 4;

/// Scores, then attention weights, of a block and a chunk: a row per position, a column per query
/// row.
type Scores = [[f32; LANES]; CHUNK];

/// Online softmax state of a block of 16 query rows.
#[derive(Clone, Copy)]
pub(crate) struct Lanes {
    /// Number of visible entries, and first visible position, of each row.
    visible: [i32; LANES],
    from: [i32; LANES],
    most: [f32; LANES],
    total: [f32; LANES],
}

impl Lanes {
    const NONE: Self =
        Self { visible: [0; LANES], from: [0; LANES], most: [f32::NEG_INFINITY; LANES], total: [0.0; LANES] };
}

/// Scratch of one thread.
struct Room {
    lanes: [Lanes; BLOCKS],
    /// Per block a column vector for each number of the queries; accumulators O likewise.
    queries: Lines<[f32; LANES]>,
    sums: Lines<[f32; LANES]>,
    scores: Lines<Scores>,
    /// A chunk's K rows, later its V rows, dequantized to f32; and the positions of its entries.
    rows: Lines<f32>,
    positions: Vec<i32>,
}

thread_local! {
    static ROOM: RefCell<Room> = const {
        RefCell::new(Room {
            lanes: [Lanes::NONE; BLOCKS],
            queries: Lines::new(),
            sums: Lines::new(),
            scores: Lines::new(),
            rows: Lines::new(),
            positions: Vec::new(),
        })
    };
}

/// A work item: some query rows of one KV head of a view, numbered token by token.
struct Piece<'v> {
    view: &'v View,
    head: usize,
    lanes: Range<usize>,
}

/// Computes all tokens' attention. A row's chunks are aligned by position and reduced in that
/// order, so its bits do not depend on batch composition.
///
/// # Safety
/// As for [`Attend::run`].
pub(crate) unsafe fn attend_exact(a: &Attend<'_>, team: &ThreadPool, level: Level, out: &Parts<'_>) {
    let kv_heads = a.facts.kv_heads;
    let lanes = |view: &View| view.tokens * a.per_head();
    let blocks: usize = a.views.views.iter().map(|view| lanes(view).div_ceil(LANES) * kv_heads).sum();
    // As many blocks per work item as leave enough items for all threads.
    let most = (blocks / (4 * team.len())).clamp(1, BLOCKS) * LANES;
    let pieces = |view: &View| lanes(view).div_ceil(most) * kv_heads;
    team.each(a.views.views.iter().map(pieces).sum(), &|_, mut item| {
        for view in &a.views.views {
            if item < pieces(view) {
                let first = item / kv_heads * most;
                let lanes = first..lanes(view).min(first + most);
                let piece = Piece { view, head: item % kv_heads, lanes };
                return ROOM.with_borrow_mut(|room| a.exact_piece(level, &piece, room, out));
            }
            item -= pieces(view);
        }
    });
}

impl Attend<'_> {
    /// Computes one work item: online softmax over the chunks of its view.
    fn exact_piece(&self, level: Level, piece: &Piece<'_>, room: &mut Room, out: &Parts<'_>) {
        let (kd, vd) = (self.facts.key_dim, self.facts.value_dim);
        let blocks = piece.lanes.len().div_ceil(LANES);
        room.queries.grow(blocks * kd);
        room.sums.grow(blocks * vd);
        room.scores.grow(blocks);
        room.rows.grow(CHUNK * kd.max(vd));
        room.sums[..blocks * vd].fill([0.0; LANES]);
        self.begin(piece, room);
        let lanes = &room.lanes[..blocks];
        let visible = lanes.iter().flat_map(|lanes| lanes.visible).max().unwrap_or(0);
        let seen = (0..piece.lanes.len()).map(|n| lanes[n / LANES].from[n % LANES]);
        let from = seen.min().unwrap_or(0);
        for chunk in self.views.chunks(piece.view) {
            let n = chunk.len.min((visible as u32).saturating_sub(chunk.first)) as usize;
            if n == 0 {
                break;
            }
            let last = self.views.entries(chunk).take(n).last();
            if last.is_some_and(|(.., position)| (position as i32) < from) {
                continue;
            }
            self.stage(level, piece, chunk, n, true, room);
            for block in 0..blocks {
                let scores = &mut room.scores[block][..n];
                scores.fill([0.0; LANES]);
                let rows = Lying { first: room.rows.as_ptr(), row: kd, number: 1 };
                // SAFETY: as many rows were staged.
                unsafe { add_products(level, rows, &room.queries[block * kd..][..kd], scores) };
                let sums = &mut room.sums[block * vd..][..vd];
                let at = (chunk.first as i32, &room.positions[..]);
                share(level, scores, at, (self.scale, self.soft_cap), &mut room.lanes[block], sums);
            }
            self.stage(level, piece, chunk, n, false, room);
            for block in 0..blocks {
                let rows = Lying { first: room.rows.as_ptr(), row: 1, number: vd };
                let sums = &mut room.sums[block * vd..][..vd];
                // SAFETY: as above; here V is read as its transpose.
                unsafe { add_products(level, rows, &room.scores[block][..n], sums) };
            }
        }
        self.finish(piece, room, out);
    }

    /// Token and query head of each row of a work item.
    fn lanes(&self, piece: &Piece<'_>) -> impl Iterator<Item = (usize, usize)> {
        let (group, first) = (self.per_head(), piece.head * self.per_head());
        piece.lanes.clone().map(move |lane| (lane / group, first + lane % group))
    }

    /// Loads the queries and masks, and resets the softmax state.
    fn begin(&self, piece: &Piece<'_>, room: &mut Room) {
        let kd = self.facts.key_dim;
        room.lanes.fill(Lanes::NONE);
        let blocks = piece.lanes.len().div_ceil(LANES);
        room.queries[..blocks * kd].fill([0.0; LANES]);
        for (n, (query, head)) in self.lanes(piece).enumerate() {
            let token = piece.view.token + query;
            let (block, lane) = (n / LANES, n % LANES);
            room.lanes[block].visible[lane] = piece.view.visible(query) as i32;
            room.lanes[block].from[lane] = self.window_from(token);
            let q = &self.q[token * self.q_stride + head * kd..][..kd];
            for (column, &v) in room.queries[block * kd..].iter_mut().zip(q) {
                column[lane] = v;
            }
        }
    }

    /// Dequantizes the first `n` K or V rows of a chunk.
    fn stage(&self, level: Level, piece: &Piece<'_>, chunk: &Chunk, n: usize, keys: bool, room: &mut Room) {
        let width = if keys { self.facts.key_dim } else { self.facts.value_dim };
        room.positions.clear();
        let places = room.rows.chunks_exact_mut(width.max(1));
        for ((pool, slot, position), row) in self.views.entries(chunk).take(n).zip(places) {
            let pool = self.pool(pool);
            let rows = if keys { &pool.keys } else { pool.read_as_values() };
            // SAFETY: the executor has checked the plan's slots, and writes come before reads.
            unsafe { rows.read(level, slot, piece.head, row) };
            room.positions.push(position as i32);
        }
    }

    /// Writes the normalized results O / l, with the attention sink in l.
    fn finish(&self, piece: &Piece<'_>, room: &Room, out: &Parts<'_>) {
        let vd = self.facts.value_dim;
        for (n, (query, head)) in self.lanes(piece).enumerate() {
            let (block, lane) = (n / LANES, n % LANES);
            let (most, total) = (room.lanes[block].most[lane], room.lanes[block].total[lane]);
            // An attention sink adds to the denominator, and no value.
            let sink = self.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head]);
            let largest = most.max(sink);
            let (faded, sink) = ((most - largest).exp(), (sink - largest).exp());
            let total = total * faded + sink;
            // SAFETY: a query row belongs to one work item.
            let to = unsafe { out.part(piece.view.token + query, head * vd, vd) };
            for (to, sums) in to.iter_mut().zip(&room.sums[block * vd..]) {
                *to = if total > 0.0 { sums[lane] * faded / total } else { 0.0 };
            }
        }
    }
}

/// Online softmax step: turns a block's dot products with the entries from `first` on into
/// attention weights, and rescales `total` and `sums` where the running maximum grew.
#[inline(always)]
fn share_body(
    scores: &mut [[f32; LANES]],
    (first, positions): (i32, &[i32]),
    (scale, cap): (f32, Option<f32>),
    lanes: &mut Lanes,
    sums: &mut [[f32; LANES]],
) {
    let all = scores.as_flattened_mut().iter_mut();
    match cap {
        Some(cap) => all.for_each(|s| *s = cap * (*s * scale / cap).tanh()),
        None => all.for_each(|s| *s *= scale),
    }
    let before = lanes.most;
    for ((entry, row), &position) in (first..).zip(&mut *scores).zip(positions) {
        for lane in 0..LANES {
            let seen = entry < lanes.visible[lane] && position >= lanes.from[lane];
            row[lane] = if seen { row[lane] } else { f32::NEG_INFINITY };
            lanes.most[lane] = if row[lane] > lanes.most[lane] { row[lane] } else { lanes.most[lane] };
        }
    }
    let mut fade = [1f32; LANES];
    for lane in 0..LANES {
        let faded = exp(before[lane] - lanes.most[lane]);
        fade[lane] = if before[lane] == lanes.most[lane] { 1.0 } else { faded };
        lanes.total[lane] *= fade[lane];
    }
    for row in scores {
        for lane in 0..LANES {
            let share = exp(row[lane] - lanes.most[lane]);
            row[lane] = if row[lane] == f32::NEG_INFINITY { 0.0 } else { share };
            lanes.total[lane] += row[lane];
        }
    }
    if fade != [1.0; LANES] {
        for row in sums {
            for lane in 0..LANES {
                row[lane] *= fade[lane];
            }
        }
    }
}

per_level! {
    share(scores: &mut [[f32; LANES]], at: (i32, &[i32]), rule: (f32, Option<f32>), lanes: &mut Lanes, sums: &mut [[f32; LANES]]) => share_body
}
