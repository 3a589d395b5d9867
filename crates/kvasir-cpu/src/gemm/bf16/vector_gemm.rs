//! bf16 GEMM without AMX, for batches above the GEMV threshold (prefill, large decode batches).
//!
//! Loop nest per work item of at most `BLOCK` rows x `PANELS` panels:
//!
//! 1. convert the activations of up to `ROWS` tile-steps (`OperandA`); they stay in L2;
//! 2. for each panel, convert one weight tile at a time (`OperandB`) and prefetch the
//!    following ones;
//! 3. accumulate with `multiply`; after the last step, store the sums.
//!
//! Small batches are compute-bound and leave memory idle, so the loop also prefetches the KV cache
//! of the next layer (`kv_prefetch`). Results are bit-identical to the GEMV path; `gemm/tests.rs`
//! checks this.

use crate::gemm::bf16::activations::Bf16Activations;
use crate::gemm::bf16::micro_kernel::multiply;
use crate::gemm::bf16::operands::{Accumulators, OperandA, OperandB};
use crate::gemm::output::Output;
use crate::isa::features::Isa;
use crate::isa::tile::{LANES, TILE};
use crate::kernels::kv_prefetch_pays;
use crate::prefetch::hint::{CacheLevel, prefetch_tile};
use crate::prefetch::kv_prefetch;
use std::cell::RefCell;
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

/// Per-thread scratch memory.
#[repr(C, align(64))]
struct Room {
    /// Converted activations: all row tiles of a step, then those of the next step.
    rows: [OperandA; ROWS],
    sums: [[Accumulators; BLOCK / TILE]; PANELS],
}

// A vector load that straddles two cache lines takes twice as long.
const _: () = assert!(offset_of!(Room, sums).is_multiple_of(64));

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        rows: [OperandA::NONE; ROWS],
        sums: [[[[0.0; LANES]; TILE]; BLOCK / TILE]; PANELS],
    }));
}

/// At most [`PANELS`] panels of `bytes` bytes each, starting with panel `first_panel` of the
/// matrix, times at most [`BLOCK`] rows. `rows.start` must be a multiple of the tile height.
///
/// # Safety
/// The panels and the rows must exist, and no other thread may write their outputs concurrently.
pub(crate) unsafe fn panels(
    isa: Isa,
    (panels, bytes): (&[*const u8], usize),
    x: &Bf16Activations,
    first_panel: usize,
    rows: Range<usize>,
    out: &Output<'_>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK && panels.len() <= PANELS);
    let (first, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    // The last row tile is computed by halves.
    let taken = rows.len().next_multiple_of(TILE / 2);
    let prefetches_kv = kv_prefetch_pays(isa, rows.len());
    ROOM.with_borrow_mut(|room| {
        for sums in &mut room.sums[..panels.len()] {
            sums[..tiles].fill([[0.0; LANES]; TILE]);
        }
        let mut columns = OperandB::NONE;
        let at_once = ROWS / tiles.max(1);
        for from in (0..x.steps).step_by(at_once) {
            let some = from..x.steps.min(from + at_once);
            for (step, rows) in some.clone().zip(room.rows.chunks_exact_mut(tiles)) {
                for (t, rows) in rows.iter_mut().enumerate() {
                    // SAFETY: activations are whole tiles.
                    unsafe { rows.load(isa, x.tile(first + t, step), 64) };
                }
            }
            let last = from + at_once >= x.steps;
            for (n, (panel, sums)) in panels.iter().zip(&mut room.sums).enumerate() {
                let first_output = (first_panel + n) * LANES;
                if last {
                    rows.clone().for_each(|row| out.prefetch(row, first_output));
                }
                let mut opened = std::ptr::null();
                let mut page = None;
                for (step, rows) in some.clone().zip(room.rows.chunks_exact(tiles)) {
                    if prefetches_kv {
                        if step % PARTS == 0 {
                            page = kv_prefetch::next();
                        }
                        if let Some(page) = page {
                            page.prefetch(step % PARTS, PARTS);
                        }
                    }
                    let tile = panel.wrapping_add(x.weights_of(step));
                    if tile != opened {
                        // Prefetch the same tile of the next panel, then the tile after the next of
                        // this one.
                        prefetch_tile(CacheLevel::L2, tile.wrapping_add(bytes));
                        prefetch_tile(CacheLevel::L1, tile.wrapping_add(L1_AHEAD));
                        // SAFETY: a tile of the panel.
                        unsafe { columns.load(isa, tile) };
                        opened = tile;
                    }
                    for (rows, sums) in rows.iter().zip(sums.as_flattened_mut()[..taken].chunks_mut(TILE)) {
                        multiply(isa, rows, &columns, sums);
                    }
                }
                if last {
                    for (row, sums) in rows.clone().zip(sums.as_flattened()) {
                        // SAFETY: the caller's outputs.
                        unsafe { out.store(row, first_output, sums) };
                    }
                }
            }
        }
    });
}
