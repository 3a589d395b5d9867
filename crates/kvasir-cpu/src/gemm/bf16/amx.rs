//! bf16 GEMM on AMX: two row tiles x two panels per step, or fewer at the edges.
//!
//! Tile registers: 0 to 3 accumulate, 4 holds activations, 5 holds weights. No more are used than
//! necessary; see `docs/explanation/kernels.md`. With one row tile (decode) the kernel is memory-bound and
//! prefetches weights into L2.

use crate::gemm::bf16::activations::Bf16Activations;
use crate::gemm::output::Output;
use crate::isa::amx::{Tiles, tile_dot_bf16, tile_load, tile_store, tile_zero};
use crate::isa::tile::{LANES, TILE};
use crate::prefetch::hint::{CacheLevel, prefetch_tile};
use crate::threads::worker::Worker;
use crate::weights::bf16::{TileLayout, TileScratch};
use crate::weights::panels::PanelReader;
use std::ops::Range;

/// Accumulators of 2 x 2 products: `[2 * tile + panel][row][output]`.
#[repr(C, align(64))]
struct Sums([[[f32; LANES]; TILE]; 4]);

/// `out = panels x rows`. `rows.start` must be a multiple of the tile height.
///
/// # Safety
/// AMX must be permitted, the panels and rows must exist, and no other thread may write their
/// outputs concurrently.
pub(crate) unsafe fn panels<K: TileLayout>(
    w: &PanelReader<'_, '_, K>,
    panels: Range<usize>,
    x: &Bf16Activations,
    rows: Range<usize>,
    worker: &mut Worker,
    out: &Output<'_>,
) {
    // SAFETY: upheld by the caller.
    let _tiles = unsafe { Tiles::configure() };
    let [one, two] = worker.scratch::<[TileScratch; 2]>();
    let mut sums = Sums([[[0.0; LANES]; TILE]; 4]);
    let mut panel = panels.start;
    while panel < panels.end {
        let n_panels = (panels.end - panel).min(2);
        let first = K::tiles(w, panel, one).as_ptr();
        let b = [first, if n_panels == 2 { K::tiles(w, panel + 1, two).as_ptr() } else { first }];
        let mut row = rows.start;
        while row < rows.end {
            let n_tiles = if rows.end - row > TILE { 2 } else { 1 };
            for r in row..rows.end.min(row + 2 * TILE) {
                (panel..panel + n_panels).for_each(|panel| out.prefetch(r, panel * LANES));
            }
            // SAFETY: tiles are configured, the panels exist, activations come in pairs of tiles.
            unsafe {
                match (n_tiles, n_panels) {
                    (1, 1) => dot::<1, 1>(b, x, row / TILE, &mut sums),
                    (1, _) => dot::<1, 2>(b, x, row / TILE, &mut sums),
                    (_, 1) => dot::<2, 1>(b, x, row / TILE, &mut sums),
                    _ => dot::<2, 2>(b, x, row / TILE, &mut sums),
                }
            }
            for t in 0..n_tiles {
                for p in 0..n_panels {
                    let first = row + t * TILE;
                    let n = rows.end.min(first + TILE) - first;
                    for (i, s) in sums.0[t * 2 + p].iter().enumerate().take(n) {
                        // SAFETY: the caller's outputs.
                        unsafe { out.store(first + i, (panel + p) * LANES, s) };
                    }
                }
            }
            row += TILE * n_tiles;
        }
        panel += n_panels;
    }
}

/// Software prefetch distance in bytes: the second half of this tile and the first half of the
/// next.
const AHEAD: usize = 512;

/// Computes the products of `T` row tiles with `P` panels into `sums[2 * tile + panel]`.
///
/// # Safety
/// AMX tiles must be configured; the panels and row tiles must exist.
unsafe fn dot<const T: usize, const P: usize>(
    b: [*const u8; 2],
    x: &Bf16Activations,
    tile: usize,
    sums: &mut Sums,
) {
    // SAFETY: all tiles lie within the panels, the activations and the sums.
    unsafe {
        // Uses as few tile registers as possible; see `docs/explanation/kernels.md`.
        tile_zero!(0);
        if P == 2 {
            tile_zero!(1);
        }
        if T == 2 {
            tile_zero!(2);
            if P == 2 {
                tile_zero!(3);
            }
        }
        for step in 0..x.steps {
            let at = x.weights_of(step);
            if T == 1 {
                // One row tile is memory-bound.
                b.iter().take(P).for_each(|b| prefetch_tile(CacheLevel::L2, b.wrapping_add(at + AHEAD)));
            }
            tile_load!(4, x.tile(tile, step), 64);
            tile_load!(5, b[0].add(at), 64);
            tile_dot_bf16!(0, 4, 5);
            if P == 2 {
                tile_load!(5, b[1].add(at), 64);
                tile_dot_bf16!(1, 4, 5);
            }
            if T == 2 {
                tile_load!(4, x.tile(tile + 1, step), 64);
                if P == 2 {
                    tile_dot_bf16!(3, 4, 5);
                    tile_load!(5, b[0].add(at), 64);
                }
                tile_dot_bf16!(2, 4, 5);
            }
        }
        tile_store!(0, sums.0[0].as_mut_ptr());
        if P == 2 {
            tile_store!(1, sums.0[1].as_mut_ptr());
        }
        if T == 2 {
            tile_store!(2, sums.0[2].as_mut_ptr());
            if P == 2 {
                tile_store!(3, sums.0[3].as_mut_ptr());
            }
        }
    }
}
