//! Quantised weights times rows of activations.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod format;
#[cfg(target_arch = "x86_64")]
mod layouts;
mod panels;
mod portable;
mod source;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod vnni;

pub(crate) use activations::{QuantActivations, TILE};
pub(crate) use format::{Format, LANES, SUPER};
pub(crate) use panels::QuantPanels;

use crate::matmul::{Output, token_blocks};
use crate::{Level, Team};
#[cfg(target_arch = "x86_64")]
use std::cell::RefCell;

/// Rows from which on the tile unit pays.
#[cfg(target_arch = "x86_64")]
const TILE_ROWS: usize = 6;

/// `out[row] = w · x[row]` for the first `rows` rows.
pub(crate) fn matmul(
    team: &Team,
    level: Level,
    w: &QuantPanels,
    x: &QuantActivations,
    rows: usize,
    out: &Output,
) {
    let panel_bytes = w.supers * w.format.bytes();
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Amx && rows >= TILE_ROWS {
        let block = token_blocks(rows, w.supers * SUPER);
        let group = (16 * 1024 / panel_bytes.max(1)).clamp(1, 8);
        let groups = w.panels().div_ceil(group);
        team.each(groups * rows.div_ceil(block), &|_, item| {
            let first = item / groups * block;
            let panels = (item % groups) * group..w.panels().min((item % groups + 1) * group);
            tiles(w, x, panels, first..rows.min(first + block), out);
        });
        return;
    }
    let group = (64 * 1024 / panel_bytes.max(1)).clamp(1, 64);
    team.each_in_order(w.panels().div_ceil(group), &|_, item| {
        for panel in item * group..w.panels().min((item + 1) * group) {
            few_rows(level, w, x, panel, rows, out);
        }
    });
}

#[cfg(target_arch = "x86_64")]
fn few_rows(level: Level, w: &QuantPanels, x: &QuantActivations, panel: usize, rows: usize, out: &Output) {
    fn some<L: vnni::Layout, const N: usize>(
        w: &QuantPanels,
        x: &QuantActivations,
        panel: usize,
        row: usize,
        out: &Output,
    ) {
        let mut sums = [[0.0; LANES]; N];
        // SAFETY: the level was found on this machine; the panel has the layout that its format names.
        unsafe { vnni::dot::<L, N>(w.panel(panel).as_ptr(), x, row, &mut sums) };
        sums.iter().enumerate().for_each(|(n, sums)| out.store(row + n, panel * LANES, sums));
    }
    if level < Level::Avx512Vnni {
        return reference(w, x, panel, rows, out);
    }
    let mut row = 0;
    while row < rows {
        let n = match rows - row {
            1 => 1,
            2 | 3 => 2,
            _ => 4,
        };
        vnni::with_layout!(w.format, L => match n {
            1 => some::<L, 1>(w, x, panel, row, out),
            2 => some::<L, 2>(w, x, panel, row, out),
            _ => some::<L, 4>(w, x, panel, row, out),
        });
        row += n;
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn few_rows(_: Level, w: &QuantPanels, x: &QuantActivations, panel: usize, rows: usize, out: &Output) {
    reference(w, x, panel, rows, out);
}

fn reference(w: &QuantPanels, x: &QuantActivations, panel: usize, rows: usize, out: &Output) {
    let mut sums = [0.0; LANES];
    for row in 0..rows {
        portable::dot(w.format, w.panel(panel), x, row, &mut sums);
        out.store(row, panel * LANES, &sums);
    }
}

#[cfg(target_arch = "x86_64")]
fn tiles(
    w: &QuantPanels,
    x: &QuantActivations,
    panels: std::ops::Range<usize>,
    rows: std::ops::Range<usize>,
    out: &Output,
) {
    thread_local! {
        static OPENED: RefCell<Vec<[u8; 64]>> = const { RefCell::new(Vec::new()) };
    }
    OPENED.with_borrow_mut(|opened| {
        // One more, so that a place on a cache line can be chosen.
        let lines = w.supers * amx::OPENED / 64 + 1;
        if opened.len() < lines {
            opened.resize(lines, [0; 64]);
        }
        let base = opened.as_mut_ptr().cast::<u8>();
        let base = base.wrapping_add(base.align_offset(64));
        let mut products = amx::Products::new();
        let mut sums = [[0.0; LANES]; 2 * TILE];
        // SAFETY: the level says that tiles are permitted.
        let _tiles = unsafe { crate::amx::Tiles::configure() };
        for panel in panels {
            vnni::with_layout!(w.format, L => {
                // SAFETY: `base` is aligned and has room for all superblocks; the panel has layout `L`.
                unsafe { amx::open_panel::<L>(w.panel(panel).as_ptr(), w.supers, base) };
                let mut row = rows.start;
                while row < rows.end {
                    let n = (rows.end - row).min(2 * TILE);
                    // SAFETY: tiles are configured; activations have room for pairs of tiles.
                    unsafe {
                        if n > TILE {
                            amx::dot::<L, 2>(base, x, row / TILE, &mut products, &mut sums);
                        } else {
                            amx::dot::<L, 1>(base, x, row / TILE, &mut products, &mut sums);
                        }
                    }
                    sums.iter().take(n).enumerate().for_each(|(i, s)| out.store(row + i, panel * LANES, s));
                    row += n;
                }
            });
        }
    });
}
