//! Attention in f32 SIMD on bf16 operands widened to f32, in the order of summation of AMX.

#[cfg(target_arch = "x86_64")]
use crate::attention::decode::{gemv, heads};
use crate::attention::kernel::{AttentionKernel, ChunkTiles, PvTiles};
use crate::attention::softmax::pipeline::SoftmaxPipeline;
use crate::attention::staged_kv::{StagedKeys, StagedKv};
use crate::attention::work::ScoredBlock;
use crate::gemm::bf16::gemv::dot_step;
use crate::gemm::bf16::micro_kernel::multiply;
use crate::gemm::bf16::operands::{OperandA, OperandB};
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, STEP, Tile};
use crate::kernels::GEMV_ROWS;
use crate::memory::kv_pool::rows::CHUNK;

/// The kernels of every instruction set without bf16 dot products.
pub(crate) struct Widened(pub(crate) Isa);

impl AttentionKernel for Widened {
    fn isa(&self) -> Isa {
        self.0
    }

    fn widen(&self, tiles: &[Tile], to: &mut Vec<OperandB>) {
        to.resize(tiles.len(), OperandB::NONE);
        for (tile, to) in tiles.iter().zip(to) {
            // SAFETY: a whole tile is readable.
            unsafe { to.load(self.0, tile.as_ptr().cast()) };
        }
    }

    fn widen_keys(&self, StagedKeys { heads, widened, .. }: &mut StagedKeys, steps: usize) {
        widened.resize(steps, [OperandA::NONE; 4]);
        for (step, rows) in widened.iter_mut().enumerate() {
            for (n, rows) in rows.iter_mut().enumerate() {
                // SAFETY: staged keys are 64 rows of whole steps.
                unsafe { rows.load(self.0, heads[0].base[n].wrapping_add(step * 64), heads[0].stride[n]) };
            }
        }
    }

    unsafe fn scores(&mut self, now: ScoredBlock<'_>, kv: &mut StagedKv, to: &mut SoftmaxPipeline) {
        let out = &mut to.scores[now.place];
        #[cfg(target_arch = "x86_64")]
        if now.work.decode {
            let rows = &mut to.rows[0];
            // SAFETY: the machine has the instruction set; as the caller vouches.
            return unsafe {
                for (keys, of_head) in heads(kv, now) {
                    gemv::scores(self.0, keys, now.widened_queries(), of_head, rows);
                }
                gemv::transpose_scores(self.0, rows, out);
            };
        }
        let StagedKeys { heads, widened, .. } = &kv.keys;
        let (mut columns, mut rows) = (OperandB::NONE, OperandA::NONE);
        *out = [[0.0; LANES]; CHUNK];
        for (step, tile) in now.queries().iter().enumerate() {
            // SAFETY: a whole tile is readable.
            unsafe { columns.load(self.0, tile.as_ptr().cast()) };
            for (n, out) in out.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                if let Some(widened) = widened.get(step) {
                    multiply(self.0, &widened[n], &columns, out);
                    continue;
                }
                // SAFETY: as the caller vouches.
                unsafe { rows.load(self.0, heads[0].base[n].wrapping_add(step * 64), heads[0].stride[n]) };
                multiply(self.0, &rows, &columns, out);
            }
        }
    }

    unsafe fn values(&mut self, tiles: PvTiles<'_>, sums: &mut [f32], mut during: impl FnMut()) {
        let (width, query_rows) = (tiles.width, sums.len() / tiles.width);
        for ChunkTiles { weights, values } in tiles.chunks {
            let mut rows = [OperandA::NONE; CHUNK / STEP];
            if query_rows > GEMV_ROWS {
                for (step, rows) in rows.iter_mut().enumerate() {
                    // SAFETY: as the caller vouches.
                    unsafe { rows.load(self.0, weights.wrapping_add(step * 1024), 64) };
                }
            }
            let mut part = [[0.0; LANES]; LANES];
            for tile in 0..width / LANES {
                let at = tile * LANES;
                for (part, sums) in part.iter_mut().zip(sums.chunks_exact(width)) {
                    part.copy_from_slice(&sums[at..at + LANES]);
                }
                if query_rows > GEMV_ROWS {
                    for (rows, columns) in rows.iter().zip(&tiles.widened[2 * tile..]) {
                        multiply(self.0, rows, columns, &mut part);
                    }
                } else if let Some(part) = part.first_chunk_mut() {
                    // SAFETY: as the caller vouches.
                    unsafe { gemv_values(self.0, *weights, values.wrapping_add(tile * 2048), part) };
                }
                for (part, sums) in part.iter().zip(sums.chunks_exact_mut(width)) {
                    sums[at..at + LANES].copy_from_slice(part);
                }
                during();
            }
        }
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
