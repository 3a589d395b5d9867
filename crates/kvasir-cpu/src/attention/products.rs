//! The two products of attention, on tiles of bf16: keys times queries, shares times values.

use super::scratch::{Products, Tile};
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
/// `during` is run beside every product, with the head's number.
///
/// # Safety
/// `queries` must hold `steps` tiles for each of `keys`, those 64 rows of as many steps; at level [`Level::Amx`] tiles must be configured.
pub(crate) unsafe fn scores(
    level: Level,
    keys: &[Keys],
    queries: *const u8,
    steps: usize,
    out: &mut Scores,
    mut during: impl FnMut(usize),
) {
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
                    during(head);
                    tile_load!(5, keys.base[1].wrapping_add(at), keys.stride[1]);
                    tile_dot_bf16!(1, 5, 7);
                    during(head);
                    tile_load!(6, keys.base[2].wrapping_add(at), keys.stride[2]);
                    tile_dot_bf16!(2, 6, 7);
                    during(head);
                    tile_load!(4, keys.base[3].wrapping_add(at), keys.stride[3]);
                    tile_dot_bf16!(3, 4, 7);
                    during(head);
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
fn values_body(shares: *const u8, lanes: usize, values: *const u8, out: &mut Products) {
    for (l, lanes) in out.as_chunks_mut::<4>().0.iter_mut().enumerate().take(lanes.div_ceil(4)) {
        *lanes = [[0.0; LANES]; 4];
        for step in 0..CHUNK / 32 {
            let a = std::array::from_fn(|n| shares.wrapping_add(step * 1024 + (l * 4 + n) * 64));
            // SAFETY: the caller of `values` vouches for both.
            unsafe { dot_step::<4>(a, values.add(step * 1024), lanes) };
        }
    }
}

per_level! { values_by_vectors(shares: *const u8, lanes: usize, values: *const u8, out: &mut Products) => values_body }

/// Products of the first `lanes` of 16 lanes of shares with a chunk's values, 16 places of the values to a tile. Hands them to `add` with the
/// number of the first, as they come: while the tile unit works on the next ones. `during` is run beside every product.
///
/// # Safety
/// `shares` must hold two tiles, `values` two per tile of `out`; at level [`Level::Amx`] tiles must be configured, those of shares and products
/// with at least `lanes` rows.
pub(crate) unsafe fn values(
    level: Level,
    shares: *const u8,
    lanes: usize,
    values: *const u8,
    out: &mut [Products],
    mut add: impl FnMut(usize, &[Products]),
    mut during: impl FnMut(),
) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Amx {
        use crate::amx::{tile_dot_bf16, tile_load, tile_store, tile_zero};
        const GROUP: usize = 4;
        /// Shares times one half of up to four tiles of values, 2 KB apart.
        macro_rules! take {
            ($shares:literal, $values:expr, $n:expr, $first:expr) => {{
                let (values, n): (*const u8, usize) = ($values, $n);
                take!(one 0, $shares, 6, values, $first);
                if n > 1 {
                    take!(one 1, $shares, 7, values.add(2048), $first);
                }
                if n > 2 {
                    take!(one 2, $shares, 6, values.add(4096), $first);
                }
                if n > 3 {
                    take!(one 3, $shares, 7, values.add(6144), $first);
                }
            }};
            (one $to:literal, $shares:literal, $b:literal, $at:expr, $first:expr) => {
                if $first {
                    tile_zero!($to);
                }
                tile_load!($b, $at, 64);
                tile_dot_bf16!($to, $shares, $b);
                during();
            };
        }
        // SAFETY: as the caller vouches.
        unsafe {
            tile_load!(4, shares, 64);
            tile_load!(5, shares.add(1024), 64);
        }
        // Four at a time: a product takes as long as three others to be there.
        for first in (0..out.len()).step_by(GROUP) {
            let (b, n) = (values.wrapping_add(first * 2048), (out.len() - first).min(GROUP));
            // SAFETY: as the caller vouches.
            unsafe {
                take!(4, b, n, true);
                take!(5, b.add(1024), n, false);
                let to = out[first..].as_mut_ptr();
                tile_store!(0, to);
                if n > 1 {
                    tile_store!(1, to.add(1));
                }
                if n > 2 {
                    tile_store!(2, to.add(2));
                }
                if n > 3 {
                    tile_store!(3, to.add(3));
                }
            }
            if first > 0 {
                add(first - GROUP, &out[first - GROUP..first]);
            }
        }
        let last = (out.len().max(1) - 1) / GROUP * GROUP;
        return add(last, &out[last..]);
    }
    for (t, out) in out.iter_mut().enumerate() {
        values_by_vectors(level, shares, lanes, values.wrapping_add(t * 2048), out);
        add(t, std::slice::from_ref(out));
    }
}

/// Rows become columns.
pub(crate) fn transpose(level: Level, from: &Tile, to: &mut Tile) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Avx512Vnni {
        // SAFETY: the level was found on this machine.
        return unsafe { transpose_wide(from, to) };
    }
    let _ = level;
    for (i, row) in from.iter().enumerate() {
        row.iter().enumerate().for_each(|(lane, &v)| to[lane][i] = v);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn transpose_wide(from: &Tile, to: &mut Tile) {
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
