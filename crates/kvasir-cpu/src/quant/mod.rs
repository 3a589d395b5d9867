//! Quantised weights times rows of activations.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
mod format;
#[cfg(target_arch = "x86_64")]
mod layouts;
mod panels;
mod portable;
mod quantise;
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
        let block = token_blocks(rows, w.supers * SUPER).min(amx::BLOCK);
        let pairs = w.panels().div_ceil(2);
        team.each(pairs * rows.div_ceil(block), &|_, item| {
            let (first, panel) = (item / pairs * block, item % pairs * 2);
            tiles(w, x, panel, first..rows.min(first + block), out);
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

/// Panel `panel` and the next one, if there is one, times some rows.
#[cfg(target_arch = "x86_64")]
fn tiles(w: &QuantPanels, x: &QuantActivations, panel: usize, rows: std::ops::Range<usize>, out: &Output) {
    thread_local! {
        static ROOM: RefCell<Box<amx::Room>> = RefCell::new(Box::new(amx::Room::new()));
    }
    ROOM.with_borrow_mut(|room| {
        // SAFETY: the level says that tiles are permitted.
        let _tiles = unsafe { crate::amx::Tiles::configure() };
        // SAFETY: tiles are configured, the panels have layout `L`, and blocks of rows begin with a tile.
        vnni::with_layout!(w.format, L => unsafe {
            if panel + 1 < w.panels() {
                amx::panels::<L, 2>(w, panel, x, rows, room, out);
            } else {
                amx::panels::<L, 1>(w, panel, x, rows, room, out);
            }
        });
    });
}
