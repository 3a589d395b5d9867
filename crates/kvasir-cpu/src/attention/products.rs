//! The two GEMMs of attention in bf16 with f32 accumulators: `S = Q K^T` (`scores`) and `O += P V`
//! (`values`).
//!
//! Dispatch: AMX tiles, bf16 pair dot products (`pairs`), or f32 SIMD in the summation order of AMX
//! (`chains`), which gives bit-identical results to AMX. Callbacks (`Beside`, `during`) interleave
//! softmax, packing and prefetch with the tile products.

use crate::attention::softmax::Scores;
use crate::attention::views::CHUNK;
#[cfg(target_arch = "x86_64")]
use crate::attention::{bf16_dot, in_pairs};
use crate::gemm::bf16::gemv::dot_step;
use crate::gemm::bf16::micro_kernel::multiply;
use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::dispatch::per_level;
use crate::isa::features::Level;
use crate::isa::tile::{LANES, STEP, Tile};

/// K rows of a chunk: four times 16 rows of bf16, each padded to whole steps of 32 numbers.
#[derive(Clone, Copy)]
pub(crate) struct Keys {
    pub(crate) base: [*const u8; 4],
    /// Row stride in bytes, for each 16 rows.
    pub(crate) stride: [usize; 4],
}

/// Work to interleave with the products of `S = Q K^T` (software pipelining).
pub(crate) trait Beside {
    /// Does a little work beside one tile product.
    ///
    /// # Safety
    /// The machine must have the instructions of [`Level::Amx`].
    unsafe fn some(&mut self);
    /// Does work that is due less often: called before `products` products; `last` says whether
    /// they are of the last head.
    ///
    /// # Safety
    /// As above.
    unsafe fn before(&mut self, last: bool, products: usize);
}

/// Number of calls of [`Beside::before`] for one head's K of `steps` times 32 numbers.
pub(crate) fn asks(steps: usize) -> usize {
    2 * steps
}

/// S = Q K^T of one head's chunk and 16 query rows, with a query tile per step of 32 numbers. For
/// levels below [`Level::Amx`]; `open` may have the keys widened to f32, per step four times 16
/// rows.
///
/// # Safety
/// `queries` must be `steps` tiles, and the keys 64 rows of as many steps.
pub(crate) unsafe fn scores(
    level: Level,
    (keys, open): (&Keys, &[[OperandA; 4]]),
    queries: *const u8,
    steps: usize,
    out: &mut Scores,
) {
    #[cfg(target_arch = "x86_64")]
    if in_pairs(level) {
        // SAFETY: as the caller vouches; the level was detected on this machine.
        return unsafe { bf16_dot::scores(keys, queries, steps, out) };
    }
    let (mut columns, mut room) = (OperandB::NONE, OperandA::NONE);
    *out = [[0.0; LANES]; CHUNK];
    for step in 0..steps {
        // SAFETY: as the caller vouches.
        unsafe { columns.load(level, queries.wrapping_add(step * 1024)) };
        for (n, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            if let Some(rows) = open.get(step) {
                multiply(level, &rows[n], &columns, out);
                continue;
            }
            // SAFETY: as the caller vouches.
            unsafe { room.load(level, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
            multiply(level, &room, &columns, out);
        }
    }
}

/// Widens one head's K rows of a chunk to f32, once for all query blocks.
///
/// # Safety
/// They must be 64 rows of `steps` times 32 numbers.
pub(crate) unsafe fn open_keys(level: Level, keys: &Keys, steps: usize, to: &mut Vec<[OperandA; 4]>) {
    for step in 0..steps {
        to.push([OperandA::NONE; 4]);
        for (n, rows) in to.iter_mut().next_back().into_iter().flatten().enumerate() {
            // SAFETY: as the caller vouches.
            unsafe { rows.load(level, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
        }
    }
}

/// Widens one head's V tiles of a chunk to f32, once for all query blocks.
pub(crate) fn open_values(level: Level, values: &[Tile], to: &mut Vec<OperandB>) {
    to.resize(values.len(), OperandB::NONE);
    for (tile, to) in values.iter().zip(to) {
        // SAFETY: a whole tile is readable.
        unsafe { to.load(level, tile.as_ptr().cast()) };
    }
}

/// Up to this many query rows, computing all 16 of a tile is not worth it.
pub(crate) const FEW: usize = 4;

/// # Safety
/// As for [`few_values`].
#[inline(always)]
unsafe fn few_values_body(shares: *const u8, values: *const u8, sums: &mut [[f32; LANES]; FEW]) {
    for step in 0..CHUNK / STEP {
        let a = std::array::from_fn(|n| shares.wrapping_add(step * 1024 + n * 64));
        // SAFETY: as the caller vouches.
        unsafe { dot_step::<FEW>(a, values.wrapping_add(step * 1024), sums) };
    }
}

per_level! {
    /// O += P V for up to [`FEW`] query rows and 16 columns of V.
    ///
    /// # Safety
    /// There must be two tiles each of weights and of V.
    unsafe few_values(shares: *const u8, values: *const u8, sums: &mut [[f32; LANES]; FEW]) => few_values_body
}

/// Operands of `O += P V` for one chunk: two tiles of attention weights P, and two tiles of V for
/// each 16 columns.
pub(crate) type Shared = (*const u8, *const u8);

/// O += P V over `chunks`, for some query rows with accumulators `sums` of `width` numbers each.
/// `during` runs beside every tile product. Levels that widen pass the only chunk's V as f32 in
/// `open`, if there are more than [`FEW`] rows.
///
/// # Safety
/// The chunks' tiles must be readable. At [`Level::Amx`] tiles must be configured, those of weights
/// and products with as many rows as there are query rows.
pub(crate) unsafe fn values(
    level: Level,
    (chunks, open): (&[Shared], &[OperandB]),
    sums: &mut [f32],
    width: usize,
    mut during: impl FnMut(),
) {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Amx {
        // SAFETY: as the caller vouches; the level was detected on this machine.
        return unsafe { tiles::values(chunks, sums, width, during) };
    }
    #[cfg(target_arch = "x86_64")]
    if in_pairs(level) {
        // SAFETY: as above.
        return chunks.iter().for_each(|chunk| unsafe { bf16_dot::values(*chunk, sums, width, &mut during) });
    }
    let lanes = sums.len() / width;
    for (shares, values) in chunks {
        let mut rows = [OperandA::NONE; CHUNK / STEP];
        if lanes > FEW {
            for (step, rows) in rows.iter_mut().enumerate() {
                // SAFETY: as the caller vouches.
                unsafe { rows.load(level, shares.wrapping_add(step * 1024), 64) };
            }
        }
        let mut part = [[0.0; LANES]; LANES];
        for tile in 0..width / LANES {
            let at = tile * LANES;
            for (part, sums) in part.iter_mut().zip(sums.chunks_exact(width)) {
                part.copy_from_slice(&sums[at..at + LANES]);
            }
            if lanes > FEW {
                for (rows, columns) in rows.iter().zip(&open[2 * tile..]) {
                    multiply(level, rows, columns, &mut part);
                }
            } else if let Some(part) = part.first_chunk_mut() {
                // SAFETY: as the caller vouches.
                unsafe { few_values(level, *shares, values.wrapping_add(tile * 2048), part) };
            }
            for (part, sums) in part.iter().zip(sums.chunks_exact_mut(width)) {
                sums[at..at + LANES].copy_from_slice(part);
            }
            during();
        }
    }
}

/// The attention GEMMs on AMX tiles. Callbacks are inlined into these functions and may use
/// AVX-512.
///
/// As few tiles as possible are used: with hyper-threading the core can keep few results in flight
/// besides the tiles, and with all eight in use each product waits for the one before.
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles {
    use crate::attention::products::{Beside, Keys, Shared};
    use crate::attention::softmax::Scores;
    use crate::attention::views::CHUNK;
    use crate::isa::amx::{tile_dot_bf16, tile_load, tile_store, tile_zero};
    use crate::isa::tile::LANES;
    use crate::prefetch::hint::{CacheLevel, prefetch_tile};

    /// S = Q K^T for the heads of a block, with `beside` called at every tile product. A query tile
    /// has `lanes` columns per head, head after head. With several heads, positions from `seen` on
    /// are undefined. What is read `behind` the last head, per 16 positions, is prefetched into L2
    /// if it is not contiguous.
    ///
    /// # Safety
    /// As for [`super::scores`], for all heads; tiles must be configured for `lanes` columns, or
    /// for 16 if there is one head.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(crate) unsafe fn scores(
        (keys, seen, behind): (&[Keys], usize, &[*const u8; 4]),
        (queries, lanes): (*const u8, usize),
        steps: usize,
        out: &mut Scores,
        beside: &mut impl Beside,
    ) {
        let out = out.as_mut_ptr().cast::<u8>();
        macro_rules! take {
            ($to:literal, $keys:expr, $quarter:expr, $step:expr) => {
                tile_load!(2, $keys.base[$quarter].wrapping_add($step * 64), $keys.stride[$quarter]);
                tile_dot_bf16!($to, 2, 6);
                beside.some();
            };
        }
        // SAFETY: as the caller vouches.
        unsafe {
            if let [keys] = keys {
                for half in [0, 2] {
                    tile_zero!(0);
                    tile_zero!(1);
                    for step in 0..steps {
                        beside.before(true, 2);
                        tile_load!(6, queries.add(step * 1024), 64);
                        take!(0, keys, half, step);
                        take!(1, keys, half + 1, step);
                    }
                    tile_store!(0, out.add(half * 1024));
                    tile_store!(1, out.add(half * 1024 + 1024));
                }
                return;
            }
            // With several heads K streams from memory: it is read in memory order and prefetched
            // 16 positions ahead. The products of 16 positions are stored only after those of the
            // next were issued.
            let quarters = seen.div_ceil(LANES);
            let elsewhere =
                keys.last().is_some_and(|keys| keys.base[0].wrapping_add(CHUNK * steps * 64) != behind[0]);
            let mut ready: Option<*mut u8> = None;
            let mut odd = false;
            macro_rules! quarter {
                ($to:literal, $other:literal, $keys:expr, $quarter:expr, $head:expr, $next:expr) => {
                    tile_zero!($to);
                    for step in 0..steps {
                        let last = $head + 1 == keys.len();
                        beside.before(last, 1);
                        prefetch_tile(CacheLevel::L1, $next.wrapping_add(step * 1024));
                        if last && elsewhere {
                            prefetch_tile(CacheLevel::L2, behind[$quarter].wrapping_add(step * 1024));
                        }
                        tile_load!(6, queries.add(step * 1024 + $head * lanes * 4), 64);
                        take!($to, $keys, $quarter, step);
                    }
                    if let Some(ready) = ready {
                        tile_store!($other, ready);
                    }
                };
            }
            for (head, these) in keys.iter().enumerate() {
                let next_head = keys.get(head + 1).map_or(behind[0], |keys| keys.base[0]);
                for quarter in 0..quarters {
                    let next = if quarter + 1 < quarters { these.base[quarter + 1] } else { next_head };
                    if odd {
                        quarter!(1, 0, these, quarter, head, next);
                    } else {
                        quarter!(0, 1, these, quarter, head, next);
                    }
                    ready = Some(out.add(quarter * 1024 + head * lanes * 4));
                    odd = !odd;
                }
            }
            if let Some(ready) = ready {
                if odd {
                    tile_store!(0, ready);
                } else {
                    tile_store!(1, ready);
                }
            }
        }
    }

    /// O += P V on AMX; see [`super::values`].
    ///
    /// # Safety
    /// As for [`super::values`] at [`Level::Amx`].
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    pub(super) unsafe fn values(chunks: &[Shared], sums: &mut [f32], width: usize, mut during: impl FnMut()) {
        let stride = width * 4;
        macro_rules! take {
            ($to:literal, $values:expr) => {
                tile_load!(6, $values, 64);
                tile_dot_bf16!($to, 2, 6);
                during();
            };
        }
        // SAFETY: as the caller vouches; the width is a multiple of two tiles' columns.
        unsafe {
            for pair in 0..width / (2 * LANES) {
                let to = sums.as_mut_ptr().add(pair * 2 * LANES);
                tile_load!(0, to, stride);
                tile_load!(1, to.add(LANES), stride);
                for (shares, values) in chunks {
                    let values = values.add(pair * 4096);
                    for step in [0, 1024] {
                        tile_load!(2, shares.add(step), 64);
                        take!(0, values.add(step));
                        take!(1, values.add(2048 + step));
                    }
                }
                tile_store!(0, to, stride);
                tile_store!(1, to.add(LANES), stride);
            }
        }
    }
}
