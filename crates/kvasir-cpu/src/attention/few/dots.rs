//! Dot products of pairs of bf16: lines are put in order, not widened.

use super::numbers::v512::settle;
use super::{LINE, Later, MOST};
use crate::ask::{Near, ask_line};
use crate::attention::products::Keys;
use crate::attention::softmax::{Packed, Scores};
use crate::attention::view::CHUNK;
use crate::chains::{add_pairs, apart, row_apart};
use crate::tile::{LANES, Tile};
use crate::vectors::v512::transposed_by_permutations as transposed;
use std::arch::x86_64::*;
use std::array::from_fn;

/// Reads a line, and asks for another one that is read a head later. What is asked for into the first level, or little ahead, comes half as fast.
///
/// # Safety
/// The machine must have the instructions, and there must be 64 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn line(at: *const u8, later: isize) -> __m512i {
    ask_line(Near::Second, at.wrapping_offset(later));
    // SAFETY: the caller's bytes.
    unsafe { _mm512_loadu_si512(at.cast()) }
}

/// How far behind `now` something lies.
fn behind(now: *const u8, then: *const u8) -> isize {
    (then as isize).wrapping_sub(now as isize)
}

/// Heads whose rows have so many steps of 32 numbers are scored like this.
pub(super) fn takes(steps: usize) -> bool {
    matches!(steps, 2 | 4)
}

/// A lane's query, a row of each of `steps`, as [`scores`] multiplies it: the words of each place of all steps, over and over.
///
/// # Safety
/// The machine must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) unsafe fn turn(steps: &[Tile], row: usize, to: &mut Tile) {
    let line = |n: usize| {
        // SAFETY: a row of 64 bytes.
        row_apart(unsafe { _mm512_loadu_si512(steps[n % steps.len()][row].as_ptr().cast()) })
    };
    for (to, words) in to.iter_mut().zip(transposed(from_fn(line))) {
        // SAFETY: a row of 64 bytes.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), words) };
    }
}

/// Products of a head's keys, of which as many positions are `seen`, with the queries of `lanes` lanes, which go to the rows of `out`.
///
/// # Safety
/// As for [`super::scores`].
pub(super) unsafe fn scores(
    keys: (&Keys, usize),
    later: &Later,
    steps: usize,
    lanes: &[Tile],
    out: &mut [[f32; CHUNK]],
) {
    // SAFETY: as the caller vouches.
    unsafe {
        match steps {
            2 => positions::<2>(keys, later, lanes, out),
            4 => positions::<4>(keys, later, lanes, out),
            _ => unreachable!("steps that it does not take"),
        }
    }
}

/// The same where rows have `S` steps. Steps have chains of their own, so 16 lines in the order of memory are worked on together, whose rows they are
/// or whose steps: where lines are read in another order, memory gives half as much.
///
/// # Safety
/// As for [`super::scores`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn positions<const S: usize>(
    (keys, seen): (&Keys, usize),
    later: &Later,
    lanes: &[Tile],
    out: &mut [[f32; CHUNK]],
) {
    // Once for all quarters: zeros cost as much as sums.
    let mut parts = [[_mm512_setzero_ps(); S]; MOST];
    for quarter in 0..seen.div_ceil(LANES) {
        let (base, stride) = (keys.base[quarter], keys.stride[quarter]);
        let later = behind(base, later.at[quarter]);
        for block in 0..S {
            let first = base.wrapping_add(block * (LANES / S) * stride);
            let rows: [_; LANES] = from_fn(|n| first.wrapping_add(n / S * stride));
            // SAFETY: as the caller vouches.
            let words =
                transposed(from_fn(|n| unsafe { row_apart(line(rows[n].wrapping_add(n % S * 64), later)) }));
            // Chains of two lanes: one lane's wait for each other.
            let (twos, last) = lanes.as_chunks();
            for (two, parts) in twos.iter().zip(parts.as_chunks_mut::<2>().0) {
                for (parts, part) in parts.iter_mut().zip(multiply::<2>(&words, two)) {
                    parts[block] = part;
                }
            }
            if let [last] = last {
                [parts[lanes.len() - 1][block]] = multiply(&words, std::array::from_ref(last));
            }
        }
        for (parts, out) in parts.iter().zip(&mut *out) {
            // SAFETY: 16 numbers.
            unsafe { _mm512_storeu_ps(out[quarter * LANES..][..LANES].as_mut_ptr(), add_steps(parts)) };
        }
    }
}

/// One step's products of 16 rows, word by word, with the queries of `N` lanes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn multiply<const N: usize>(words: &[__m512i; LANES], queries: &[Tile; N]) -> [__m512; N] {
    let mut chains = [[_mm512_setzero_ps(); N]; 2];
    for (i, words) in words.as_chunks::<2>().0.iter().enumerate() {
        for odd in 0..2 {
            for n in 0..N {
                // SAFETY: 16 words.
                let query = unsafe { _mm512_loadu_si512(queries[n][2 * i + odd].as_ptr().cast()) };
                chains[odd][n] = add_pairs(chains[odd][n], words[odd], query);
            }
        }
    }
    let [mut sums, odd] = chains;
    for n in 0..N {
        sums[n] = _mm512_add_ps(sums[n], odd[n]);
    }
    sums
}

/// Sums of steps, in order, of 16 rows: each of `parts` has some rows' steps, row by row.
#[inline]
#[target_feature(enable = "avx512f")]
fn add_steps<const S: usize>(parts: &[__m512; S]) -> __m512 {
    let zero = _mm512_setzero_ps();
    if S == 2 {
        let first = _mm512_shuffle_ps::<0x88>(parts[0], parts[1]);
        let second = _mm512_shuffle_ps::<0xdd>(parts[0], parts[1]);
        let rows = _mm512_setr_epi32(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
        return _mm512_permutexvar_ps(rows, _mm512_add_ps(_mm512_add_ps(zero, first), second));
    }
    let (a, b) = (_mm512_unpacklo_ps(parts[0], parts[1]), _mm512_unpacklo_ps(parts[2], parts[3]));
    let (c, d) = (_mm512_unpackhi_ps(parts[0], parts[1]), _mm512_unpackhi_ps(parts[2], parts[3]));
    let steps = [
        _mm512_shuffle_ps::<0x44>(a, b),
        _mm512_shuffle_ps::<0xee>(a, b),
        _mm512_shuffle_ps::<0x44>(c, d),
        _mm512_shuffle_ps::<0xee>(c, d),
    ];
    let rows = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_ps(rows, steps.into_iter().fold(zero, |sum, step| _mm512_add_ps(sum, step)))
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

/// Adds the values of positions to the sums of some lanes, `N` at a time, `W` lines of a row at a time.
///
/// # Safety
/// As for [`super::add`]; positions must come by fours, and lanes by `N`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn steps<const N: usize, const W: usize>(
    shares: *const f32,
    rows: &[*const u16],
    later: &Later,
    width: usize,
    sums: &mut [f32],
) {
    let first: [_; 4] = from_fn(|quarter| rows.get(quarter * LANES).copied().unwrap_or(std::ptr::null()));
    for (step, rows) in rows.chunks(LINE).enumerate() {
        for at in (0..width).step_by(W * LINE) {
            for (group, sums) in sums.chunks_exact_mut(N * width).enumerate() {
                // Per parity of positions, lane, line and half of a line.
                let mut chains = [[[[_mm512_setzero_ps(); 2]; W]; N]; 2];
                for (four, rows) in rows.as_chunks::<4>().0.iter().enumerate() {
                    let quarter = (step * LINE + 4 * four) / LANES;
                    let later = behind(first[quarter].cast(), later.at[quarter]);
                    let shares = shares.wrapping_add((step * LINE / 2 + 2 * four) * LANES + group * N);
                    let mut lines = [[_mm512_setzero_si512(); W]; 4];
                    for (row, lines) in rows.iter().zip(&mut lines) {
                        for w in 0..W {
                            // SAFETY: the caller's rows.
                            lines[w] = unsafe { line(row.wrapping_add(at + w * LINE).cast(), later) };
                        }
                    }
                    for odd in 0..2 {
                        for n in 0..N {
                            // SAFETY: shares of 64 positions.
                            let x = _mm512_set1_epi32(unsafe { *shares.add(odd * LANES + n).cast() });
                            for w in 0..W {
                                let (first, second) = (lines[odd][w], lines[2 + odd][w]);
                                let [low, high] = &mut chains[odd][n][w];
                                *low = add_pairs(*low, _mm512_unpacklo_epi16(second, first), x);
                                *high = add_pairs(*high, _mm512_unpackhi_epi16(second, first), x);
                            }
                        }
                    }
                }
                settle(chains, at, width, sums);
            }
        }
    }
}
