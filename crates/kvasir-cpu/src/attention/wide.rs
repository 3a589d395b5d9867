//! The hot two of [`super::softmax`] in 512-bit vectors: compilers gather across the lanes instead of working along them. The arithmetic is that of the plain
//! functions, operation by operation.

use super::scratch::Products;
use super::softmax::{self, LANES, Rule, Running, Scores, Sight};
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

/// Multiplies with the scale, hides what a lane does not see, and gives the maxima, those so far included.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn scale(
    scores: &mut Scores,
    rows: &[(i32, i32); CHUNK],
    sight: Option<&Sight>,
    scale: f32,
    most: __m512,
) -> __m512 {
    let scale = _mm512_set1_ps(scale);
    let mut most = [most; 4];
    let Some(sight) = sight else {
        for (i, row) in scores.iter_mut().enumerate() {
            let v = _mm512_mul_ps(load(row), scale);
            store(row, v);
            most[i % 4] = _mm512_max_ps(v, most[i % 4]);
        }
        return together(most);
    };
    // SAFETY: 16 integers each.
    let (visible, from) = unsafe {
        (_mm512_loadu_si512(sight.visible.as_ptr().cast()), _mm512_loadu_si512(sight.from.as_ptr().cast()))
    };
    for (i, (row, &(entry, position))) in scores.iter_mut().zip(rows).enumerate() {
        let seen = _mm512_cmplt_epi32_mask(_mm512_set1_epi32(entry), visible)
            & _mm512_cmpge_epi32_mask(_mm512_set1_epi32(position), from);
        let v = _mm512_mul_ps(load(row), scale);
        let v = _mm512_mask_blend_ps(seen, _mm512_set1_ps(f32::NEG_INFINITY), v);
        store(row, v);
        most[i % 4] = _mm512_max_ps(v, most[i % 4]);
    }
    together(most)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn together([a, b, c, d]: [__m512; 4]) -> __m512 {
    _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn shares(
    scores: &mut Scores,
    rows: &[(i32, i32); CHUNK],
    sight: Option<&Sight>,
    rule: Rule,
    run: &mut Running,
    packed: &mut [[u32; LANES]],
) {
    let before = load(&run.most);
    let most = scale(scores, rows, sight, Rule::unit(rule.scale), before);
    let nothing = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(most, _mm512_set1_ps(f32::NEG_INFINITY));
    let base = _mm512_maskz_mov_ps(!nothing, most);
    let fade = exp2(_mm512_sub_ps(before, base));
    let (mut even, mut odd) = (_mm512_setzero_ps(), _mm512_setzero_ps());
    let (half, high) = (_mm512_set1_epi32(0x8000), _mm512_set1_epi32(0xffff_0000_u32 as i32));
    for ([a, b], packed) in scores.as_chunks::<2>().0.iter().zip(packed) {
        let a = exp2(_mm512_sub_ps(load(a), base));
        let b = exp2(_mm512_sub_ps(load(b), base));
        even = _mm512_add_ps(even, a);
        odd = _mm512_add_ps(odd, b);
        let a = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_castps_si512(a), half));
        let b = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(b), half), high);
        // SAFETY: 16 words.
        unsafe { _mm512_storeu_si512(packed.as_mut_ptr().cast(), _mm512_or_si512(a, b)) };
    }
    let sum = _mm512_fmadd_ps(load(&run.sum), fade, _mm512_add_ps(even, odd));
    store(&mut run.most, most);
    store(&mut run.fade, fade);
    store(&mut run.sum, sum);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn fold(sums: &mut [f32], width: usize, tiles: &[Products], fade: &[f32]) {
    for (lane, (sums, &fade)) in sums.chunks_mut(width).zip(fade).enumerate() {
        let fade = _mm512_set1_ps(fade);
        for (part, tile) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(tiles) {
            let sum = _mm512_fmadd_ps(load(part), fade, load(&tile[lane]));
            store(part, sum);
        }
    }
}
