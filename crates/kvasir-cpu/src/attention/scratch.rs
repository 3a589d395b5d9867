use super::Shape;
use super::block::Block;
use super::products::Keys;
use super::softmax::{LANES, Rule, Scores, exp2};
use super::view::CHUNK;
use std::cell::RefCell;

thread_local! {
    pub(super) static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// A tile: 16 rows of 64 bytes.
pub(super) type Tile = [[u32; LANES]; LANES];

/// Memory of one thread; grows to the largest piece of work and stays.
pub(super) struct Scratch {
    shape: Option<Shape>,
    /// The piece's tokens in the step's list, and how many entries each sees.
    pub(super) tokens: Vec<(usize, i32)>,
    /// Per view of the piece's group its first token, counted over the group; then their number.
    pub(super) starts: Vec<usize>,
    pub(super) blocks: Vec<Block>,
    /// Per block and head: tiles of queries, a pair of numbers to a word.
    pub(super) queries: Vec<Tile>,
    /// Per lane: running maximum, sum of shares, and sums of values over the chunks so far.
    pub(super) most: Vec<f32>,
    pub(super) sum: Vec<f32>,
    pub(super) sums: Vec<f32>,
    /// Per head of a block: a chunk's keys.
    pub(super) keys: Vec<Keys>,
    pub(super) staged_keys: Vec<u16>,
    pub(super) staged_values: Vec<u16>,
    /// A row of zeros.
    pub(super) nothing: Vec<u16>,
    pub(super) wide: Vec<f32>,
    pub(super) values: Vec<Tile>,
    pub(super) products: Vec<[[f32; LANES]; LANES]>,
    pub(super) scores: Box<Scores>,
    pub(super) packed: Box<[[u32; LANES]; CHUNK / 2]>,
    /// Two tiles, and one that may be looked at past them.
    pub(super) shares: Box<[Tile; 3]>,
    /// Number of the entry at each position of the chunk, and the position.
    pub(super) rows: [(i32, i32); CHUNK],
    /// Runs that have entries among each 16 positions of the chunk.
    pub(super) runs_of_quarter: [u8; 4],
}

impl Default for Scratch {
    fn default() -> Self {
        Self {
            shape: None,
            tokens: Vec::new(),
            starts: Vec::new(),
            blocks: Vec::new(),
            queries: Vec::new(),
            most: Vec::new(),
            sum: Vec::new(),
            sums: Vec::new(),
            keys: Vec::new(),
            staged_keys: Vec::new(),
            staged_values: Vec::new(),
            nothing: Vec::new(),
            wide: Vec::new(),
            values: Vec::new(),
            products: Vec::new(),
            scores: Box::new([[0.0; LANES]; CHUNK]),
            packed: Box::new([[0; LANES]; CHUNK / 2]),
            shares: Box::new([[[0; LANES]; LANES]; 3]),
            rows: [(0, 0); CHUNK],
            runs_of_quarter: [0; 4],
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
        // Places past the end of a key are never written, and stay zero.
        if self.staged_keys.len() < heads * CHUNK * shape.key_width {
            self.staged_keys.resize(heads * CHUNK * shape.key_width, 0);
        }
        let lanes = heads * lanes;
        self.sums.clear();
        self.sums.resize(lanes * shape.value_width, 0.0);
        self.most.clear();
        self.most.resize(lanes, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(lanes, 0.0);
    }

    /// A lane's result.
    pub(super) fn finish(&self, shape: Shape, lane: usize, sink: Option<f32>, to: &mut [f32]) {
        let (most, sum) = (self.most[lane], self.sum[lane]);
        let (fade, total) = match sink.map(Rule::unit) {
            None => (1.0, sum),
            Some(sink) => {
                let top = most.max(sink);
                let fade = exp2(most - top);
                (fade, sum.mul_add(fade, exp2(sink - top)))
            }
        };
        let factor = if total > 0.0 { fade / total } else { 0.0 };
        let sums = &self.sums[lane * shape.value_width..];
        to.iter_mut().zip(sums).for_each(|(t, s)| *t = s * factor);
    }
}
