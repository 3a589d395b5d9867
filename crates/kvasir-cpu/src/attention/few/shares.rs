//! Shares of few lanes where products are [in pairs](crate::attention::in_pairs), of scores that are a row per lane: nothing is turned, and no vector works
//! for a lane that is not there. Their order of summation is that of [`pairs`](crate::attention::pairs).

use super::Lying;
use crate::Level;
use crate::attention::pairs::by_halves;
use crate::attention::softmax::{Entries, Rule, Sharing, Sight};
use crate::attention::view::CHUNK;
use crate::attention::wide::{exp2, load, risen};
use crate::tile::{LANES, Tile};
use std::arch::x86_64::*;
use std::array::from_fn;

/// Lanes whose maxima and sums are found at once.
const AT_ONCE: usize = 4;

/// [`Sharing::begin`] with the scores of so many lanes.
///
/// # Safety
/// The machine must have the instructions.
pub(in crate::attention) unsafe fn begin(
    sharing: &mut Sharing,
    level: Level,
    (scores, lanes): (&mut Lying, usize),
    entries: &Entries,
    sight: Option<&Sight>,
    rule: Rule,
) {
    sharing.scale(level, scores[..lanes].as_flattened_mut(), rule);
    // SAFETY: as the caller vouches.
    unsafe {
        if let Some(sight) = sight {
            hide(&mut scores[..lanes], entries, sight);
        }
        rise(sharing, scores);
    }
}

/// A lane's scores.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(row: &[f32; CHUNK]) -> [__m512; CHUNK / LANES] {
    // SAFETY: 16 floats each.
    from_fn(|quarter| unsafe { _mm512_loadu_ps(row[quarter * LANES..].as_ptr()) })
}

/// What a lane does not see is less than anything.
#[target_feature(enable = "avx512f")]
fn hide(scores: &mut [[f32; CHUNK]], entries: &Entries, sight: &Sight) {
    for (lane, scores) in scores.iter_mut().enumerate() {
        let visible = _mm512_set1_epi32(sight.visible[lane]);
        let from = _mm512_set1_epi32(sight.from[lane]);
        for (quarter, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let numbers = |of: &[i32; CHUNK]| {
                // SAFETY: 16 integers.
                unsafe { _mm512_loadu_si512(of[quarter * LANES..].as_ptr().cast()) }
            };
            let seen = _mm512_cmplt_epi32_mask(numbers(&entries.entry), visible)
                & _mm512_cmpge_epi32_mask(numbers(&entries.position), from);
            let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
            // SAFETY: 16 floats.
            unsafe {
                _mm512_storeu_ps(scores.as_mut_ptr(), _mm512_mask_blend_ps(seen, hidden, load(scores)))
            };
        }
    }
}

/// Maxima with a chunk's products. Rows of no lane are of no consequence.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn rise(sharing: &mut Sharing, scores: &Lying) {
    let most = |a, b| _mm512_max_ps(a, b);
    let mut largest = [0.0; LANES];
    for (rows, largest) in scores.as_chunks::<AT_ONCE>().0.iter().zip(largest.as_chunks_mut::<AT_ONCE>().0) {
        let each = rows.each_ref().map(|row| {
            let [a, b, c, d] = quarters(row);
            most(most(a, b), most(c, d))
        });
        *largest = by_halves(each, most);
    }
    risen(sharing, load(&largest));
}

/// The shares of so many lanes: a row of `shares` for each, pairs of positions to a word.
///
/// # Safety
/// The machine must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(in crate::attention) unsafe fn rest(
    sharing: &mut Sharing,
    (scores, lanes): (&Lying, usize),
    shares: &mut [Tile; 2],
) {
    let scale = _mm512_set1_ps(sharing.scale);
    let half = _mm512_set1_epi32(0x8000);
    // The upper half of each word of two vectors.
    let upper: [u16; 2 * LANES] = from_fn(|n| 2 * n as u16 + 1);
    // SAFETY: 32 of 16 bits.
    let upper = unsafe { _mm512_loadu_si512(upper.as_ptr().cast()) };
    for first in (0..lanes).step_by(AT_ONCE) {
        let mut chains = [_mm512_setzero_ps(); AT_ONCE];
        // A loop: as a closure for each of four it is called, and keeps its constants in memory.
        for (lane, chain) in (first..LANES).zip(&mut chains) {
            let base = _mm512_set1_ps(sharing.base[lane]);
            let [a, b, c, d] = quarters(&scores[lane]).map(|score| exp2(_mm512_fmsub_ps(score, scale, base)));
            for (shares, (low, high)) in shares.iter_mut().zip([(a, b), (c, d)]) {
                // To the nearest bf16; halves go up.
                let [low, high] = [low, high].map(|share| _mm512_add_epi32(_mm512_castps_si512(share), half));
                let both = _mm512_permutex2var_epi16(low, upper, high);
                // SAFETY: 16 words.
                unsafe { _mm512_storeu_si512(shares[lane].as_mut_ptr().cast(), both) };
            }
            *chain = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), c), d);
        }
        let sums = by_halves(chains, |a, b| _mm512_add_ps(a, b));
        sharing.sums[0][first..][..AT_ONCE].copy_from_slice(&sums);
    }
}
