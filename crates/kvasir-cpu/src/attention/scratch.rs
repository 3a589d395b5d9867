//! Thread-local scratch of attention: queries, softmax state (m, l), accumulators O, staged K and
//! V, scores and attention weights.
//!
//! Buffers grow to the largest work item and stay, so a steady decode step does not allocate.

use crate::attention::Shape;
use crate::attention::block::Block;
use crate::attention::coming::scaled;
#[cfg(target_arch = "x86_64")]
use crate::attention::decode::later::Later;
use crate::attention::products::Keys;
use crate::attention::softmax::{Entries, Packed, Rule, Scores, Sharing, exp2};
use crate::attention::stretch::TAKEN;
use crate::attention::views::CHUNK;
use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::features::Level;
use crate::isa::tile::{LANES, Tile};
use crate::memory::aligned::Lines;
use crate::prefetch::ranges::Soon;
use std::cell::RefCell;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Scratch of one thread; grows to the largest work item and stays.
pub(crate) struct Scratch {
    shape: Option<Shape>,
    /// The work item's tokens by their index in the step, and how many entries each sees.
    pub(super) tokens: Vec<(usize, i32)>,
    /// Per view of the item's group its first token, counted over the group; then the total.
    pub(super) starts: Vec<usize>,
    pub(super) blocks: Vec<Block>,
    /// Per block, a query tile for each step of 32 numbers: bf16 pairs to a word. A query row is a
    /// column, or a row in the decode path of levels [in pairs](super::in_pairs).
    pub(super) queries: Lines<Tile>,
    /// Queries widened to f32, in the decode path of levels that widen; and scores of either decode
    /// path, a row per query row.
    pub(super) open_queries: Vec<OperandB>,
    pub(super) lying_scores: Lines<[f32; CHUNK]>,
    /// A block's queries before the transpose: a row per query row.
    pub(super) lying: Lines<Tile>,
    /// Online softmax state per query row: running maximum m, denominator l, and accumulators O in
    /// the column order of [`crate::attention::coming`].
    pub(super) most: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) sums: Lines<f32>,
    /// K of a chunk, per head of a block.
    pub(super) keys: Vec<Keys>,
    /// The first head's K and V rows of the chunk, where they are prefetched.
    #[cfg(target_arch = "x86_64")]
    pub(super) later: [Later; 2],
    /// Prefetch list while a single head's keys are multiplied.
    pub(super) soon: Soon,
    /// K of a head and V of one head, widened to f32, at levels that widen.
    pub(super) open_keys: Vec<[OperandA; 4]>,
    pub(super) open_values: Vec<OperandB>,
    pub(super) staged_keys: Lines<u16>,
    pub(super) staged_values: Lines<u16>,
    /// A row of zeros, for positions without an entry.
    pub(super) nothing: Vec<u16>,
    pub(super) wide: Vec<f32>,
    /// V tiles of one head, and of the next head or the next chunk.
    pub(super) values: [Lines<Tile>; TAKEN],
    /// Two score buffers: one block is scored while the other's weights are made.
    pub(super) scores: Lines<Scores>,
    pub(super) sharing: [Sharing; 2],
    pub(super) packed: Lines<Packed>,
    /// Attention weights per chunk and block, and one spare at the end, as loads may touch it.
    pub(super) shares: Lines<[Tile; 2]>,
    /// A block's weights as f32, in the decode path.
    pub(super) open_shares: Lines<Scores>,
    /// Rescale factors exp(m_old - m_new) per chunk and block.
    pub(super) fades: Vec<[f32; LANES]>,
    /// Entry numbers of the chunk; made only if some query row needs a mask.
    pub(super) entries: Entries,
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            shape: None,
            tokens: Vec::new(),
            starts: Vec::new(),
            blocks: Vec::new(),
            queries: Lines::new(),
            open_queries: Vec::new(),
            lying_scores: Lines::new(),
            lying: Lines::new(),
            most: Vec::new(),
            sum: Vec::new(),
            sums: Lines::new(),
            keys: Vec::new(),
            #[cfg(target_arch = "x86_64")]
            later: [Later::NOTHING; 2],
            soon: Soon::NOTHING,
            open_keys: Vec::new(),
            open_values: Vec::new(),
            staged_keys: Lines::new(),
            staged_values: Lines::new(),
            nothing: Vec::new(),
            wide: Vec::new(),
            values: [Lines::new(), Lines::new()],
            scores: Lines::new(),
            sharing: [Sharing::NOTHING; 2],
            packed: Lines::new(),
            shares: Lines::new(),
            open_shares: Lines::new(),
            fades: Vec::new(),
            entries: Entries::NONE,
        }
    }
}

impl Scratch {
    /// Starts a work item of `heads` KV heads with `lanes` query rows each: grows buffers and
    /// resets the softmax state.
    pub(super) fn prepare(&mut self, shape: Shape, heads: usize, lanes: usize) {
        if self.shape != Some(shape) {
            self.shape = Some(shape);
            let widest = shape.key_width.max(shape.value_width);
            self.staged_keys.clear();
            self.staged_values.clear();
            self.staged_values.grow(CHUNK * shape.value_width);
            self.nothing.clear();
            self.nothing.resize(widest, 0);
            self.wide.resize(widest, 0.0);
            let tiles = shape.value_width / LANES;
            // The padding of V beyond the head dimension stays zero.
            for values in &mut self.values {
                values.clear();
                values.grow(tiles * 2);
            }
            self.lying.clear();
            self.lying.grow(shape.steps());
            self.scores.grow(2);
            self.packed.grow(1);
            self.open_shares.grow(1);
            self.lying_scores.grow(LANES);
        }
        // The padding of K beyond the head dimension is never written, and stays zero.
        self.staged_keys.grow(heads * CHUNK * shape.key_width);
        let lanes = heads * lanes;
        self.sums.clear();
        self.sums.grow(lanes * shape.value_width);
        // Padded, as a block loads 16 numbers at a time.
        self.most.clear();
        self.most.resize(lanes + LANES, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(lanes + LANES, 0.0);
    }

    /// Writes a query row's result: O / l.
    pub(super) fn finish(&self, level: Level, shape: Shape, lane: usize, sink: Option<f32>, to: &mut [f32]) {
        let factor = finished(self.most[lane], self.sum[lane], sink);
        scaled(level, &self.sums[lane * shape.value_width..][..shape.value_width], factor, to);
    }
}

/// Normalization factor of O: 1 / l, with the attention sink added to l.
pub(crate) fn finished(most: f32, sum: f32, sink: Option<f32>) -> f32 {
    let (fade, total) = match sink.map(Rule::unit) {
        None => (1.0, sum),
        Some(sink) => {
            let top = most.max(sink);
            let fade = exp2(most - top);
            (fade, sum.mul_add(fade, exp2(sink - top)))
        }
    };
    if total > 0.0 { fade / total } else { 0.0 }
}
