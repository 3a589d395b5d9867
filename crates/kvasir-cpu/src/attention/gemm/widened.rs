//! `S = Q K^T` and `O += P V` in f32 SIMD, in the order of summation of AMX.

use crate::attention::gemm::operands::{ChunkTiles, KeyRows};
use crate::attention::softmax::state::Scores;
use crate::gemm::bf16::gemv::dot_step;
use crate::gemm::bf16::micro_kernel::multiply;
use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, STEP, Tile};
use crate::kernels::GEMV_ROWS;
use crate::memory::kv_pool::rows::CHUNK;

/// S = Q K^T of one head's chunk and 16 query rows, with a query tile per step of 32 numbers. `widened` may have the keys widened to f32, per step four times 16 rows.
///
/// # Safety
/// `queries` must be `steps` tiles, and the keys 64 rows of as many steps.
pub(crate) unsafe fn scores(
    isa: Isa,
    keys: &KeyRows,
    widened: &[[OperandA; 4]],
    queries: *const u8,
    steps: usize,
    out: &mut Scores,
) {
    let (mut columns, mut rows) = (OperandB::NONE, OperandA::NONE);
    *out = [[0.0; LANES]; CHUNK];
    for step in 0..steps {
        // SAFETY: as the caller vouches.
        unsafe { columns.load(isa, queries.wrapping_add(step * 1024)) };
        for (n, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            if let Some(widened) = widened.get(step) {
                multiply(isa, &widened[n], &columns, out);
                continue;
            }
            // SAFETY: as the caller vouches.
            unsafe { rows.load(isa, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
            multiply(isa, &rows, &columns, out);
        }
    }
}

/// Widens one head's K rows of a chunk to f32, once for all query blocks.
///
/// # Safety
/// They must be 64 rows of `steps` times 32 numbers.
pub(crate) unsafe fn widen_keys(isa: Isa, keys: &KeyRows, steps: usize, to: &mut Vec<[OperandA; 4]>) {
    for step in 0..steps {
        to.push([OperandA::NONE; 4]);
        for (n, rows) in to.iter_mut().next_back().into_iter().flatten().enumerate() {
            // SAFETY: as the caller vouches.
            unsafe { rows.load(isa, keys.base[n].wrapping_add(step * 64), keys.stride[n]) };
        }
    }
}

/// Widens tiles of queries or V to f32.
pub(crate) fn widen_tiles(isa: Isa, tiles: &[Tile], to: &mut Vec<OperandB>) {
    to.resize(tiles.len(), OperandB::NONE);
    for (tile, to) in tiles.iter().zip(to) {
        // SAFETY: a whole tile is readable.
        unsafe { to.load(isa, tile.as_ptr().cast()) };
    }
}

/// # Safety
/// As for [`gemv_values`].
#[inline(always)]
unsafe fn gemv_values_body(weights: *const u8, values: *const u8, sums: &mut [[f32; LANES]; GEMV_ROWS]) {
    for step in 0..CHUNK / STEP {
        let a = std::array::from_fn(|n| weights.wrapping_add(step * 1024 + n * 64));
        // SAFETY: as the caller vouches.
        unsafe { dot_step::<GEMV_ROWS, false, false>(a, values.wrapping_add(step * 1024), sums) };
    }
}

per_isa! {
    /// O += P V for up to [`GEMV_ROWS`] query rows and 16 columns of V.
    ///
    /// # Safety
    /// There must be two tiles each of weights and of V.
    unsafe gemv_values(weights: *const u8, values: *const u8, sums: &mut [[f32; LANES]; GEMV_ROWS]) => gemv_values_body
}

/// O += P V over `chunks`, for some query rows with accumulators `sums` of `width` numbers each.
/// `during` runs beside every tile product. `widened` is the only chunk's V in f32, if there are
/// more than [`GEMV_ROWS`] rows.
///
/// # Safety
/// The chunks' tiles must be readable.
pub(crate) unsafe fn values(
    isa: Isa,
    chunks: &[ChunkTiles],
    widened: &[OperandB],
    sums: &mut [f32],
    width: usize,
    mut during: impl FnMut(),
) {
    let query_rows = sums.len() / width;
    for ChunkTiles { weights, values } in chunks {
        let mut rows = [OperandA::NONE; CHUNK / STEP];
        if query_rows > GEMV_ROWS {
            for (step, rows) in rows.iter_mut().enumerate() {
                // SAFETY: as the caller vouches.
                unsafe { rows.load(isa, weights.wrapping_add(step * 1024), 64) };
            }
        }
        let mut part = [[0.0; LANES]; LANES];
        for tile in 0..width / LANES {
            let at = tile * LANES;
            for (part, sums) in part.iter_mut().zip(sums.chunks_exact(width)) {
                part.copy_from_slice(&sums[at..at + LANES]);
            }
            if query_rows > GEMV_ROWS {
                for (rows, columns) in rows.iter().zip(&widened[2 * tile..]) {
                    multiply(isa, rows, columns, &mut part);
                }
            } else if let Some(part) = part.first_chunk_mut() {
                // SAFETY: as the caller vouches.
                unsafe { gemv_values(isa, *weights, values.wrapping_add(tile * 2048), part) };
            }
            for (part, sums) in part.iter().zip(sums.chunks_exact_mut(width)) {
                sums[at..at + LANES].copy_from_slice(part);
            }
            during();
        }
    }
}
