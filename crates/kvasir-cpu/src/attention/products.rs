//! The two products of attention, on tiles of bf16: keys times queries, shares times values.

use super::softmax::{LANES, Scores};
use super::view::CHUNK;
use crate::Level;
use crate::dense::dot_step;
use crate::level::per_level;

/// Keys of a chunk: four times 16 rows of bf16, each padded to whole steps of 32.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) base: [*const u8; 4],
    /// Bytes between the rows of each 16.
    pub(crate) stride: [usize; 4],
}

#[inline(always)]
fn scores_body(keys: &[Keys], queries: *const u8, steps: usize, out: &mut Scores) {
    for (r, rows) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *rows = [[0.0; LANES]; 4];
        for (head, keys) in keys.iter().enumerate() {
            let (base, stride) = (keys.base[r / 4], keys.stride[r / 4]);
            for step in 0..steps {
                let a = std::array::from_fn(|n| base.wrapping_add((r % 4 * 4 + n) * stride + step * 64));
                // SAFETY: the caller of `scores` vouches for both.
                unsafe { dot_step::<4>(a, queries.add((head * steps + step) * 1024), rows) };
            }
        }
    }
}

per_level! { scores_by_vectors(keys: &[Keys], queries: *const u8, steps: usize, out: &mut Scores) => scores_body }

/// Products of a chunk's keys with 16 lanes of queries, summed over heads: each head's queries are zeros in the columns of the others' lanes.
///
/// # Safety
/// `queries` must hold `steps` tiles for each of `keys`, those 64 rows of as many steps; at level [`Level::Amx`] tiles must be configured.
pub(crate) unsafe fn scores(level: Level, keys: &[Keys], queries: *const u8, steps: usize, out: &mut Scores) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Amx {
        use crate::amx::{tile_dot_bf16, tile_load, tile_store, tile_zero};
        // SAFETY: as the caller vouches.
        unsafe {
            tile_zero!(0);
            tile_zero!(1);
            tile_zero!(2);
            tile_zero!(3);
            for (head, keys) in keys.iter().enumerate() {
                for step in 0..steps {
                    let at = step * 64;
                    tile_load!(7, queries.add((head * steps + step) * 1024), 64);
                    tile_load!(4, keys.base[0].wrapping_add(at), keys.stride[0]);
                    tile_dot_bf16!(0, 4, 7);
                    tile_load!(5, keys.base[1].wrapping_add(at), keys.stride[1]);
                    tile_dot_bf16!(1, 5, 7);
                    tile_load!(6, keys.base[2].wrapping_add(at), keys.stride[2]);
                    tile_dot_bf16!(2, 6, 7);
                    tile_load!(4, keys.base[3].wrapping_add(at), keys.stride[3]);
                    tile_dot_bf16!(3, 4, 7);
                }
            }
            let out = out.as_mut_ptr().cast::<u8>();
            tile_store!(0, out);
            tile_store!(1, out.add(1024));
            tile_store!(2, out.add(2048));
            tile_store!(3, out.add(3072));
        }
        return;
    }
    scores_by_vectors(level, keys, queries, steps, out);
}

#[inline(always)]
fn values_body(shares: *const u8, lanes: usize, values: *const u8, out: &mut [[[f32; LANES]; LANES]]) {
    for (t, tile) in out.iter_mut().enumerate() {
        for (l, lanes) in tile.as_chunks_mut::<4>().0.iter_mut().enumerate().take(lanes.div_ceil(4)) {
            *lanes = [[0.0; LANES]; 4];
            for step in 0..CHUNK / 32 {
                let a = std::array::from_fn(|n| shares.wrapping_add(step * 1024 + (l * 4 + n) * 64));
                // SAFETY: the caller of `values` vouches for both.
                unsafe { dot_step::<4>(a, values.add((t * 2 + step) * 1024), lanes) };
            }
        }
    }
}

per_level! { values_by_vectors(shares: *const u8, lanes: usize, values: *const u8, out: &mut [[[f32; LANES]; LANES]]) => values_body }

/// Products of the first `lanes` of 16 lanes of shares with a chunk's values, 16 places of the values to a tile.
///
/// # Safety
/// `shares` must hold two tiles, `values` two per tile of `out`; at level [`Level::Amx`] tiles must be configured, those of shares and products
/// with at least `lanes` rows.
pub(crate) unsafe fn values(
    level: Level,
    shares: *const u8,
    lanes: usize,
    values: *const u8,
    out: &mut [[[f32; LANES]; LANES]],
) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Amx {
        use crate::amx::{tile_dot_bf16, tile_load, tile_store, tile_zero};
        // SAFETY: as the caller vouches.
        unsafe {
            tile_load!(4, shares, 64);
            tile_load!(5, shares.add(1024), 64);
            for (t, pair) in out.chunks_mut(2).enumerate() {
                let b = values.add(t * 4096);
                tile_zero!(0);
                tile_load!(6, b, 64);
                tile_dot_bf16!(0, 4, 6);
                if pair.len() == 2 {
                    tile_zero!(1);
                    tile_load!(7, b.add(2048), 64);
                    tile_dot_bf16!(1, 4, 7);
                }
                tile_load!(6, b.add(1024), 64);
                tile_dot_bf16!(0, 5, 6);
                tile_store!(0, pair.as_mut_ptr().cast::<u8>());
                if pair.len() == 2 {
                    tile_load!(7, b.add(3072), 64);
                    tile_dot_bf16!(1, 5, 7);
                    tile_store!(1, pair.as_mut_ptr().cast::<u8>().add(1024));
                }
            }
        }
        return;
    }
    values_by_vectors(level, shares, lanes, values, out);
}

/// Puts pairs of shares (a row per pair of positions) into two tiles: a row per lane, 32 positions each.
pub(crate) fn pack_shares(
    level: Level,
    packed: &[[u32; LANES]; CHUNK / 2],
    tiles: [&mut [[u32; LANES]; LANES]; 2],
) {
    for (tile, part) in tiles.into_iter().zip(packed.as_chunks::<LANES>().0) {
        #[cfg(target_arch = "x86_64")]
        if level >= Level::Avx512Vnni {
            // SAFETY: the level was found on this machine.
            unsafe { transpose(part, tile) };
            continue;
        }
        let _ = level;
        for (i, row) in part.iter().enumerate() {
            row.iter().enumerate().for_each(|(lane, &v)| tile[lane][i] = v);
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn transpose(from: &[[u32; LANES]; LANES], to: &mut [[u32; LANES]; LANES]) {
    use std::arch::x86_64::*;
    // SAFETY: 16 rows of 64 bytes.
    let r: [__m512i; 16] = std::array::from_fn(|i| unsafe { _mm512_loadu_si512(from[i].as_ptr().cast()) });
    let mut t = r;
    for i in 0..8 {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    let mut q = t;
    for i in 0..4 {
        q[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        q[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        q[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        q[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for j in 0..4 {
        let a = _mm512_shuffle_i32x4::<0x88>(q[j], q[4 + j]);
        let b = _mm512_shuffle_i32x4::<0xdd>(q[j], q[4 + j]);
        let c = _mm512_shuffle_i32x4::<0x88>(q[8 + j], q[12 + j]);
        let d = _mm512_shuffle_i32x4::<0xdd>(q[8 + j], q[12 + j]);
        let rows = [
            (j, _mm512_shuffle_i32x4::<0x88>(a, c)),
            (j + 4, _mm512_shuffle_i32x4::<0x88>(b, d)),
            (j + 8, _mm512_shuffle_i32x4::<0xdd>(a, c)),
            (j + 12, _mm512_shuffle_i32x4::<0xdd>(b, d)),
        ];
        for (i, row) in rows {
            // SAFETY: a row of 64 bytes.
            unsafe { _mm512_storeu_si512(to[i].as_mut_ptr().cast(), row) };
        }
    }
}

/// Puts rows of values (of positions 2i and 2i + 1) into row i of their step's tiles, pairs of positions to a word.
#[inline(always)]
fn interleave_body(rows: &[*const u16; CHUNK], width: usize, tiles: &mut [[[u32; LANES]; LANES]]) {
    for (pair, at) in rows.as_chunks::<2>().0.iter().enumerate() {
        // SAFETY: the caller of `interleave` vouches for the rows.
        let [a, b] = at.map(|row| unsafe { std::slice::from_raw_parts(row, width) });
        for (t, (a, b)) in a.chunks(LANES).zip(b.chunks(LANES)).enumerate() {
            let to = &mut tiles[t * 2 + pair / LANES][pair % LANES];
            for ((to, &a), &b) in to.iter_mut().zip(a).zip(b) {
                *to = u32::from(a) | u32::from(b) << 16;
            }
        }
    }
}

per_level! { interleave_rows(rows: &[*const u16; CHUNK], width: usize, tiles: &mut [[[u32; LANES]; LANES]]) => interleave_body }

/// A chunk's values become tiles.
///
/// # Safety
/// Each of `rows` must point at `width` numbers.
pub(crate) unsafe fn interleave(
    level: Level,
    rows: &[*const u16; CHUNK],
    width: usize,
    tiles: &mut [[[u32; LANES]; LANES]],
) {
    interleave_rows(level, rows, width, tiles);
}
