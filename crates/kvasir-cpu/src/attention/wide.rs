//! The hot ones of [`super::softmax`] in 512-bit vectors: compilers gather across the lanes instead of working along them. The arithmetic is that of the plain
//! functions, operation by operation, but that [`in_pairs`] adds shares up in another order.

use super::pairs::add;
use super::softmax::{self, Entries, Packed, Scores, Sharing, Sight};
use super::view::CHUNK;
use crate::halves::ROUND;
use crate::tile::LANES;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn load(from: &[f32; LANES]) -> __m512 {
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
pub(super) fn exp2(x: __m512) -> __m512 {
    let round = _mm512_set1_ps(ROUND);
    let t = _mm512_add_ps(x, round);
    let f = _mm512_sub_ps(x, _mm512_sub_ps(t, round));
    let [first, rest @ ..] = softmax::TERMS;
    let p = rest.iter().fold(_mm512_set1_ps(first), |p, &c| _mm512_fmadd_ps(p, f, _mm512_set1_ps(c)));
    let scaled = _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32::<23>(_mm512_castps_si512(t)));
    let some = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, _mm512_set1_ps(softmax::TINY));
    _mm512_castsi512_ps(_mm512_maskz_mov_epi32(some, scaled))
}

/// What a lane does not see is less than anything.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
fn hide(scores: &mut Scores, entries: &Entries, sight: &Sight) {
    // SAFETY: 16 integers each.
    let (visible, from) = unsafe {
        (_mm512_loadu_si512(sight.visible.as_ptr().cast()), _mm512_loadu_si512(sight.from.as_ptr().cast()))
    };
    for (row, (&entry, &position)) in scores.iter_mut().zip(entries.entry.iter().zip(&entries.position)) {
        let seen = _mm512_cmplt_epi32_mask(_mm512_set1_epi32(entry), visible)
            & _mm512_cmpge_epi32_mask(_mm512_set1_epi32(position), from);
        let v = _mm512_mask_blend_ps(seen, _mm512_set1_ps(f32::NEG_INFINITY), load(row));
        store(row, v);
    }
}

/// Maxima with a chunk's products, and what that does to the sums so far.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn rise(sharing: &mut Sharing, scores: &mut Scores, entries: &Entries, sight: Option<&Sight>) {
    if let Some(sight) = sight {
        hide(scores, entries, sight);
    }
    let (first, rest) = scores.as_chunks::<4>().0.split_at(1);
    let mut most = first[0].each_ref().map(|row| load(row));
    for rows in rest {
        for (most, row) in most.iter_mut().zip(rows) {
            *most = _mm512_max_ps(load(row), *most);
        }
    }
    let [a, b, c, d] = most;
    risen(sharing, _mm512_max_ps(_mm512_max_ps(a, b), _mm512_max_ps(c, d)));
}

/// Maxima with each lane's largest product.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn risen(sharing: &mut Sharing, largest: __m512) {
    let before = load(&sharing.run.most);
    let most = _mm512_max_ps(_mm512_mul_ps(largest, _mm512_set1_ps(sharing.scale)), before);
    let some = _mm512_cmp_ps_mask::<_CMP_NEQ_UQ>(most, _mm512_set1_ps(f32::NEG_INFINITY));
    let base = _mm512_maskz_mov_ps(some, most);
    store(&mut sharing.run.most, most);
    store(&mut sharing.base, base);
    store(&mut sharing.run.fade, exp2(_mm512_sub_ps(before, base)));
}

/// A block's shares in the making: what each pair of positions needs stays in registers.
pub(super) struct Making<'a> {
    scale: __m512,
    base: __m512,
    even: __m512,
    odd: __m512,
    /// The upper half of a word. Compilers that know it put two words together by a permutation, which costs more than what it stands for.
    high: __m512i,
    done: usize,
    sharing: &'a mut Sharing,
    scores: &'a Scores,
    packed: &'a mut Packed,
}

impl<'a> Making<'a> {
    /// Goes on where `sharing` is.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn go_on(sharing: &'a mut Sharing, scores: &'a Scores, packed: &'a mut Packed) -> Self {
        let [even, odd] = sharing.sums.each_ref().map(|sums| load(sums));
        let (scale, base) = (_mm512_set1_ps(sharing.scale), load(&sharing.base));
        let high = _mm512_set1_epi32(std::hint::black_box(0xffff_0000_u32) as i32);
        Self { scale, base, even, odd, high, done: sharing.done, sharing, scores, packed }
    }

    /// Shares of two more pairs of positions, if there are any.
    ///
    /// # Safety
    /// The machine must have the instructions.
    #[inline(always)]
    pub(super) unsafe fn some(&mut self) {
        if self.done < CHUNK / 2 {
            for pair in self.done..self.done + 2 {
                // SAFETY: as the caller vouches; pairs are made by twos.
                let [a, b] = unsafe { self.pair(pair) };
                // SAFETY: as above.
                (self.even, self.odd) = unsafe { (_mm512_add_ps(self.even, a), _mm512_add_ps(self.odd, b)) };
            }
            self.done += 2;
        }
    }

    /// The shares of a pair, which are packed.
    ///
    /// # Safety
    /// As for [`some`](Self::some), and there must be such a pair.
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

    /// Leaves the rest to be made later.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) fn leave(self) {
        let [even, odd] = &mut self.sharing.sums;
        store(even, self.even);
        store(odd, self.odd);
        self.sharing.done = self.done;
    }
}

/// All that are left of a block's shares.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn rest(sharing: &mut Sharing, scores: &Scores, packed: &mut Packed) {
    let mut making = Making::go_on(sharing, scores, packed);
    while making.done < CHUNK / 2 {
        // SAFETY: this function has the instructions.
        unsafe { making.some() };
    }
    making.leave();
}

/// All of a block's shares, added up in the order of [`super::pairs`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn in_pairs(sharing: &mut Sharing, scores: &Scores, packed: &mut Packed) {
    let mut making = Making::go_on(sharing, scores, packed);
    // Chains of two places.
    let mut one = |place: usize| {
        // SAFETY: this function has the instructions.
        let mut pair = |quarter: usize| unsafe { making.pair((quarter * LANES + place) / 2) };
        (1..CHUNK / LANES).fold(pair(0), |chains, quarter| add(chains, pair(quarter)))
    };
    let mut two = |place| add(one(place), one(place + 8));
    let mut four = |place| add(two(place), two(place + 4));
    [making.even, making.odd] = add(four(0), four(2));
    making.done = CHUNK / 2;
    making.leave();
}
