//! State of the online softmax: scores, masks, running maxima and denominators, and `exp2`.

use crate::attention::views::Run;
use crate::isa::float16::ROUND;
use crate::isa::tile::LANES;
use crate::memory::kv_pool::rows::CHUNK;

/// Dot products, then scores S, of a chunk: a row per position, a column per query row.
pub(crate) type Scores = [[f32; LANES]; CHUNK];

/// Scores of 16 query rows in the decode path: a row per query row.
pub(crate) type ScoreRows = [[f32; CHUNK]; LANES];

/// Attention weights P of a chunk in bf16: two positions per word, a column per query row.
pub(crate) type PackedWeights = [[u32; LANES]; CHUNK / 2];

/// How dot products become scores. Scores are kept in base-2 units (times log2 e).
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScoreScaling {
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
}

impl ScoreScaling {
    /// Converts a score to base-2 units.
    pub(crate) fn to_base2(score: f32) -> f32 {
        score * std::f32::consts::LOG2_E
    }
}

/// Entry number and position at each place of a chunk; a place without an entry has number
/// `i32::MAX`, which no row sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkEntries {
    pub(crate) entry: [i32; CHUNK],
    pub(crate) position: [i32; CHUNK],
}

impl ChunkEntries {
    /// The entries of a chunk's runs; the first has number `number`.
    pub(crate) fn of(runs: &[Run], mut number: i32) -> Self {
        let mut all = Self { entry: [i32::MAX; CHUNK], position: [0; CHUNK] };
        for run in runs {
            let first = run.position as usize % CHUNK;
            let places = first..first + run.len as usize;
            all.entry[places.clone()].iter_mut().zip(number..).for_each(|(to, number)| *to = number);
            all.position[places].iter_mut().zip(run.position as i32..).for_each(|(to, at)| *to = at);
            number += run.len as i32;
        }
        all
    }
}

/// Mask bounds per query row: place `r` of a chunk is visible if `entry[r] < visible` and
/// `position[r] >= from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MaskBounds {
    pub(crate) visible: [i32; LANES],
    pub(crate) from: [i32; LANES],
}

/// Mask of a chunk for a query block.
#[derive(Clone, Copy)]
pub(crate) struct ChunkMask<'a> {
    pub(crate) entries: &'a ChunkEntries,
    pub(crate) bounds: &'a MaskBounds,
}

/// Online softmax state per query row: running maximum m, and denominator l.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunningState {
    pub(crate) max: [f32; LANES],
    pub(crate) sum: [f32; LANES],
    /// Rescale factor exp(m_old - m_new) of the last chunk, for l and O.
    pub(crate) rescale: [f32; LANES],
}

/// Polynomial of 2^f for |f| <= 1/2, highest power first.
pub(crate) const TERMS: [f32; 5] = [9.582_853e-3, 5.590_643e-2, 2.402_41e-1, 6.931_242e-1, 1.0];
/// Attention weights below 2^-64 are flushed to zero: they are below f32 accumulator precision. So
/// products stay clear of the denormals that AMX flushes and SIMD does not.
pub(crate) const TINY: f32 = -64.0;

/// 2^x for x <= 0 with the same bits on every instruction set; accurate to 2⁻¹⁸, exactly 1 at 0 and
/// exactly 0 below [`TINY`].
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let t = x + ROUND;
    let f = x - (t - ROUND);
    let [first, rest @ ..] = TERMS;
    let p = rest.iter().fold(first, |p, &c| p.mul_add(f, c));
    let scaled = f32::from_bits(p.to_bits().wrapping_add(t.to_bits().wrapping_shl(23)));
    if x < TINY { 0.0 } else { scaled }
}

/// Online softmax of one query block over one chunk, resumable: SIMD works on a few positions at a
/// time while AMX multiplies.
pub(crate) struct OnlineSoftmax {
    /// Factor of the dot products, and the running maximum that is subtracted (0 where nothing is
    /// visible yet).
    pub(crate) scale: f32,
    pub(crate) base: [f32; LANES],
    /// Chunk sums of P over even and over odd positions; or over all positions, and 0.
    pub(crate) sums: [[f32; LANES]; 2],
    /// Running state of the block's query rows.
    pub(crate) run: RunningState,
    /// Pairs of positions whose weights are made.
    pub(crate) done: usize,
}

impl Default for OnlineSoftmax {
    fn default() -> Self {
        let (base, sums, run) = Default::default();
        Self { scale: 0.0, base, sums, run, done: CHUNK / 2 }
    }
}
