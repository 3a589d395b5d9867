//! One chunk's scores of 16 lanes (a lane is one query head of one token): from products to shares.

use super::scratch::Products;
use super::view::CHUNK;
#[cfg(target_arch = "x86_64")]
use super::wide;
use crate::Level;
use crate::level::per_level;

/// Lanes worked on together.
pub(crate) const LANES: usize = 16;
/// Scores of a chunk: a row per position, a column per lane.
pub(crate) type Scores = [[f32; LANES]; CHUNK];

/// What turns products into scores, the same for all lanes. Scores are kept in units of which two make a factor of four.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
}

impl Rule {
    /// A score in the units of the shares.
    pub(crate) fn unit(score: f32) -> f32 {
        score * std::f32::consts::LOG2_E
    }
}

/// What each lane sees of a chunk: row `r` if `entry[r] < visible` and `position[r] >= from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub(crate) visible: [i32; LANES],
    pub(crate) from: [i32; LANES],
}

/// Running maximum and sum per lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub(crate) most: [f32; LANES],
    pub(crate) sum: [f32; LANES],
    /// What sums so far must be multiplied with after the last chunk.
    pub(crate) fade: [f32; LANES],
}

/// Adding 1.5 * 2^23 rounds to an integer.
pub(super) const ROUND: f32 = 12_582_912.0;
/// 2^f for |f| <= 1/2, highest power first.
pub(super) const TERMS: [f32; 5] = [9.582_853e-3, 5.590_643e-2, 2.402_41e-1, 6.931_242e-1, 1.0];
/// Below this a share is nothing.
pub(super) const TINY: f32 = -126.0;

/// 2^x for x <= 0, the same on every level, good to 2⁻¹⁸; exactly 1 at 0 and exactly 0 below -126.
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let t = x + ROUND;
    let f = x - (t - ROUND);
    let [first, rest @ ..] = TERMS;
    let p = rest.iter().fold(first, |p, &c| p.mul_add(f, c));
    let scaled = f32::from_bits(p.to_bits().wrapping_add(t.to_bits().wrapping_shl(23)));
    if x < TINY { 0.0 } else { scaled }
}

#[inline(always)]
fn shares_body(
    scores: &mut Scores,
    rows: &[(i32, i32); CHUNK],
    sight: Option<&Sight>,
    rule: Rule,
    run: &mut Running,
    packed: &mut [[u32; LANES]],
) {
    let scale = if rule.soft_cap.is_some() { rule.scale } else { Rule::unit(rule.scale) };
    for row in scores.iter_mut() {
        row.iter_mut().for_each(|s| *s *= scale);
    }
    if let Some(cap) = rule.soft_cap {
        scores.as_flattened_mut().iter_mut().for_each(|s| *s = Rule::unit(cap * (*s / cap).tanh()));
    }
    if let Some(sight) = sight {
        for (row, &(entry, position)) in scores.iter_mut().zip(rows) {
            for lane in 0..LANES {
                let seen = entry < sight.visible[lane] && position >= sight.from[lane];
                row[lane] = if seen { row[lane] } else { f32::NEG_INFINITY };
            }
        }
    }
    let mut most = run.most;
    for row in scores.iter() {
        for lane in 0..LANES {
            most[lane] = if row[lane] > most[lane] { row[lane] } else { most[lane] };
        }
    }
    let mut base = [0f32; LANES];
    for lane in 0..LANES {
        base[lane] = if most[lane] == f32::NEG_INFINITY { 0.0 } else { most[lane] };
        run.fade[lane] = exp2(run.most[lane] - base[lane]);
    }
    run.most = most;
    // Even positions are added up apart from odd ones.
    let (mut even, mut odd) = ([0f32; LANES], [0f32; LANES]);
    for (pair, packed) in scores.as_chunks::<2>().0.iter().zip(packed) {
        for lane in 0..LANES {
            let (a, b) = (exp2(pair[0][lane] - base[lane]), exp2(pair[1][lane] - base[lane]));
            even[lane] += a;
            odd[lane] += b;
            // To the nearest bf16; halves go up.
            let (a, b) = (a.to_bits() + 0x8000, b.to_bits() + 0x8000);
            packed[lane] = a >> 16 | b & 0xffff_0000;
        }
    }
    for lane in 0..LANES {
        run.sum[lane] = run.sum[lane].mul_add(run.fade[lane], even[lane] + odd[lane]);
    }
}

per_level! {
    shares_by_compiler(scores: &mut Scores, rows: &[(i32, i32); CHUNK], sight: Option<&Sight>, rule: Rule, run: &mut Running, packed: &mut [[u32; LANES]]) => shares_body
}

/// Scores become shares (relative to the running maximum) as bf16, pairs of positions to a word. `rows` holds each position's entry number
/// and position.
pub(crate) fn shares(
    level: Level,
    scores: &mut Scores,
    rows: &[(i32, i32); CHUNK],
    sight: Option<&Sight>,
    rule: Rule,
    run: &mut Running,
    packed: &mut [[u32; LANES]],
) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512Vnni && rule.soft_cap.is_none() {
        // SAFETY: the level was found on this machine.
        return unsafe { wide::shares(scores, rows, sight, rule, run, packed) };
    }
    shares_by_compiler(level, scores, rows, sight, rule, run, packed);
}

#[inline(always)]
fn fold_body(sums: &mut [f32], width: usize, tiles: &[Products], fade: &[f32]) {
    for (lane, (sums, fade)) in sums.chunks_mut(width).zip(fade).enumerate() {
        for (part, tile) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(tiles) {
            for d in 0..LANES {
                part[d] = part[d].mul_add(*fade, tile[lane][d]);
            }
        }
    }
}

per_level! { fold_by_compiler(sums: &mut [f32], width: usize, tiles: &[Products], fade: &[f32]) => fold_body }

/// `sums[lane] = sums[lane] * fade[lane] + tile[lane]` for tiles of 16 value places each; lanes' sums lie `width` apart.
pub(crate) fn fold(level: Level, sums: &mut [f32], width: usize, tiles: &[Products], fade: &[f32]) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512Vnni {
        // SAFETY: the level was found on this machine.
        return unsafe { wide::fold(sums, width, tiles, fade) };
    }
    fold_by_compiler(level, sums, width, tiles, fade);
}
