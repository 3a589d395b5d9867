//! Online softmax of the decode path in bf16 pair order ([`in_pairs`](crate::attention::in_pairs)):
//! scores are a row per query row, so nothing is transposed, and no work is spent on unused rows.
//! The order of summation is that of [`pairs`](crate::attention::bf16_dot).

use crate::attention::bf16_dot::by_halves;
use crate::attention::decode::Lying;
use crate::attention::softmax::{Entries, Rule, Sharing, Sight};
use crate::attention::views::CHUNK;
use crate::attention::wide::{exp2, load, risen};
use crate::isa::features::Level;
use crate::isa::tile::{LANES, Tile};
use std::arch::x86_64::*;
use std::array::from_fn;

/// Query rows whose maxima and sums are reduced at once.
const AT_ONCE: usize = 4;

/// [`Sharing::begin`] for the scores of `lanes` query rows.
///
/// # Safety
/// The machine must have AVX-512.
pub(crate) unsafe fn begin(
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

/// A query row's scores, in four vectors.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(row: &[f32; CHUNK]) -> [__m512; CHUNK / LANES] {
    // SAFETY: 16 floats are read each time.
    from_fn(|quarter| unsafe { _mm512_loadu_ps(row[quarter * LANES..].as_ptr()) })
}

/// Masks: scores of invisible positions become negative infinity.
#[target_feature(enable = "avx512f")]
fn hide(scores: &mut [[f32; CHUNK]], entries: &Entries, sight: &Sight) {
    for (lane, scores) in scores.iter_mut().enumerate() {
        let visible = _mm512_set1_epi32(sight.visible[lane]);
        let from = _mm512_set1_epi32(sight.from[lane]);
        for (quarter, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let numbers = |of: &[i32; CHUNK]| {
                // SAFETY: 16 integers are read.
                unsafe { _mm512_loadu_si512(of[quarter * LANES..].as_ptr().cast()) }
            };
            let seen = _mm512_cmplt_epi32_mask(numbers(&entries.entry), visible)
                & _mm512_cmpge_epi32_mask(numbers(&entries.position), from);
            let hidden = _mm512_set1_ps(f32::NEG_INFINITY);
            // SAFETY: 16 floats are read and written.
            unsafe {
                _mm512_storeu_ps(scores.as_mut_ptr(), _mm512_mask_blend_ps(seen, hidden, load(scores)))
            };
        }
    }
}

/// Updates the running maxima. The results of unused rows are not read.
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

/// Makes the attention weights P of `lanes` query rows, in bf16: a row of `shares` for each, two
/// positions per word; and their sums.
///
/// # Safety
/// The machine must have AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn rest(sharing: &mut Sharing, (scores, lanes): (&Lying, usize), shares: &mut [Tile; 2]) {
    let scale = _mm512_set1_ps(sharing.scale);
    let half = _mm512_set1_epi32(0x8000);
    // Selects the upper half of each word of two vectors: bf16 of f32.
    let upper: [u16; 2 * LANES] = from_fn(|n| 2 * n as u16 + 1);
    // SAFETY: 32 numbers of 16 bits are read.
    let upper = unsafe { _mm512_loadu_si512(upper.as_ptr().cast()) };
    for first in (0..lanes).step_by(AT_ONCE) {
        let mut chains = [_mm512_setzero_ps(); AT_ONCE];
        // A loop: closures for each of the four rows are not inlined, and keep their constants in
        // memory.
        for (lane, chain) in (first..LANES).zip(&mut chains) {
            let base = _mm512_set1_ps(sharing.base[lane]);
            let [a, b, c, d] = quarters(&scores[lane]).map(|score| exp2(_mm512_fmsub_ps(score, scale, base)));
            for (shares, (low, high)) in shares.iter_mut().zip([(a, b), (c, d)]) {
                // Rounds to the nearest bf16, ties up.
                let [low, high] = [low, high].map(|share| _mm512_add_epi32(_mm512_castps_si512(share), half));
                let both = _mm512_permutex2var_epi16(low, upper, high);
                // SAFETY: 16 words are written.
                unsafe { _mm512_storeu_si512(shares[lane].as_mut_ptr().cast(), both) };
            }
            *chain = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), c), d);
        }
        let sums = by_halves(chains, |a, b| _mm512_add_ps(a, b));
        sharing.sums[0][first..][..AT_ONCE].copy_from_slice(&sums);
    }
}
