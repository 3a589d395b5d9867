//! bf16 GEMM without AMX, for batches above the GEMV threshold (prefill, large decode batches).
//!
//! Loop nest per work item of at most `BLOCK` rows x `PANELS` panels:
//!
//! 1. convert the activations of up to `ROWS` tile-steps (`OperandA`), unless they are f32; they
//!    stay in L2;
//! 2. for each panel, convert one weight tile at a time (`OperandB`) and prefetch the
//!    following ones;
//! 3. accumulate with `multiply`; after the last step, store the sums.
//!
//! Small batches are compute-bound and leave memory idle, so the loop also prefetches the KV cache
//! of the next layer (`kv_prefetch`). Results are bit-identical to the GEMV path; `gemm/tests.rs`
//! checks this.

use crate::gemm::bf16::activations::{Bf16Activations, Bf16Terms};
use crate::gemm::bf16::micro_kernel::multiply;
use crate::gemm::bf16::operands::{Accumulators, OperandA, OperandB};
use crate::gemm::output::Output;
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, TILE};
use crate::kernels::kv_prefetch_pays;
use crate::prefetch::hint::{CacheLevel, prefetch_tile};
use crate::prefetch::kv_prefetch::KvPrefetchQueue;
use crate::threads::worker::Worker;
use crate::weights::bf16::{TileLayout, TileScratch};
use crate::weights::panels::PanelReader;
use std::mem::offset_of;
use std::ops::Range;

/// Rows per work item.
pub(crate) const BLOCK: usize = 128;
/// Panels that share the same converted activations.
pub(crate) const PANELS: usize = 8;
/// Capacity in row tiles x steps. With fewer row tiles, a longer stretch of each panel is read
/// sequentially.
const ROWS: usize = 32;

/// Steps over which the prefetch of one page of the next layer's KV cache is spread.
const PARTS: usize = 8;

/// L1 prefetch distance in bytes: the tile after the next one.
const L1_AHEAD: usize = 2048;

/// Scratch of one worker.
#[repr(C, align(64))]
struct GemmScratch {
    /// Converted activations: all row tiles of a step, then those of the next step.
    rows: [OperandA; ROWS],
    sums: [[Accumulators; BLOCK / TILE]; PANELS],
    /// Panels that are made on the fly.
    panels: [TileScratch; PANELS],
}

// A vector load that straddles two cache lines takes twice as long.
const _: () = assert!(offset_of!(GemmScratch, sums).is_multiple_of(64));

impl Default for GemmScratch {
    fn default() -> Self {
        Self {
            rows: [OperandA::NONE; ROWS],
            sums: [[[[0.0; LANES]; TILE]; BLOCK / TILE]; PANELS],
            panels: Default::default(),
        }
    }
}

/// At most [`PANELS`] panels times at most [`BLOCK`] rows. `rows.start` must be a multiple of the
/// tile height.
///
/// # Safety
/// The panels and the rows must exist, and no other thread may write their outputs concurrently.
pub(crate) unsafe fn panels<K: TileLayout>(
    isa: Isa,
    w: &PanelReader<'_, '_, K>,
    panels: Range<usize>,
    x: &Bf16Activations,
    rows: Range<usize>,
    worker: &mut Worker,
    out: &Output<'_>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK && panels.len() <= PANELS);
    let (first, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    // The last row tile is computed by halves.
    let taken = rows.len().next_multiple_of(TILE / 2);
    let prefetches_kv = kv_prefetch_pays(isa, rows.len());
    let (scratch, kv_queue) = worker.scratches::<GemmScratch, KvPrefetchQueue>();
    let mut addresses = [std::ptr::null(); PANELS];
    for ((at, scratch), panel) in addresses.iter_mut().zip(&mut scratch.panels).zip(panels.clone()) {
        *at = K::tiles(w, panel, scratch).as_ptr();
    }
    for sums in &mut scratch.sums[..panels.len()] {
        sums[..tiles].fill([[0.0; LANES]; TILE]);
    }
    let mut columns = OperandB::NONE;
    let at_once = ROWS / tiles.max(1);
    for from in (0..x.steps).step_by(at_once) {
        let some = from..x.steps.min(from + at_once);
        let whole = x.terms == Bf16Terms::Whole;
        for (step, rows) in some.clone().zip(scratch.rows.chunks_exact_mut(tiles)).filter(|_| !whole) {
            for (t, rows) in rows.iter_mut().enumerate() {
                // SAFETY: activations are whole tiles.
                unsafe { rows.load(isa, x.tile(first + t, step), 64) };
            }
        }
        let last = from + at_once >= x.steps;
        for ((n, at), sums) in panels.clone().zip(&addresses).zip(&mut scratch.sums) {
            if last {
                rows.clone().for_each(|row| out.prefetch(row, n * LANES));
            }
            let mut converted = std::ptr::null();
            let mut page = None;
            for (step, rows) in some.clone().zip(scratch.rows.chunks_exact(tiles)) {
                if prefetches_kv {
                    if step % PARTS == 0 {
                        page = kv_queue.next();
                    }
                    if let Some(page) = page {
                        page.prefetch(step % PARTS, PARTS);
                    }
                }
                let tile = at.wrapping_add(x.weights_of(step));
                if tile != converted {
                    // Prefetch the same tile of the next panel, then the second next of this one.
                    prefetch_tile(CacheLevel::L2, tile.wrapping_add(w.panels.kind.panel_bytes()));
                    prefetch_tile(CacheLevel::L1, tile.wrapping_add(L1_AHEAD));
                    // SAFETY: a tile of the panel.
                    unsafe {
                        if w.panels.kind.is_f16() {
                            columns.load_f16(isa, tile);
                        } else {
                            columns.load(isa, tile);
                        }
                    }
                    converted = tile;
                }
                let sums = sums.as_flattened_mut()[..taken].chunks_mut(TILE);
                for ((t, rows), sums) in rows.iter().enumerate().zip(sums) {
                    // SAFETY: a tile of f32 is an operand.
                    let rows = if whole { unsafe { &*x.tile(first + t, step).cast() } } else { rows };
                    multiply(isa, rows, &columns, sums);
                }
            }
            if last {
                for (row, sums) in rows.clone().zip(sums.as_flattened()) {
                    // SAFETY: the caller's outputs.
                    unsafe { out.store(row, n * LANES, sums) };
                }
            }
        }
    }
}
