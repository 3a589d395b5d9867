//! One chunk's scores of 16 lanes (a lane is one query head of one token): from products to shares.

use super::view::CHUNK;
use crate::dense::round_bf16;
use crate::level::per_level;

/// Lanes worked on together.
pub(crate) const LANES: usize = 16;
/// Scores of a chunk: a row per position, a column per lane.
pub(crate) type Scores = [[f32; LANES]; CHUNK];

/// What turns products into scores, the same for all lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) scale: f32,
    pub(crate) soft_cap: Option<f32>,
}

/// What each lane sees of a chunk: row `r` if `entry[r] < visible` and `position[r] >= from`.
#[derive(Clone, Debug)]
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

impl Running {
    pub(crate) const START: Self =
        Self { most: [f32::NEG_INFINITY; LANES], sum: [0.0; LANES], fade: [0.0; LANES] };
}

/// e^x for x <= 0, the same on every level.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let t = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = t - ROUND;
    let r = n.mul_add(-0.693_359_4, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let p = 1.987_569_1e-4f32.mul_add(r, 1.398_2e-3);
    let p = p.mul_add(r, 8.333_452e-3);
    let p = p.mul_add(r, 4.166_579_6e-2);
    let p = p.mul_add(r, 1.666_666_5e-1);
    let p = p.mul_add(r, 0.5);
    let p = p.mul_add(r * r, r) + 1.0;
    let scaled = f32::from_bits(p.to_bits().wrapping_add(t.to_bits().wrapping_shl(23)));
    if x < -87.0 { 0.0 } else { scaled }
}

#[inline(always)]
fn shares_body(
    scores: &mut Scores,
    rows: &[(i32, i32); CHUNK],
    sight: Option<&Sight>,
    rule: Rule,
    run: &mut Running,
    packed: &mut [[u32; LANES]; CHUNK / 2],
) {
    let mut most = run.most;
    for (row, &(entry, position)) in scores.iter_mut().zip(rows) {
        for lane in 0..LANES {
            let mut s = row[lane] * rule.scale;
            if let Some(sight) = sight {
                let seen = entry < sight.visible[lane] && position >= sight.from[lane];
                s = if seen { s } else { f32::NEG_INFINITY };
            }
            row[lane] = s;
        }
        if let Some(cap) = rule.soft_cap {
            row.iter_mut()
                .for_each(|s| *s = if *s == f32::NEG_INFINITY { *s } else { cap * (*s / cap).tanh() });
        }
        for lane in 0..LANES {
            most[lane] = if row[lane] > most[lane] { row[lane] } else { most[lane] };
        }
    }
    let mut base = [0f32; LANES];
    for lane in 0..LANES {
        base[lane] = if most[lane] == f32::NEG_INFINITY { 0.0 } else { most[lane] };
        run.fade[lane] = exp(run.most[lane] - base[lane]);
        run.sum[lane] *= run.fade[lane];
    }
    run.most = most;
    for (pair, packed) in scores.as_chunks::<2>().0.iter().zip(packed) {
        for lane in 0..LANES {
            let a = u32::from(round_bf16(exp(pair[0][lane] - base[lane])));
            let b = u32::from(round_bf16(exp(pair[1][lane] - base[lane])));
            run.sum[lane] += f32::from_bits(a << 16);
            run.sum[lane] += f32::from_bits(b << 16);
            packed[lane] = a | b << 16;
        }
    }
}

per_level! {
    /// Scores become shares (relative to the running maximum) as bf16, pairs of positions to a word. `rows` holds each position's entry number
    /// and position.
    shares(scores: &mut Scores, rows: &[(i32, i32); CHUNK], sight: Option<&Sight>, rule: Rule, run: &mut Running, packed: &mut [[u32; LANES]; CHUNK / 2]) => shares_body
}

#[inline(always)]
fn fold_body(sums: &mut [f32], width: usize, tiles: &[[[f32; LANES]; LANES]], fade: &[f32; LANES]) {
    for (lane, sums) in sums.chunks_exact_mut(width).enumerate() {
        for (part, tile) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(tiles) {
            for d in 0..LANES {
                part[d] = part[d].mul_add(fade[lane], tile[lane][d]);
            }
        }
    }
}

per_level! {
    /// `sums[lane] = sums[lane] * fade[lane] + tile[lane]` for the tiles of 16 value places each.
    fold(sums: &mut [f32], width: usize, tiles: &[[[f32; LANES]; LANES]], fade: &[f32; LANES]) => fold_body
}
