//! bf16 GEMM and GEMV: dispatch by ISA level and number of rows, and partitioning into work items.
//!
//! | rows | kernel |
//! |---|---|
//! | any, with AMX | `tiles.rs` |
//! | at least `gemm::from(level)` | `many.rs` (GEMM) |
//! | fewer | `vector_panel` (GEMV, up to four rows at once) |
//!
//! Work items are disjoint sets of outputs (panels x row blocks). All kernels sum in the order of
//! `dense::panels::Bf16Panels`, so results depend neither on the kernel nor on the batch.

use super::panels::Floats;
#[cfg(target_arch = "x86_64")]
use super::tiles;
use super::{Bf16Activations, Bf16Panels, gemm};
use crate::level::per_level;
use crate::matmul::Output;
#[cfg(target_arch = "x86_64")]
use crate::matmul::token_blocks;
use crate::panels::{Kind, PanelReader, Room};
use crate::threads::prologue::Prologue;
use crate::tile::{LANES, STEP, TILE};
use crate::{Level, ThreadPool};
use std::cell::RefCell;

/// `c += a b` for one weight tile and `N` rows, in the order of AMX. Each `a[n]` is a row of 32
/// bf16, `b` a tile.
///
/// # Safety
/// `b` must point to a tile of 1024 bytes, each `a[n]` to 64 bytes.
#[inline(always)]
pub(crate) unsafe fn dot_step<const N: usize>(a: [*const u8; N], b: *const u8, c: &mut [[f32; LANES]; N]) {
    let (mut even, mut odd) = ([[0f32; LANES]; N], [[0f32; LANES]; N]);
    for i in 0..16 {
        // SAFETY: row `i` of the tile and pair `i` of each row.
        let pairs = unsafe { b.add(i * 64).cast::<[u32; LANES]>().read_unaligned() };
        for n in 0..N {
            // SAFETY: as above.
            let x = unsafe { a[n].add(i * 4).cast::<u32>().read_unaligned() };
            let (x0, x1) = (f32::from_bits(x << 16), f32::from_bits(x & 0xffff_0000));
            for lane in 0..LANES {
                even[n][lane] = f32::from_bits(pairs[lane] << 16).mul_add(x0, even[n][lane]);
                odd[n][lane] = f32::from_bits(pairs[lane] & 0xffff_0000).mul_add(x1, odd[n][lane]);
            }
        }
    }
    for n in 0..N {
        for lane in 0..LANES {
            c[n][lane] += even[n][lane] + odd[n][lane];
        }
    }
}

/// # Safety
/// As for [`vector_panel`].
#[inline(always)]
unsafe fn vector_panel_body(tiles: &[u8], x: &Bf16Activations, first: usize, rows: usize, out: &Output<'_>) {
    /// # Safety
    /// As for [`vector_panel`]; rows `row .. row + N` must exist.
    #[inline(always)]
    unsafe fn some<const N: usize>(
        tiles: &[u8],
        x: &Bf16Activations,
        first: usize,
        row: usize,
        out: &Output<'_>,
    ) {
        let mut sums = [[0.0; LANES]; N];
        for step in 0..x.steps {
            let tile = &tiles[x.weights_of(step)..][..1024];
            let a =
                std::array::from_fn(|n| x.tile((row + n) / TILE, step).wrapping_add((row + n) % TILE * 64));
            // SAFETY: a tile of the panel; the caller's rows.
            unsafe { dot_step::<N>(a, tile.as_ptr(), &mut sums) };
        }
        // SAFETY: the caller's outputs.
        sums.iter().enumerate().for_each(|(n, s)| unsafe { out.store(row + n, first, s) });
    }
    let mut row = 0;
    while row < rows {
        let n = (rows - row).min(4);
        // SAFETY: upheld by the caller.
        unsafe {
            match n {
                1 => some::<1>(tiles, x, first, row, out),
                2 => some::<2>(tiles, x, first, row, out),
                3 => some::<3>(tiles, x, first, row, out),
                _ => some::<4>(tiles, x, first, row, out),
            }
        }
        row += n;
    }
}

per_level! {
    /// GEMV kernel: one panel times all rows; `first` is the index of the panel's first output.
    ///
    /// # Safety
    /// The rows must exist, and no other thread may write these outputs concurrently.
    unsafe vector_panel(tiles: &[u8], x: &Bf16Activations, first: usize, rows: usize, out: &Output<'_>) => vector_panel_body
}

thread_local! {
    /// Scratch memory for panels of matrices that are not packed yet.
    static MADE: RefCell<[Room; gemm::PANELS]> = const { RefCell::new([const { Room::new() }; gemm::PANELS]) };
}

/// Target bytes of weights per work item when memory-bound.
const PIECE: usize = 64 * 1024;

/// `out[row] = w x[row]`. The prologue `first` prepares `x`; the calling thread runs it before any
/// work item.
pub(crate) fn matmul_bf16(
    team: &ThreadPool,
    level: Level,
    w: &Bf16Panels,
    x: &Bf16Activations,
    out: &mut Output<'_>,
    first: &Prologue<'_>,
) {
    assert!(x.takes(out.rows()) && x.steps == w.kind.steps << x.taken as u32, "rows and matrix fit");
    w.read(team, |w| match level {
        #[cfg(target_arch = "x86_64")]
        Level::Amx => on_tiles(team, w, x, out, first),
        _ if out.rows() >= gemm::from(level) => many_rows(team, level, w, x, out, first),
        _ => few_rows(team, level, w, x, out, first),
    });
}

/// Panels per work item when memory-bound.
fn together(w: PanelReader<'_, '_, Floats>) -> usize {
    (PIECE / w.panels.kind.panel_bytes().max(1)).clamp(1, 64).next_multiple_of(2)
}

/// GEMV: groups of panels as work items, all rows in each.
fn few_rows(
    team: &ThreadPool,
    level: Level,
    w: PanelReader<'_, '_, Floats>,
    x: &Bf16Activations,
    out: &Output<'_>,
    first: &Prologue<'_>,
) {
    let (all, group) = (w.panels.panels(), together(w));
    team.each_in_order_after(first, &|item| w.packed_from(item * group), all.div_ceil(group), &|_, item| {
        MADE.with_borrow_mut(|[made, ..]| {
            for n in item * group..all.min((item + 1) * group) {
                let tiles = w.panel(n, made);
                // SAFETY: the rows exist; the outputs are exclusive to this work item.
                unsafe { vector_panel(level, tiles, x, n * LANES, out.rows(), out) };
            }
        });
    });
}

/// GEMM without AMX: groups of panels x blocks of rows as work items.
fn many_rows(
    team: &ThreadPool,
    level: Level,
    w: PanelReader<'_, '_, Floats>,
    x: &Bf16Activations,
    out: &Output<'_>,
    first: &Prologue<'_>,
) {
    let (all, rows) = (w.panels.panels(), out.rows());
    let groups = all.div_ceil(gemm::PANELS);
    let begins = |item: usize| w.packed_from(item % groups * gemm::PANELS);
    team.each_in_order_after(first, &begins, groups * rows.div_ceil(gemm::BLOCK), &|_, item| {
        let (first, row) = (item % groups * gemm::PANELS, item / groups * gemm::BLOCK);
        let rows = row..rows.min(row + gemm::BLOCK);
        MADE.with_borrow_mut(|made| {
            let mut at = [std::ptr::null(); gemm::PANELS];
            let some = at.iter_mut().zip(made).zip(first..all.min(first + gemm::PANELS));
            let n = some.map(|((at, room), panel)| *at = w.panel(panel, room).as_ptr()).count();
            // SAFETY: the panels and rows exist; the outputs are exclusive to this work item.
            unsafe { gemm::panels(level, (&at[..n], w.panels.kind.panel_bytes()), x, first, rows, out) };
        });
    });
}

/// GEMM on AMX. Few rows are memory-bound and use work items of more panels.
#[cfg(target_arch = "x86_64")]
fn on_tiles(
    team: &ThreadPool,
    w: PanelReader<'_, '_, Floats>,
    x: &Bf16Activations,
    out: &Output<'_>,
    first: &Prologue<'_>,
) {
    let (all, rows) = (w.panels.panels(), out.rows());
    let (block, group) = match rows > 2 * TILE {
        true => (token_blocks(rows, x.steps * STEP * 2), 4),
        false => (rows, together(w)),
    };
    let groups = all.div_ceil(group);
    let begins = |item: usize| w.packed_from(item % groups * group);
    team.each_in_order_after(first, &begins, groups * rows.div_ceil(block.max(1)), &|_, item| {
        let panels = item % groups * group..all.min((item % groups + 1) * group);
        let first = item / groups * block;
        // SAFETY: the level implies that AMX is permitted; the rows exist, and the outputs are
        // exclusive to this work item.
        MADE.with_borrow_mut(|made| unsafe {
            tiles::panels(&w, made, x, panels, first..rows.min(first + block), out);
        });
    });
}
