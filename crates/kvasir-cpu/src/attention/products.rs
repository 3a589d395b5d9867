//! The two products of attention, on tiles of bf16: keys times queries, shares times values.

use super::scratch::{Products, Tile};
use super::softmax::{LANES, Scores};
use super::view::CHUNK;
use crate::Level;
use crate::chains::{Columns, Rows, multiply};
use crate::dense::dot_step;
use crate::level::per_level;

/// Keys of a chunk: four times 16 rows of bf16, each padded to whole steps of 32.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) base: [*const u8; 4],
    /// Bytes between the rows of each 16.
    pub(crate) stride: [usize; 4],
}

/// # Safety
/// As for [`scores`].
unsafe fn scores_by_vectors(level: Level, keys: &[Keys], queries: *const u8, steps: usize, out: &mut Scores) {
    let (mut rows, mut columns) = (Rows::NONE, Columns::NONE);
    *out = [[0.0; LANES]; CHUNK];
    for (head, keys) in keys.iter().enumerate() {
        for step in 0..steps {
            // SAFETY: as the caller vouches.
            unsafe { columns.open(level, queries.add((head * steps + step) * 1024)) };
            for (n, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
                // SAFETY: as the caller vouches.
                unsafe { rows.open(level, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
                multiply(level, &rows, &columns, out);
            }
        }
    }
}

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
    // SAFETY: as the caller vouches.
    unsafe { scores_by_vectors(level, keys, queries, steps, out) };
}

/// Lanes that are not worth the work on all 16.
const FEW: usize = 4;

#[inline(always)]
fn few_values_body(shares: *const u8, values: *const u8, out: &mut Products) {
    let Some(lanes) = out.first_chunk_mut::<FEW>() else { return };
    *lanes = [[0.0; LANES]; FEW];
    for step in 0..CHUNK / 32 {
        let a = std::array::from_fn(|n| shares.wrapping_add(step * 1024 + n * 64));
        // SAFETY: the caller of `values` vouches for both.
        unsafe { dot_step::<FEW>(a, values.wrapping_add(step * 1024), lanes) };
    }
}

per_level! { few_values(shares: *const u8, values: *const u8, out: &mut Products) => few_values_body }

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
    let (mut rows, mut columns) = ([Rows::NONE; CHUNK / 32], Columns::NONE);
    if lanes > FEW {
        for (step, rows) in rows.iter_mut().enumerate() {
            // SAFETY: as the caller vouches.
            unsafe { rows.open(level, shares.wrapping_add(step * 1024), 64) };
        }
    }
    for (t, out) in out.iter_mut().enumerate() {
        let values = values.wrapping_add(t * 2048);
        if lanes > FEW {
            *out = [[0.0; LANES]; LANES];
            for (step, rows) in rows.iter().enumerate() {
                // SAFETY: as the caller vouches.
                unsafe { columns.open(level, values.wrapping_add(step * 1024)) };
                multiply(level, rows, &columns, out);
            }
        } else {
            few_values(level, shares, values, out);
        }
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
