//! Online softmax of the decode path in bf16 pair order
//! ([`AttentionGemm::Bf16Dot`](crate::kernels::AttentionGemm::Bf16Dot)): scores are a row per query row, so
//! nothing is transposed, and no work is spent on unused rows. The order of summation is that of
//! [`kernel::bf16_dot`](crate::attention::kernel::bf16_dot).

use crate::attention::softmax::avx512::{exp2, load, raise_max_by};
use crate::attention::softmax::state::{ChunkMask, OnlineSoftmax, ScoreRows, ScoreScaling};
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, Tile};
use crate::isa::vectors::v512::reduce_by_halves;
use crate::memory::kv_pool::rows::CHUNK;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Query rows whose maxima and sums are reduced at once.
const AT_ONCE: usize = 4;

/// [`OnlineSoftmax::begin`] for the scores of `rows` query rows.
///
/// # Safety
/// The machine must have AVX-512.
pub(crate) unsafe fn begin(
    softmax: &mut OnlineSoftmax,
    scores: &mut ScoreRows,
    rows: usize,
    mask: Option<ChunkMask<'_>>,
    scaling: ScoreScaling,
) {
    softmax.scale(Isa::AVX512_BF16, scores[..rows].as_flattened_mut(), scaling);
    // SAFETY: as the caller vouches.
    unsafe {
        if let Some(mask) = mask {
            apply_mask(&mut scores[..rows], mask);
        }
        raise_max(softmax, scores);
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
fn apply_mask(scores: &mut [[f32; CHUNK]], ChunkMask { entries, bounds }: ChunkMask<'_>) {
    for (row, scores) in scores.iter_mut().enumerate() {
        let visible = _mm512_set1_epi32(bounds.visible[row]);
        let from = _mm512_set1_epi32(bounds.from[row]);
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
fn raise_max(softmax: &mut OnlineSoftmax, scores: &ScoreRows) {
    let max = |a, b| _mm512_max_ps(a, b);
    let mut largest = [0.0; LANES];
    for (rows, largest) in scores.as_chunks::<AT_ONCE>().0.iter().zip(largest.as_chunks_mut::<AT_ONCE>().0) {
        let each = rows.each_ref().map(|row| {
            let [a, b, c, d] = quarters(row);
            max(max(a, b), max(c, d))
        });
        *largest = reduce_by_halves(each, max);
    }
    raise_max_by(softmax, load(&largest));
}

/// Makes the attention weights P of `rows` query rows, in bf16: a row of `weights` for each, two
/// positions per word; and their sums.
///
/// # Safety
/// The machine must have AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn finish_weights(
    softmax: &mut OnlineSoftmax,
    scores: &ScoreRows,
    rows: usize,
    weights: &mut [Tile; 2],
) {
    let scale = _mm512_set1_ps(softmax.scale);
    let half = _mm512_set1_epi32(0x8000);
    // Selects the upper half of each word of two vectors: bf16 of f32.
    let upper: [u16; 2 * LANES] = from_fn(|n| 2 * n as u16 + 1);
    // SAFETY: 32 numbers of 16 bits are read.
    let upper = unsafe { _mm512_loadu_si512(upper.as_ptr().cast()) };
    for first in (0..rows).step_by(AT_ONCE) {
        let mut chains = [_mm512_setzero_ps(); AT_ONCE];
        // A loop: closures for each of the four rows are not inlined, and keep their constants in
        // memory.
        for (row, chain) in (first..LANES).zip(&mut chains) {
            let base = _mm512_set1_ps(softmax.base[row]);
            let [a, b, c, d] = quarters(&scores[row]).map(|score| exp2(_mm512_fmsub_ps(score, scale, base)));
            for (weights, (low, high)) in weights.iter_mut().zip([(a, b), (c, d)]) {
                // Rounds to the nearest bf16, ties up.
                let [low, high] =
                    [low, high].map(|weight| _mm512_add_epi32(_mm512_castps_si512(weight), half));
                let both = _mm512_permutex2var_epi16(low, upper, high);
                // SAFETY: 16 words are written.
                unsafe { _mm512_storeu_si512(weights[row].as_mut_ptr().cast(), both) };
            }
            *chain = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), c), d);
        }
        let sums = reduce_by_halves(chains, |a, b| _mm512_add_ps(a, b));
        softmax.sums[0][first..][..AT_ONCE].copy_from_slice(&sums);
    }
}
