//! Online softmax over one KV chunk for 16 query rows (a row is one query head of one token).
//!
//! Per row, with the running maximum m, the denominator l and the accumulators O:
//!
//! 1. `begin`: scale or soft-cap the dot products, mask them, `m_new = max(m, S)`,
//!    `fade = exp(m - m_new)`.
//! 2. `rest`: `P = exp(S - m_new)`, rounded to bf16 and packed in pairs; chunk sums of P.
//! 3. `end`: `l = l * fade + sum(P)`. The caller rescales: `O = O * fade + P V`.
//!
//! Everything is in base 2: scores are multiplied by log2(e), and `exp2` is a polynomial with the
//! same bits on every level. `wide.rs` has the AVX-512 versions; `tests.rs` checks that levels
//! agree.

use crate::attention::views::CHUNK;
#[cfg(target_arch = "x86_64")]
use crate::attention::wide;
use crate::isa::dispatch::per_level;
use crate::isa::features::Level;
use crate::isa::float16::ROUND;
use crate::isa::tile::LANES;

/// Dot products, then scores S, of a chunk: a row per position, a column per query row.
pub(crate) type Scores = [[f32; LANES]; CHUNK];

/// Attention weights P of a chunk in bf16: two positions per word, a column per query row.
pub(crate) type Packed = [[u32; LANES]; CHUNK / 2];

/// How dot products become scores. Scores are kept in base-2 units (times log2 e).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
}

impl Rule {
    /// Converts a score to base-2 units.
    pub(crate) fn unit(score: f32) -> f32 {
        score * std::f32::consts::LOG2_E
    }
}

/// Entry number and position at each place of a chunk; a place without an entry has number
/// `i32::MAX`, which no row sees.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entries {
    pub(crate) entry: [i32; CHUNK],
    pub(crate) position: [i32; CHUNK],
}

impl Entries {
    pub(crate) const NONE: Self = Self { entry: [i32::MAX; CHUNK], position: [0; CHUNK] };
}

/// Mask bounds per query row: place `r` of a chunk is visible if `entry[r] < visible` and
/// `position[r] >= from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) visible: [i32; LANES],
    pub(crate) from: [i32; LANES],
}

/// Online softmax state per query row: running maximum m, and denominator l.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) most: [f32; LANES],
    pub(crate) sum: [f32; LANES],
    /// Rescale factor exp(m_old - m_new) of the last chunk, for l and O.
    pub(crate) fade: [f32; LANES],
}

/// Polynomial of 2^f for |f| <= 1/2, highest power first.
pub(crate) const TERMS: [f32; 5] = [9.582_853e-3, 5.590_643e-2, 2.402_41e-1, 6.931_242e-1, 1.0];
/// Attention weights below 2^-64 are flushed to zero: they are below f32 accumulator precision. So
/// products stay clear of the denormals that AMX flushes and SIMD does not.
pub(crate) const TINY: f32 = -64.0;

/// 2^x for x <= 0 with the same bits on every level; accurate to 2⁻¹⁸, exactly 1 at 0 and exactly 0
/// below [`TINY`].
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
pub(crate) struct Sharing {
    /// Factor of the dot products, and the running maximum that is subtracted (0 where nothing is
    /// visible yet).
    pub(super) scale: f32,
    pub(super) base: [f32; LANES],
    /// Chunk sums of P over even and over odd positions; or over all positions, and 0.
    pub(super) sums: [[f32; LANES]; 2],
    /// Running state of the block's query rows.
    pub(super) run: Running,
    /// Pairs of positions whose weights are made.
    pub(super) done: usize,
}

/// Masks: scores of invisible positions become negative infinity.
#[inline(always)]
fn hide_body(scores: &mut Scores, entries: &Entries, sight: &Sight) {
    for (row, (&entry, &position)) in scores.iter_mut().zip(entries.entry.iter().zip(&entries.position)) {
        for lane in 0..LANES {
            let seen = entry < sight.visible[lane] && position >= sight.from[lane];
            row[lane] = if seen { row[lane] } else { f32::NEG_INFINITY };
        }
    }
}

per_level! { hide_by_compiler(scores: &mut Scores, entries: &Entries, sight: &Sight) => hide_body }

/// Soft cap: `cap * tanh(s * scale / cap)`, in base-2 units.
#[inline(always)]
fn cap_body(scores: &mut [f32], scale: f32, cap: f32) {
    let capped = |s: f32| Rule::unit(cap * (s * scale / cap).tanh());
    scores.iter_mut().for_each(|s| *s = capped(*s));
}

per_level! { cap_scores(scores: &mut [f32], scale: f32, cap: f32) => cap_body }

#[inline(always)]
/// Largest dot product of each query row.
fn most_body(scores: &Scores, most: &mut [f32; LANES]) {
    *most = scores[0];
    for row in &scores[1..] {
        for lane in 0..LANES {
            most[lane] = if row[lane] > most[lane] { row[lane] } else { most[lane] };
        }
    }
}

per_level! { most_by_compiler(scores: &Scores, most: &mut [f32; LANES]) => most_body }

/// Attention weights P of some positions, rounded to bf16 and packed; adds them to the chunk sums.
#[inline(always)]
fn some_body(sharing: &mut Sharing, scores: &[[f32; LANES]], packed: &mut [[u32; LANES]]) {
    let [even, odd] = &mut sharing.sums;
    for (pair, packed) in scores.as_chunks::<2>().0.iter().zip(packed) {
        for lane in 0..LANES {
            let share = |s: f32| exp2(s.mul_add(sharing.scale, -sharing.base[lane]));
            let (a, b) = (share(pair[0][lane]), share(pair[1][lane]));
            even[lane] += a;
            odd[lane] += b;
            // Rounds to the nearest bf16, ties up.
            let (a, b) = (a.to_bits() + 0x8000, b.to_bits() + 0x8000);
            packed[lane] = a >> 16 | b & 0xffff_0000;
        }
    }
}

per_level! { some_by_compiler(sharing: &mut Sharing, scores: &[[f32; LANES]], packed: &mut [[u32; LANES]]) => some_body }

#[inline(always)]
fn rise_body(largest: &[f32; LANES], scale: f32, run: &mut Running, base: &mut [f32; LANES]) {
    let before = run.most;
    for lane in 0..LANES {
        let score = largest[lane] * scale;
        run.most[lane] = if score > before[lane] { score } else { before[lane] };
    }
    for lane in 0..LANES {
        base[lane] = if run.most[lane] == f32::NEG_INFINITY { 0.0 } else { run.most[lane] };
    }
    for lane in 0..LANES {
        run.fade[lane] = exp2(before[lane] - base[lane]);
    }
}

per_level! {
    /// Raises the running maxima by a chunk's largest dot products, and computes the rescale
    /// factors.
    rise_by_compiler(largest: &[f32; LANES], scale: f32, run: &mut Running, base: &mut [f32; LANES]) => rise_body
}

/// `l = l * fade + sum(P)`.
#[inline(always)]
fn add_up_body([even, odd]: &[[f32; LANES]; 2], run: &mut Running) {
    for lane in 0..LANES {
        run.sum[lane] = run.sum[lane].mul_add(run.fade[lane], even[lane] + odd[lane]);
    }
}

per_level! { add_up(sums: &[[f32; LANES]; 2], run: &mut Running) => add_up_body }

impl Sharing {
    pub(super) const NOTHING: Self = Self {
        scale: 0.0,
        base: [0.0; LANES],
        sums: [[0.0; LANES]; 2],
        run: Running { most: [0.0; LANES], sum: [0.0; LANES], fade: [0.0; LANES] },
        done: CHUNK / 2,
    };

    /// Scales and masks a chunk's dot products and updates the running maxima. Without `sight`
    /// every row sees the whole chunk.
    pub(super) fn begin(
        &mut self,
        level: Level,
        scores: &mut Scores,
        entries: &Entries,
        sight: Option<&Sight>,
        rule: Rule,
    ) {
        self.scale(level, scores.as_flattened_mut(), rule);
        #[cfg(target_arch = "x86_64")]
        if level >= Level::Avx512Vnni {
            // SAFETY: the level was detected on this machine.
            return unsafe { wide::rise(self, scores, entries, sight) };
        }
        if let Some(sight) = sight {
            hide_by_compiler(level, scores, entries, sight);
        }
        let mut largest = [0.0; LANES];
        most_by_compiler(level, scores, &mut largest);
        rise_by_compiler(level, &largest, self.scale, &mut self.run, &mut self.base);
    }

    /// Sets the factor of the dot products; a soft cap (`cap * tanh(s / cap)`) is applied at once,
    /// with factor 1.
    pub(super) fn scale(&mut self, level: Level, scores: &mut [f32], rule: Rule) {
        self.scale = match rule.soft_cap {
            None => Rule::unit(rule.scale),
            Some(cap) => {
                cap_scores(level, scores, rule.scale, cap);
                1.0
            }
        };
        // Required: then the largest score is that of the largest dot product.
        debug_assert!(self.scale >= 0.0);
        (self.sums, self.done) = ([[0.0; LANES]; 2], 0);
    }

    /// Makes the remaining attention weights, as bf16 with two positions per word of `packed`.
    pub(super) fn rest(&mut self, level: Level, scores: &Scores, packed: &mut Packed) {
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level was detected on this machine.
            Level::Avx512Bf16 => unsafe { wide::in_pairs(self, scores, packed) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Level::Avx512Vnni | Level::Amx => unsafe { wide::rest(self, scores, packed) },
            _ => some_by_compiler(level, self, &scores[2 * self.done..], &mut packed[self.done..]),
        }
        self.done = CHUNK / 2;
    }

    /// `l = l * fade + sum(P)`.
    pub(super) fn end(&mut self, level: Level) {
        add_up(level, &self.sums, &mut self.run);
    }
}

#[inline(always)]
fn fade_body(sums: &mut [f32], width: usize, fade: &[f32]) {
    for (sums, &fade) in sums.chunks_exact_mut(width).zip(fade) {
        // Running maxima seldom move, so the factor is mostly 1.
        if fade != 1.0 {
            sums.iter_mut().for_each(|s| *s *= fade);
        }
    }
}

per_level! {
    /// Rescale: `sums[row] *= fade[row]`; accumulators lie `width` apart.
    fade(sums: &mut [f32], width: usize, fade: &[f32]) => fade_body
}
