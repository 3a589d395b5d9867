use super::Shape;
use super::block::Block;
use super::coming::scaled;
#[cfg(target_arch = "x86_64")]
use super::few::Later;
use super::products::Keys;
use super::softmax::{Entries, Packed, Rule, Scores, Sharing, exp2};
use super::soon::Soon;
use super::stretch::TAKEN;
use super::view::CHUNK;
use crate::Level;
use crate::chains::{Columns, Rows};
use crate::lines::Lines;
use crate::tile::{LANES, Tile};
use std::cell::RefCell;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Memory of one thread; grows to the largest piece of work and stays.
pub(super) struct Scratch {
    shape: Option<Shape>,
    /// The piece's tokens in the step's list, and how many entries each sees.
    pub(super) tokens: Vec<(usize, i32)>,
    /// Per view of the piece's group its first token, counted over the group; then their number.
    pub(super) starts: Vec<usize>,
    pub(super) blocks: Vec<Block>,
    /// Per block: a tile of queries for each step, a pair of numbers to a word and a column per lane, or a row where heads of few lanes have their products
    /// [in pairs](super::in_pairs).
    pub(super) queries: Lines<Tile>,
    /// The same as numbers, where heads have few lanes and there are neither tiles nor pairs; and what comes of either, a row per lane.
    pub(super) open_queries: Vec<Columns>,
    pub(super) lying_scores: Lines<[f32; CHUNK]>,
    /// A block's queries, a row per lane.
    pub(super) lying: Lines<Tile>,
    /// Per lane: running maximum, sum of shares, and sums of values over the chunks so far, in the order of [`super::coming`].
    pub(super) most: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) sums: Lines<f32>,
    /// Per head of a block: a chunk's keys.
    pub(super) keys: Vec<Keys>,
    /// The first head's keys of the chunk and its values, where they are asked for.
    #[cfg(target_arch = "x86_64")]
    pub(super) later: [Later; 2],
    /// What is asked for while the keys of a lone head are multiplied.
    pub(super) soon: Soon,
    /// The keys of a head and one head's values, widened, where there are no tiles.
    pub(super) open_keys: Vec<[Rows; 4]>,
    pub(super) open_values: Vec<Columns>,
    pub(super) staged_keys: Lines<u16>,
    pub(super) staged_values: Lines<u16>,
    /// A row of zeros.
    pub(super) nothing: Vec<u16>,
    pub(super) wide: Vec<f32>,
    /// Tiles of one head's values and of those of the next, or of the next chunk's.
    pub(super) values: [Lines<Tile>; TAKEN],
    /// Of two blocks: one is scored while the other's shares are made.
    pub(super) scores: Lines<Scores>,
    pub(super) sharing: [Sharing; 2],
    pub(super) packed: Lines<Packed>,
    /// Per block and chunk that is taken, and one that may be looked at past them.
    pub(super) shares: Lines<[Tile; 2]>,
    /// A block's shares as numbers, where its heads have few lanes.
    pub(super) open_shares: Lines<Scores>,
    /// Per block and chunk what its lanes' sums must be multiplied with before.
    pub(super) fades: Vec<[f32; LANES]>,
    /// The chunk's entries; made where some lane does not see all of them.
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
    /// Starts a piece of `heads` heads with `lanes` lanes each.
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
            // Places past the end of a value stay zero.
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
        // Places past the end of a key are never written, and stay zero.
        self.staged_keys.grow(heads * CHUNK * shape.key_width);
        let lanes = heads * lanes;
        self.sums.clear();
        self.sums.grow(lanes * shape.value_width);
        // A block takes 16 at a time, whoever they are of.
        self.most.clear();
        self.most.resize(lanes + LANES, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(lanes + LANES, 0.0);
    }

    /// A lane's result.
    pub(super) fn finish(&self, level: Level, shape: Shape, lane: usize, sink: Option<f32>, to: &mut [f32]) {
        let factor = finished(self.most[lane], self.sum[lane], sink);
        scaled(level, &self.sums[lane * shape.value_width..][..shape.value_width], factor, to);
    }
}

/// What a lane's sums of values are multiplied with in the end.
pub(super) fn finished(most: f32, sum: f32, sink: Option<f32>) -> f32 {
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
