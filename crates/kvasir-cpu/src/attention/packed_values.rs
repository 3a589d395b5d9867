//! V packed into AMX tiles (VNNI layout); packing is software-pipelined with the GEMMs of the
//! previous head.
//!
//! Two V rows of neighboring positions are interleaved: a word holds the pair of bf16 that one dot
//! product consumes. A few row pairs are packed beside each tile product, so that the memory
//! latency of V is hidden behind it.
//!
//! Unpacking within 128-bit lanes permutes the columns of the output O (`place`).
//! `unpermute_scaled` undoes this when it writes `O * factor`.

use crate::attention::layer::HeadShape;
use crate::attention::work::CHUNKS_AT_ONCE;
use crate::gemm::bf16::operands::OperandB;
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, Tile};
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::rows::CHUNK;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::prefetch::ranges::PrefetchRanges;

/// Row pairs packed beside one product of the previous head.
const PAIRS_PER_STEP: usize = 2;
/// Prefetch distance in bytes: within a 4 KB page, where it also triggers the hardware prefetcher.
const AHEAD: usize = 2048;

/// V tiles of one head, and of the next head or the next chunk.
#[derive(Default)]
pub(crate) struct PackedValues {
    pub(crate) tiles: [AlignedVec<Tile>; CHUNKS_AT_ONCE],
    /// The first tiles widened to f32, where operands are widened.
    pub(crate) widened: Vec<OperandB>,
    /// Packing of a chunk's V for the first head, beside the products of its keys.
    pub(crate) packing: Option<ValuePacking>,
}

impl PackedValues {
    /// The padding of V beyond the head dimension stays zero.
    pub(crate) fn reshape(&mut self, shape: HeadShape) {
        for tiles in &mut self.tiles {
            tiles.clear();
            tiles.grow(shape.value_width / LANES * 2);
        }
    }

    /// Takes the tiles `place` to pack one head's V rows of `width` numbers into them.
    pub(crate) fn start(&mut self, place: usize, rows: [*const u16; CHUNK], width: usize) -> ValuePacking {
        let tiles = std::mem::take(&mut self.tiles[place]);
        ValuePacking { rows, width, tiles, done: 0, prefetches: PrefetchRanges::default() }
    }

    /// Finishes the packing beside the products of keys, if there is any, into the tiles `place`.
    ///
    /// # Safety
    /// As for [`ValuePacking::step`].
    pub(crate) unsafe fn finish(&mut self, isa: Isa, place: usize) {
        if let Some(packing) = &mut self.packing {
            // SAFETY: as the caller vouches.
            unsafe { packing.finish(isa) };
            std::mem::swap(&mut self.tiles[place], &mut packing.tiles);
        }
    }
}

/// One head's V rows of a chunk on their way into tiles, a few rows at a time while the previous
/// head is multiplied.
pub(crate) struct ValuePacking {
    /// Address of each position's V row.
    rows: [*const u16; CHUNK],
    /// Head dimension of V.
    width: usize,
    pub(crate) tiles: AlignedVec<Tile>,
    /// Row pairs that are packed.
    done: usize,
    /// What to prefetch meanwhile.
    pub(crate) prefetches: PrefetchRanges,
}

impl ValuePacking {
    /// Nothing to pack, only a prefetch.
    pub(crate) fn only_prefetch(prefetches: PrefetchRanges) -> Self {
        let (rows, tiles) = ([std::ptr::null(); CHUNK], AlignedVec::new());
        Self { rows, width: 0, tiles, done: CHUNK / 2, prefetches }
    }

    /// Whether rows are left to pack.
    #[inline(always)]
    pub(crate) fn is_unfinished(&self) -> bool {
        self.done < CHUNK / 2
    }

    /// Packs a few more row pairs and issues the next prefetches.
    ///
    /// # Safety
    /// Rows that are not packed yet must point at `width` numbers each.
    #[inline(always)]
    pub(crate) unsafe fn step(&mut self, isa: Isa) {
        self.prefetches.prefetch();
        let pairs = self.rows.as_chunks::<2>().0;
        let end = pairs.len().min(self.done + PAIRS_PER_STEP);
        if self.done < end {
            // SAFETY: the caller's rows.
            unsafe { interleave(isa, &pairs[self.done..end], self.done, self.width, &mut self.tiles) };
            self.done = end;
        }
    }

    /// Packs the remaining rows.
    ///
    /// # Safety
    /// As for [`step`](Self::step).
    pub(crate) unsafe fn finish(&mut self, isa: Isa) {
        let pairs = self.rows.as_chunks::<2>().0;
        // SAFETY: the caller's rows.
        unsafe { interleave(isa, &pairs[self.done..], self.done, self.width, &mut self.tiles) };
        self.done = pairs.len();
    }
}

/// Numbers of a V row that fill one row of two neighboring tiles.
const PAIR_OF_TILES: usize = 2 * LANES;

/// Tile and column of number `d` of [`PAIR_OF_TILES`]. With this order, interleaving two vectors
/// needs no movement across 128-bit lanes.
const fn place(d: usize) -> (usize, usize) {
    (d / 4 % 2, d / 8 * 4 + d % 4)
}

#[inline(always)]
fn scaled_body(sums: &[f32], factor: f32, to: &mut [f32]) {
    let number = |sums: &[f32; PAIR_OF_TILES], d: usize| {
        let (tile, column) = place(d);
        sums[tile * LANES + column] * factor
    };
    let (whole, rest) = to.as_chunks_mut::<PAIR_OF_TILES>();
    let (sums, last) = sums.as_chunks::<PAIR_OF_TILES>().0.split_at(whole.len());
    for (sums, to) in sums.iter().zip(whole) {
        for d in 0..PAIR_OF_TILES {
            to[d] = number(sums, d);
        }
    }
    for (sums, to) in last.iter().zip([rest]) {
        to.iter_mut().enumerate().for_each(|(d, to)| *to = number(sums, d));
    }
}

per_isa! {
    /// `to = sums * factor`, undoing the column order of the tiles.
    scaled_by_compiler(sums: &[f32], factor: f32, to: &mut [f32]) => scaled_body
}

/// `to = sums * factor` in the natural column order; with AVX-512 by permutes instead of gathers.
pub(crate) fn unpermute_scaled(isa: Isa, sums: &[f32], factor: f32, to: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if isa.has_avx512() {
        let whole = to.len() / PAIR_OF_TILES * PAIR_OF_TILES;
        // SAFETY: the instruction set was detected on this machine.
        unsafe { scaled_wide(&sums[..whole], factor, &mut to[..whole]) };
        return scaled_by_compiler(isa, &sums[whole..], factor, &mut to[whole..]);
    }
    scaled_by_compiler(isa, sums, factor, to);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn scaled_wide(sums: &[f32], factor: f32, to: &mut [f32]) {
    use std::arch::x86_64::*;
    const HALF: usize = PAIR_OF_TILES / 2;
    let from: [[i32; HALF]; 2] = std::array::from_fn(|half| {
        std::array::from_fn(|d| {
            let (tile, column) = place(half * HALF + d);
            (tile * LANES + column) as i32
        })
    });
    for (sums, to) in sums.as_chunks::<PAIR_OF_TILES>().0.iter().zip(to.as_chunks_mut::<PAIR_OF_TILES>().0) {
        // SAFETY: 16 numbers are read and written each time.
        unsafe {
            let [low, high] = [0, HALF].map(|at| _mm512_loadu_ps(sums[at..].as_ptr()));
            for (half, from) in from.iter().enumerate() {
                let from = _mm512_loadu_si512(from.as_ptr().cast());
                let both = _mm512_permutex2var_ps(low, from, high);
                _mm512_storeu_ps(to[half * HALF..].as_mut_ptr(), _mm512_mul_ps(both, _mm512_set1_ps(factor)));
            }
        }
    }
}

/// Interleaves pairs of V rows into tile rows in VNNI layout; the first pair holds positions
/// `2 * first` and `2 * first + 1`.
///
/// # Safety
/// Each row must be `width` numbers.
unsafe fn interleave(isa: Isa, pairs: &[[*const u16; 2]], first: usize, width: usize, tiles: &mut [Tile]) {
    for (pair, at) in (first..).zip(pairs) {
        let (step, row) = (pair / LANES, pair % LANES);
        let mut done = 0;
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() {
            // SAFETY: the instruction set was detected on this machine; the caller's rows.
            unsafe { interleave_wide(*at, width / PAIR_OF_TILES, &mut tiles[step..], row) };
            done = width / PAIR_OF_TILES * PAIR_OF_TILES;
        }
        // SAFETY: the caller's rows.
        let [a, b] = at.map(|row| unsafe { std::slice::from_raw_parts(row, width) });
        for d in done..width {
            let (tile, column) = place(d % PAIR_OF_TILES);
            tiles[(d / PAIR_OF_TILES * 2 + tile) * 2 + step][row][column] =
                u32::from(a[d]) | u32::from(b[d]) << 16;
        }
    }
}

/// Interleaves `parts` times [`PAIR_OF_TILES`] numbers of two rows into row `row` of every other
/// tile.
///
/// # Safety
/// The machine must have the instructions, and each of `at` must point at that many numbers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn interleave_wide(at: [*const u16; 2], parts: usize, tiles: &mut [Tile], row: usize) {
    use std::arch::x86_64::*;
    for part in 0..parts {
        let [a, b] = at.map(|row| row.wrapping_add(part * PAIR_OF_TILES));
        prefetch_line(CacheLevel::L1, a.wrapping_byte_add(AHEAD).cast());
        prefetch_line(CacheLevel::L1, b.wrapping_byte_add(AHEAD).cast());
        // SAFETY: 64 bytes of each of the caller's rows, and of a tile's.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(a.cast()), _mm512_loadu_si512(b.cast()));
            let mut put =
                |tile: usize, v| _mm512_storeu_si512(tiles[part * 4 + tile * 2][row].as_mut_ptr().cast(), v);
            put(0, _mm512_unpacklo_epi16(a, b));
            put(1, _mm512_unpackhi_epi16(a, b));
        }
    }
}
