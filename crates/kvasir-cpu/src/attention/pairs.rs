//! The two products of attention in dot products of pairs of bf16, in an order of their own (decision 0113): nothing is widened, turned or put apart.
//!
//! A score is 16 chains, one for each pair of a step of 32 numbers, over the steps of a row; the chains are added up by halves, the first eight and the last,
//! then four and four. A chunk's sum of shares likewise is 16 chains, one for each place of 16 positions. A sum of values is one chain over all positions. Of a
//! pair the later number comes first, as the instruction has it. Here is how many lanes do it, a column each; [`few`](super::few) takes rows as they lie.

use super::products::Keys;
use super::softmax::Scores;
use crate::chains::add_pairs;
use crate::tile::LANES;
use std::arch::x86_64::*;
use std::array::from_fn;

/// The sums of four vectors' numbers, or whatever two numbers come to: by halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(super) fn by_halves([a, b, c, d]: [__m512; 4], of: impl Fn(__m512, __m512) -> __m512) -> [f32; 4] {
    let eight = |a, b| of(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b));
    let (ab, cd) = (eight(a, b), eight(c, d));
    let four = of(_mm512_shuffle_f32x4::<0x88>(ab, cd), _mm512_shuffle_f32x4::<0xdd>(ab, cd));
    let two = of(four, _mm512_permute_ps::<0x4e>(four));
    let one = of(two, _mm512_permute_ps::<0xb1>(two));
    let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    let mut sums = [0.0; 4];
    // SAFETY: four numbers.
    unsafe {
        _mm_storeu_ps(sums.as_mut_ptr(), _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, one)));
    }
    sums
}

/// Rows that are multiplied at once.
const AT_ONCE: usize = 4;

/// Each with its partner.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn add<const N: usize>(a: [__m512; N], b: [__m512; N]) -> [__m512; N] {
    from_fn(|n| _mm512_add_ps(a[n], b[n]))
}

/// [`super::products::scores`].
///
/// # Safety
/// As there, and the machine must have the instructions.
pub(super) unsafe fn scores(keys: &Keys, queries: *const u8, steps: usize, out: &mut Scores) {
    // SAFETY: as the caller vouches.
    unsafe {
        match steps {
            2 => scores_of::<2>(keys, queries, steps, out),
            4 => scores_of::<4>(keys, queries, steps, out),
            _ => scores_of::<0>(keys, queries, steps, out),
        }
    }
}

/// The same where rows have `S` steps, or `steps` if that is none.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn scores_of<const S: usize>(keys: &Keys, queries: *const u8, steps: usize, out: &mut Scores) {
    let steps = if S == 0 { steps } else { S };
    for (four, out) in out.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate() {
        let (quarter, row) = (four * AT_ONCE / LANES, four * AT_ONCE % LANES);
        let (base, stride) = (keys.base[quarter], keys.stride[quarter]);
        let rows: [_; AT_ONCE] = from_fn(|n| base.wrapping_add((row + n) * stride));
        // The chains of a place, of all lanes.
        let one = |place: usize| {
            let mut chains = [_mm512_setzero_ps(); AT_ONCE];
            for step in 0..steps {
                // SAFETY: a row of the caller's tile, and a word of each of its rows.
                unsafe {
                    let lanes = _mm512_loadu_si512(queries.wrapping_add(step * 1024 + place * 64).cast());
                    for n in 0..AT_ONCE {
                        let word = rows[n].wrapping_add(step * 64 + place * 4).cast::<i32>().read_unaligned();
                        chains[n] = add_pairs(chains[n], lanes, _mm512_set1_epi32(word));
                    }
                }
            }
            chains
        };
        let two = |place| add(one(place), one(place + 8));
        let four = |place| add(two(place), two(place + 4));
        let eight = |place| add(four(place), four(place + 2));
        for (out, sum) in out.iter_mut().zip(add(eight(0), eight(1))) {
            // SAFETY: 16 numbers.
            unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
        }
    }
}

/// [`super::products::values`] of one chunk.
///
/// # Safety
/// As there, and the machine must have the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
pub(super) unsafe fn values(
    (shares, values): super::products::Shared,
    sums: &mut [f32],
    width: usize,
    mut during: impl FnMut(),
) {
    let lanes = sums.len() / width;
    for at in (0..width).step_by(2 * LANES) {
        let tiles = values.wrapping_add(at / LANES * 2048);
        let mut lane = 0;
        while lane < lanes {
            let (left, shares) = (lanes - lane, shares.wrapping_add(lane * 64));
            let sums = sums[lane * width + at..].as_mut_ptr();
            // SAFETY: two tiles of shares, two for each 16 places of the values, and a row of sums for each lane.
            lane += unsafe {
                match left {
                    8.. => two_tiles::<8>(shares, tiles, sums, width),
                    4.. => two_tiles::<4>(shares, tiles, sums, width),
                    _ => two_tiles::<1>(shares, tiles, sums, width),
                }
            };
        }
        during();
        during();
    }
}

/// Adds 32 places of a chunk's values to the sums of `N` lanes; how many that were.
///
/// # Safety
/// There must be two tiles of shares, two for each 16 places of the values, and sums of `N` lanes, `width` apart.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn two_tiles<const N: usize>(
    shares: *const u8,
    values: *const u8,
    sums: *mut f32,
    width: usize,
) -> usize {
    let place = |n: usize, tile: usize| sums.wrapping_add(n * width + tile * LANES);
    // SAFETY: as the caller vouches.
    unsafe {
        let mut chains: [[__m512; 2]; N] = from_fn(|n| from_fn(|tile| _mm512_loadu_ps(place(n, tile))));
        for pair in 0..2 * LANES {
            let (step, row) = (pair / LANES * 1024, pair % LANES);
            let two: [_; 2] =
                from_fn(|tile| _mm512_loadu_si512(values.wrapping_add(tile * 2048 + step + row * 64).cast()));
            for n in 0..N {
                let word = shares.wrapping_add(step + n * 64 + row * 4).cast::<i32>().read_unaligned();
                let share = _mm512_set1_epi32(word);
                for tile in 0..2 {
                    chains[n][tile] = add_pairs(chains[n][tile], two[tile], share);
                }
            }
        }
        for n in 0..N {
            for tile in 0..2 {
                _mm512_storeu_ps(place(n, tile), chains[n][tile]);
            }
        }
    }
    N
}
