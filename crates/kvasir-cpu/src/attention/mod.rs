//! Multi-head attention (MHA, GQA, MQA, MLA) over a paged KV cache: FlashAttention-style online
//! softmax on the CPU.
//!
//! 1. `view`: the plan becomes, per span of query tokens, a list of KV chunks of 64 positions.
//! 2. `shared_prefix`: views with a common prefix form groups, which read its chunks once (cascade
//!    attention).
//! 3. `run`: groups are cut into work items by KV heads and tokens, for the thread pool.
//! 4. `block`: the query rows of an item (one row is one query head of one token) are packed 16 at
//!    a time.
//! 5. `stretch`: per chunk `S = Q K^T`, then `O = O * exp(m_old - m_new) + P V` with
//!    `P = exp(S - m_new)`.
//! 6. The result is `O / l`, where the denominator `l` includes the attention sink.
//!
//! Kernels: `products` and `values` are the GEMMs (AMX tiles, or their order of summation in SIMD).
//! `decode` is the decode path (GEMV) for few query rows per KV head. `bf16_dot` is the AVX-512 bf16
//! dot-product order. `exact` is f32.
//!
//! Batch invariance: a row's KV entries are reduced in rising order of position, in chunks aligned
//! to multiples of 64. So every cache layout, mask and batch composition gives the same bits.
//! `tests.rs` and `tests/plans.rs` check this.

#[cfg(target_arch = "x86_64")]
pub(crate) mod bf16_dot;
pub(crate) mod block;
pub(crate) mod coming;
#[cfg(target_arch = "x86_64")]
pub(crate) mod decode;
pub(crate) mod exact;
pub(crate) mod next_layer;
pub(crate) mod products;
#[cfg(test)]
pub(crate) mod reference;
pub(crate) mod scored;
pub(crate) mod scratch;
pub(crate) mod shared_prefix;
pub(crate) mod softmax;
pub(crate) mod stage;
pub(crate) mod stretch;
#[cfg(test)]
mod tests;
pub(crate) mod unit;
pub(crate) mod values;
pub(crate) mod views;
#[cfg(target_arch = "x86_64")]
pub(crate) mod wide;

use crate::attention::views::Views;

use crate::attention::scratch::{SCRATCH, Scratch};
use crate::attention::shared_prefix::Group;
use crate::attention::softmax::Rule;
use crate::isa::features::Level;
use crate::isa::tile::{LANES, STEP};
use crate::memory::kv_pool::{LayerPool, Pool};
use crate::prefetch::kv_prefetch;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::Parts;
use kvasir_kv::Position;
use kvasir_program::LayerFacts;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

thread_local! {
    /// Cumulative number of work items behind each group.
    static ENDS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Query blocks of one work item at most: their accumulators stay in L2.
const BLOCKS: usize = 32;

/// One layer's attention in one step.
pub(crate) struct Attend<'a> {
    /// Queries: a row per token, split by query head.
    pub(crate) q: &'a [f32],
    pub(crate) q_stride: usize,
    pub(crate) heads: usize,
    pub(crate) facts: &'a LayerFacts,
    pub(crate) layer: usize,
    pub(crate) pools: &'a [Arc<Pool>],
    pub(crate) views: &'a Views,
    /// Position of every token of the step.
    pub(crate) positions: &'a [Position],
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
    /// Attention sink logits, one per query head.
    pub(crate) sinks: Option<&'a [f32]>,
}

/// A work item of one thread: some KV heads of all tokens of a group, or one KV head of some tokens
/// of a single view.
struct Piece<'v> {
    group: &'v Group,
    /// KV heads.
    heads: Range<usize>,
    /// Tokens, counted over the group's views.
    tokens: Range<usize>,
    /// Budget in pages for the prefetch of the next layer's KV; 0 if it is off.
    pages: usize,
}

/// Whether a level multiplies bf16 pairs in the order of [`bf16_dot`], without widening or
/// transposing. All other levels use the summation order of AMX.
const fn in_pairs(level: Level) -> bool {
    matches!(level, Level::Avx512Bf16)
}

/// Whether a level multiplies in f32, so that bf16 operands are widened first.
fn widens(level: Level) -> bool {
    level < Level::Amx && !in_pairs(level)
}

/// Granularity of work items in a step.
struct Cut {
    /// Tokens per work item of a single view.
    tokens: usize,
    /// KV heads per work item where query rows are few (decode).
    heads: usize,
}

impl Attend<'_> {
    /// Query heads per KV head: the GQA group size.
    fn per_head(&self) -> usize {
        self.heads / self.facts.kv_heads
    }

    fn pool(&self, pool: u32) -> &LayerPool {
        &self.pools[pool as usize].layers[self.layer]
    }

    /// First position that a token sees: its sliding window, or 0.
    fn window_from(&self, token: usize) -> i32 {
        let position = self.positions[token] as i64;
        self.facts.window.map_or(0, |w| (position - i64::from(w) + 1).max(0) as i32)
    }

    fn rule(&self) -> Rule {
        Rule { scale: self.scale, soft_cap: self.soft_cap }
    }

    /// Chooses enough work items for all threads, each as large as the cache allows.
    fn cut(&self, team: &ThreadPool) -> Cut {
        let kv_heads = self.facts.kv_heads;
        let lanes: usize = self.views.views.iter().map(|v| v.tokens * self.heads).sum();
        let blocks = (lanes.div_ceil(LANES) / (2 * team.len())).clamp(1, BLOCKS);
        // Heads with few query rows share blocks, so as many as possible go together.
        let heads = (kv_heads * self.views.groups.len() / team.len()).clamp(1, kv_heads);
        Cut { tokens: (blocks * LANES / self.per_head()).max(1), heads }
    }

    fn tokens_of(&self, group: &Group) -> usize {
        let views = &self.views.order[group.views.0..group.views.1];
        views.iter().map(|&v| self.views.views[v as usize].tokens).sum()
    }

    /// Tokens and KV heads per work item of a group with `tokens` tokens.
    fn size(&self, group: &Group, tokens: usize, cut: &Cut) -> (usize, usize) {
        let alone = group.views.1 - group.views.0 == 1;
        match tokens * self.per_head() >= LANES {
            true if alone => (cut.tokens, 1),
            true => (tokens, 1),
            false => (tokens, cut.heads),
        }
    }

    /// Computes all tokens' attention results on the thread pool.
    ///
    /// # Safety
    /// The slots of the views must exist. No other thread may write them, or access the results,
    /// during the call.
    pub(crate) unsafe fn run(&self, team: &ThreadPool, level: Level, out: &Parts<'_>) {
        let cut = self.cut(team);
        let kv_heads = self.facts.kv_heads;
        let pieces = |group: &Group| {
            let all = self.tokens_of(group);
            let (tokens, heads) = self.size(group, all, &cut);
            (all, tokens, heads, all.div_ceil(tokens.max(1)) * kv_heads.div_ceil(heads))
        };
        ENDS.with_borrow_mut(|ends| {
            let groups = &self.views.groups;
            let mut end = 0;
            ends.clear();
            ends.extend(groups.iter().map(|group| {
                end += pieces(group).3;
                end
            }));
            let ends = &*ends;
            let pages = kv_prefetch::most(level, self.positions.len(), team.len());
            let each = |_, item| {
                let at = ends.partition_point(|end| *end <= item);
                let (all, tokens, heads, count) = pieces(&groups[at]);
                let item = item + count - ends[at];
                let by_heads = kv_heads.div_ceil(heads);
                let (t, h) = (item / by_heads * tokens, item % by_heads * heads);
                let heads = h..kv_heads.min(h + heads);
                let tokens = t..all.min(t + tokens);
                let piece = Piece { group: &groups[at], heads, tokens, pages };
                SCRATCH.with_borrow_mut(|scratch| self.piece(level, &piece, scratch, out));
            };
            if pages > 0 {
                // In static order: a thread should meet the rows that it prefetched a layer
                // earlier.
                return team.each_in_order(end, &each);
            }
            team.each(end, &each);
        });
    }

    /// Computes one work item: runs its stretches, then writes the normalized results.
    fn piece(&self, level: Level, piece: &Piece<'_>, s: &mut Scratch, out: &Parts<'_>) {
        let shape = Shape::of(self.facts);
        s.prepare(shape, piece.heads.len(), piece.tokens.len() * self.per_head());
        s.tokens.clear();
        s.starts.clear();
        let mut at = 0;
        for &v in &self.views.order[piece.group.views.0..piece.group.views.1] {
            let view = &self.views.views[v as usize];
            s.starts.push(at);
            let queries = piece.tokens.start.max(at)..piece.tokens.end.min(at + view.tokens);
            s.tokens.extend(queries.map(|t| (view.token + t - at, view.visible(t - at) as i32)));
            at += view.tokens;
        }
        s.starts.push(at);
        let (first, last) = piece.group.stretches;
        for stretch in &self.views.stretches[first..last] {
            self.stretch(level, piece, stretch, s);
        }
        for (h, head) in piece.heads.clone().enumerate() {
            for (t, &(token, _)) in s.tokens.iter().enumerate() {
                for g in 0..self.per_head() {
                    let q_head = head * self.per_head() + g;
                    // SAFETY: a query row belongs to one work item.
                    let to = unsafe { out.part(token, q_head * self.facts.value_dim, self.facts.value_dim) };
                    let lane = (h * s.tokens.len() + t) * self.per_head() + g;
                    s.finish(level, shape, lane, self.sinks.map(|sinks| sinks[q_head]), to);
                }
            }
        }
    }
}

/// Head dimensions padded to whole tiles, and the unpadded `dims`: the padding is kept zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    key_width: usize,
    value_width: usize,
    dims: (usize, usize),
}

impl Shape {
    fn of(facts: &LayerFacts) -> Self {
        Self {
            key_width: facts.key_dim.next_multiple_of(STEP),
            value_width: facts.value_dim.next_multiple_of(2 * LANES),
            dims: (facts.key_dim, facts.value_dim),
        }
    }

    fn steps(self) -> usize {
        self.key_width / STEP
    }
}
