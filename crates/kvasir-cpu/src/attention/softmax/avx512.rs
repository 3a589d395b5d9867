//! Online softmax in AVX-512: the hot functions of `online.rs`, which compilers vectorize with
//! gathers across query rows instead of along them. The operations and their order are those of the
//! portable functions, so the bits are equal; only [`weights_in_bf16_dot_order`] sums the attention
//! weights in another order.

use crate::attention::softmax::state::{ChunkMask, OnlineSoftmax, PackedWeights, Scores, TERMS, TINY};
use crate::isa::float16::ROUND;
use crate::isa::tile::LANES;
use crate::isa::vectors::v512::add_each;
use crate::memory::kv_pool::rows::CHUNK;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn load(from: &[f32; LANES]) -> __m512 {
    // SAFETY: 16 floats are read.
    unsafe { _mm512_loadu_ps(from.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn store(to: &mut [f32; LANES], v: __m512) {
    // SAFETY: 16 floats are written.
    unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
}

/// [`exp2`](crate::attention::softmax::state::exp2) of 16 numbers, with the same bits.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn exp2(x: __m512) -> __m512 {
    let round = _mm512_set1_ps(ROUND);
    let t = _mm512_add_ps(x, round);
    let f = _mm512_sub_ps(x, _mm512_sub_ps(t, round));
    let [first, rest @ ..] = TERMS;
    let p = rest.iter().fold(_mm512_set1_ps(first), |p, &c| _mm512_fmadd_ps(p, f, _mm512_set1_ps(c)));
    let scaled = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32::<23>(_mm512_castps_si512(t)));
    let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(TINY));
    _mm512_castsi512_ps(_mm512_maskz_mov_epi32(kept, scaled))
}

/// Masks: scores of invisible positions become negative infinity.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn apply_mask(scores: &mut Scores, ChunkMask { entries, bounds }: ChunkMask<'_>) {
    // SAFETY: 16 integers are read each time.
    let (visible, from) = unsafe {
        (_mm512_loadu_si512(bounds.visible.as_ptr().cast()), _mm512_loadu_si512(bounds.from.as_ptr().cast()))
    };
    for (row, (&entry, &position)) in scores.iter_mut().zip(entries.entry.iter().zip(&entries.position)) {
        let seen = _mm512_cmplt_epi32_mask(_mm512_set1_epi32(entry), visible)
            & _mm512_cmpge_epi32_mask(_mm512_set1_epi32(position), from);
        let v = _mm512_mask_blend_ps(seen, _mm512_set1_ps(f32::NEG_INFINITY), load(row));
        store(row, v);
    }
}

/// Masks a chunk's dot products, updates the running maxima and computes the rescale factors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn raise_max(softmax: &mut OnlineSoftmax, scores: &mut Scores, mask: Option<ChunkMask<'_>>) {
    if let Some(mask) = mask {
        apply_mask(scores, mask);
    }
    let (first, rest) = scores.as_chunks::<4>().0.split_at(1);
    let mut max = first[0].each_ref().map(|row| load(row));
    for rows in rest {
        for (max, row) in max.iter_mut().zip(rows) {
            *max = _mm512_max_ps(load(row), *max);
        }
    }
    let [a, b, c, d] = max;
    raise_max_by(softmax, _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

/// Updates the running maxima with each query row's largest dot product, and computes the rescale
/// factors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn raise_max_by(softmax: &mut OnlineSoftmax, largest: __m512) {
    let before = load(&softmax.run.max);
    let max = _mm512_max_ps(_mm512_mul_ps(largest, _mm512_set1_ps(softmax.scale)), before);
    let kept = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(max, _mm512_set1_ps(f32::NEG_INFINITY));
    let base = _mm512_maskz_mov_ps(kept, max);
    store(&mut softmax.run.max, max);
    store(&mut softmax.base, base);
    store(&mut softmax.run.rescale, exp2(_mm512_sub_ps(before, base)));
}

/// The softmax of a block in progress: the constants of the loop over pairs of positions stay in
/// registers.
pub(crate) struct WeightLoop<'a> {
    scale: __m512,
    base: __m512,
    even: __m512,
    odd: __m512,
    /// Mask of the upper half of a word. Hidden from the compiler, which would otherwise merge two
    /// words by a slower permute.
    high: __m512i,
    done: usize,
    softmax: &'a mut OnlineSoftmax,
    scores: &'a Scores,
    packed: &'a mut PackedWeights,
}

impl<'a> WeightLoop<'a> {
    /// Resumes where `softmax` stopped.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn resume(
        softmax: &'a mut OnlineSoftmax,
        scores: &'a Scores,
        packed: &'a mut PackedWeights,
    ) -> Self {
        let [even, odd] = softmax.sums.each_ref().map(|sums| load(sums));
        let (scale, base) = (_mm512_set1_ps(softmax.scale), load(&softmax.base));
        let high = _mm512_set1_epi32(std::hint::black_box(0xffff_0000_u32) as i32);
        Self { scale, base, even, odd, high, done: softmax.done, softmax, scores, packed }
    }

    /// Makes the attention weights of two more pairs of positions, if any are left.
    ///
    /// # Safety
    /// The machine must have AVX-512.
    #[inline(always)]
    pub(crate) unsafe fn step(&mut self) {
        if self.done < CHUNK / 2 {
            for pair in self.done..self.done + 2 {
                // SAFETY: as the caller vouches; pairs are made two at a time.
                let [a, b] = unsafe { self.pair(pair) };
                // SAFETY: as above.
                (self.even, self.odd) = unsafe { (_mm512_add_ps(self.even, a), _mm512_add_ps(self.odd, b)) };
            }
            self.done += 2;
        }
    }

    /// Makes and packs the attention weights of one pair of positions, and returns them in f32.
    ///
    /// # Safety
    /// As for [`step`](Self::step), and `pair` must be less than `CHUNK / 2`.
    #[inline(always)]
    unsafe fn pair(&mut self, pair: usize) -> [__m512; 2] {
        // SAFETY: as the caller vouches.
        unsafe {
            let rows = self.scores.as_ptr().add(2 * pair).cast::<f32>();
            let a = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(rows), self.scale, self.base));
            let b = exp2(_mm512_fmsub_ps(_mm512_loadu_ps(rows.add(LANES)), self.scale, self.base));
            let half = _mm512_set1_epi32(0x8000);
            let low = _mm512_srli_epi32::<16>(_mm512_add_epi32(_mm512_castps_si512(a), half));
            let high = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(b), half), self.high);
            _mm512_storeu_si512(self.packed.as_mut_ptr().add(pair).cast(), _mm512_or_si512(low, high));
            [a, b]
        }
    }

    /// Stores the state, so that a later call resumes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) fn suspend(self) {
        let [even, odd] = &mut self.softmax.sums;
        store(even, self.even);
        store(odd, self.odd);
        self.softmax.done = self.done;
    }
}

/// Makes the remaining attention weights of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn finish_weights(softmax: &mut OnlineSoftmax, scores: &Scores, packed: &mut PackedWeights) {
    let mut weights = WeightLoop::resume(softmax, scores, packed);
    while weights.done < CHUNK / 2 {
        // SAFETY: this function has the target features.
        unsafe { weights.step() };
    }
    weights.suspend();
}

/// Makes all attention weights of a block, summed in the order of `kernel::bf16_dot`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) fn weights_in_bf16_dot_order(
    softmax: &mut OnlineSoftmax,
    scores: &Scores,
    packed: &mut PackedWeights,
) {
    let mut weights = WeightLoop::resume(softmax, scores, packed);
    // Accumulators of two neighboring positions modulo 16.
    let mut one = |place: usize| {
        // SAFETY: this function has the target features.
        let mut pair = |quarter: usize| unsafe { weights.pair((quarter * LANES + place) / 2) };
        (1..CHUNK / LANES).fold(pair(0), |chains, quarter| add_each(chains, pair(quarter)))
    };
    let mut two = |place| add_each(one(place), one(place + 8));
    let mut four = |place| add_each(two(place), two(place + 4));
    [weights.even, weights.odd] = add_each(four(0), four(2));
    weights.done = CHUNK / 2;
    weights.suspend();
}
