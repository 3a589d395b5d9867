//! The hot ones of [`super::softmax`] in 512-bit vectors: compilers gather across the lanes instead of working along them. The arithmetic is that of the plain
//! functions, operation by operation.

use super::softmax::{self, LANES, Scores, Sharing, Sight};
use super::view::CHUNK;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 floats.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn store(to: &mut [f32; LANES], v: __m512) {
    // SAFETY: 16 floats.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
}

/// [`softmax::exp2`] of 16 numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn exp2(x: __m512) -> __m512 {
    let round = _mm512_set1_ps(softmax::ROUND);
    let t = _mm512_add_ps(x, round);
    let f = _mm512_sub_ps(x, _mm512_sub_ps(t, round));
    let [first, rest @ ..] = softmax::TERMS;
    let p = rest.iter().fold(_mm512_set1_ps(first), |p, &c| _mm512_fmadd_ps(p, f, _mm512_set1_ps(c)));
    let scaled = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32::<23>(_mm512_castps_si512(t)));
    let tiny = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(softmax::TINY));
    _mm512_castsi512_ps(_mm512_maskz_mov_epi32(!tiny, scaled))
}

/// What a lane does not see is less than anything.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn hide(scores: &mut Scores, rows: &[(i32, i32); CHUNK], sight: &Sight) {
    // SAFETY: 16 integers each.
    let (visible, from) = unsafe {
        (_mm512_loadu_si512(sight.visible.as_ptr().cast()), _mm512_loadu_si512(sight.from.as_ptr().cast()))
    };
    for (row, &(entry, position)) in scores.iter_mut().zip(rows) {
        let seen = _mm512_cmplt_epi32_mask(_mm512_set1_epi32(entry), visible)
            & _mm512_cmpge_epi32_mask(_mm512_set1_epi32(position), from);
        let v = _mm512_mask_blend_ps(seen, _mm512_set1_ps(f32::NEG_INFINITY), load(row));
        store(row, v);
    }
}

/// The largest of each lane.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn most(scores: &Scores, largest: &mut [f32; LANES]) {
    let (first, rest) = scores.as_chunks::<4>().0.split_at(1);
    let mut most = first[0].each_ref().map(|row| load(row));
    for rows in rest {
        for (most, row) in most.iter_mut().zip(rows) {
            *most = _mm512_max_ps(load(row), *most);
        }
    }
    let [a, b, c, d] = most;
    store(largest, _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

/// Shares of pairs of positions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn some(sharing: &mut Sharing, scores: &[[f32; LANES]], packed: &mut [[u32; LANES]]) {
    let [mut even, mut odd] = sharing.sums.each_ref().map(|sums| load(sums));
    let (scale, base) = (_mm512_set1_ps(sharing.scale), load(&sharing.base));
    let (half, high) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000_u32 as i32));
    for ([a, b], packed) in scores.as_chunks::<2>().0.iter().zip(packed) {
        let a = exp2(_mm512_fmsub_ps(load(a), scale, base));
        let b = exp2(_mm512_fmsub_ps(load(b), scale, base));
        even = _mm512_add_ps(even, a);
        odd = _mm512_add_ps(odd, b);
        let a = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_castps_si512(a), half));
        let b = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(b), half), high);
        // SAFETY: 16 words.
        unsafe { _mm512_storeu_si512(packed.as_mut_ptr().cast(), _mm512_or_si512(a, b)) };
    }
    let [to_even, to_odd] = &mut sharing.sums;
    store(to_even, even);
    store(to_odd, odd);
}
