//! Dot products of pairs of bf16: lines are put in order, not widened.

use super::{LINE, Lying, line};
use crate::attention::products::{Keys, transposed};
use crate::attention::softmax::{LANES, Packed, Scores};
use crate::attention::soon::Soon;
use crate::chains::{Columns, add_pairs, apart, row_apart};
use std::arch::x86_64::*;
use std::array::from_fn;

/// Products of a head's keys with the queries of the `N` lanes from `from` on.
///
/// # Safety
/// As for [`super::scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn positions<const N: usize>(
    keys: &Keys,
    queries: &[Columns],
    from: usize,
    out: &mut Lying,
) {
    for quarter in 0..4 {
        let mut sums = [_mm512_setzero_ps(); N];
        for (step, queries) in queries.iter().enumerate() {
            let row = |row: usize| keys.base[quarter].wrapping_add(row * keys.stride[quarter] + step * 64);
            // SAFETY: as the caller vouches.
            let words = transposed(from_fn(|n| unsafe { row_apart(line(row(n))) }));
            let mut chains = [[_mm512_setzero_ps(); 2]; N];
            for (word, keys) in words.as_chunks::<2>().0.iter().enumerate() {
                for n in 0..N {
                    for odd in 0..2 {
                        let query = _mm512_set1_epi32(queries.word(odd, word, from + n));
                        chains[n][odd] = add_pairs(chains[n][odd], keys[odd], query);
                    }
                }
            }
            for n in 0..N {
                sums[n] = _mm512_add_ps(sums[n], _mm512_add_ps(chains[n][0], chains[n][1]));
            }
        }
        for n in 0..N {
            let to = out[from + n][quarter * LANES..][..LANES].as_mut_ptr();
            // SAFETY: 16 numbers.
            unsafe { _mm512_storeu_ps(to, sums[n]) };
        }
    }
}

/// Shares of four positions as two rows: those of the even ones, then those of the odd ones.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn open(packed: &Packed, shares: &mut Scores) {
    for (pairs, to) in packed.as_chunks::<2>().0.iter().zip(shares.as_chunks_mut::<2>().0) {
        // SAFETY: 16 words each.
        let [first, second] =
            pairs.each_ref().map(|pair| unsafe { _mm512_loadu_si512(pair.as_ptr().cast()) });
        for (to, words) in to.iter_mut().zip(apart(first, second)) {
            // SAFETY: a row of 16 numbers.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words) };
        }
    }
}

/// Adds the values of positions to the sums of `N` lanes, `W` lines of a row at a time.
///
/// # Safety
/// As for [`super::add`]; positions must come by fours.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn steps<const N: usize, const W: usize>(
    shares: *const f32,
    rows: &[*const u16],
    width: usize,
    sums: &mut [f32],
    soon: &mut Soon,
) {
    for (step, rows) in rows.chunks(LINE).enumerate() {
        for at in (0..width).step_by(W * LINE) {
            // Per parity of positions, lane, line and half of a line.
            let mut chains = [[[[_mm512_setzero_ps(); 2]; W]; N]; 2];
            for (four, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
                for odd in 0..2 {
                    let words: [_; W] = from_fn(|w| {
                        // SAFETY: the caller's rows.
                        let [first, second] = [rows[odd], rows[2 + odd]]
                            .map(|row| unsafe { line(row.wrapping_add(at + w * LINE).cast()) });
                        [_mm512_unpacklo_epi16(second, first), _mm512_unpackhi_epi16(second, first)]
                    });
                    let shares = shares.wrapping_add((step * LINE / 2 + 2 * four + odd) * LANES);
                    for n in 0..N {
                        // SAFETY: shares of 64 positions.
                        let x = _mm512_set1_epi32(unsafe { *shares.add(n).cast() });
                        for w in 0..W {
                            for half in 0..2 {
                                let chain = &mut chains[odd][n][w][half];
                                *chain = add_pairs(*chain, words[w][half], x);
                            }
                        }
                    }
                }
            }
            soon.ask();
            let [even, odd] = chains;
            for n in 0..N {
                for w in 0..W {
                    for half in 0..2 {
                        let to = sums[n * width + at + w * LINE + half * LANES..][..LANES].as_mut_ptr();
                        let sum = _mm512_add_ps(even[n][w][half], odd[n][w][half]);
                        // SAFETY: 16 numbers.
                        unsafe { _mm512_storeu_ps(to, _mm512_add_ps(_mm512_loadu_ps(to), sum)) };
                    }
                }
            }
        }
    }
}
