//! Numbers of 32 bits: each line is widened once for all lanes.

use super::{LINE, Later, Lying, settle};
use crate::ask::{Near, ask_tile};
use crate::attention::products::{Keys, transposed};
use crate::attention::softmax::{LANES, Packed, Scores};
use crate::chains::Columns;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Products of a head's keys with the queries of the `N` lanes from `from` on.
///
/// # Safety
/// As for [`super::scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn positions<const N: usize>(
    keys: &Keys,
    later: &Later,
    queries: &[Columns],
    from: usize,
    out: &mut Lying,
) {
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    for quarter in 0..4 {
        let mut sums = [_mm512_setzero_ps(); N];
        for (step, queries) in queries.iter().enumerate() {
            let row = |row: usize| keys.base[quarter].wrapping_add(row * keys.stride[quarter] + step * 64);
            let next = keys.base.get(quarter + 1).copied().unwrap_or(later.at[0]);
            // SAFETY: as the caller vouches.
            let pairs = unsafe {
                ask_tile(Near::First, next.wrapping_add(step * 1024));
                transposed(from_fn(|n| _mm512_loadu_si512(row(n).cast())))
            };
            let mut chains = [[_mm512_setzero_ps(); 2]; N];
            for (pair, keys) in pairs.into_iter().enumerate() {
                let keys = [_mm512_slli_epi32::<16>(keys), _mm512_and_si512(keys, high)];
                for n in 0..N {
                    for odd in 0..2 {
                        let query = _mm512_set1_ps(queries.number(odd, pair, from + n));
                        chains[n][odd] =
                            _mm512_fmadd_ps(_mm512_castsi512_ps(keys[odd]), query, chains[n][odd]);
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

/// Shares as numbers, a row per position.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn open(packed: &Packed, shares: &mut Scores) {
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    for (pair, to) in packed.iter().zip(shares.as_chunks_mut::<2>().0) {
        // SAFETY: 16 words; two rows of 16 numbers.
        unsafe {
            let pair = _mm512_loadu_si512(pair.as_ptr().cast());
            _mm512_storeu_si512(to[0].as_mut_ptr().cast(), _mm512_slli_epi32::<16>(pair));
            _mm512_storeu_si512(to[1].as_mut_ptr().cast(), _mm512_and_si512(pair, high));
        }
    }
}

/// Adds the values of positions to the sums of `N` lanes, `W` lines of a row at a time. What is read a head later is asked for into the second level.
///
/// # Safety
/// As for [`super::add`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn steps<const N: usize, const W: usize>(
    shares: *const f32,
    rows: &[*const u16],
    later: &Later,
    width: usize,
    sums: &mut [f32],
) {
    let zero = _mm512_setzero_si512();
    // In the order of memory, whatever the order of what is worked on.
    let mut asked = later.parts(width / (W * LINE));
    for (step, rows) in rows.chunks(LINE).enumerate() {
        for at in (0..width).step_by(W * LINE) {
            // Per parity of positions, lane, line and half of a line.
            let mut chains = [[[[_mm512_setzero_ps(); 2]; W]; N]; 2];
            for (half, rows) in rows.chunks(LANES).enumerate() {
                let mut ask = asked.next().unwrap_or(later.at[0]);
                for (pair, rows) in rows.as_chunks::<2>().0.iter().enumerate() {
                    for odd in 0..2 {
                        let lines: [_; W] = from_fn(|w| {
                            // SAFETY: a hint, whatever the address; the caller's rows.
                            let v = unsafe {
                                _mm_prefetch::<_MM_HINT_T1>(ask.wrapping_add(w * 64).cast());
                                _mm512_loadu_si512(rows[odd].wrapping_add(at + w * LINE).cast())
                            };
                            [_mm512_unpacklo_epi16(zero, v), _mm512_unpackhi_epi16(zero, v)]
                        });
                        ask = ask.wrapping_add(W * 64);
                        let row = step * LINE + half * LANES + 2 * pair + odd;
                        let shares = shares.wrapping_add(row * LANES);
                        for n in 0..N {
                            // SAFETY: shares of 64 positions.
                            let x = _mm512_set1_ps(unsafe { *shares.add(n) });
                            for w in 0..W {
                                for half in 0..2 {
                                    let chain = &mut chains[odd][n][w][half];
                                    *chain = _mm512_fmadd_ps(_mm512_castsi512_ps(lines[w][half]), x, *chain);
                                }
                            }
                        }
                    }
                }
            }
            settle(chains, at, width, sums);
        }
    }
}
