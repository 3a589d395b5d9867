//! Many rows of bf16 without a tile unit: some steps of rows are brought into the form that is multiplied and stay in the caches while panels pass by,
//! of which one step is brought into it at a time.

use super::Bf16Activations;
use crate::Level;
use crate::ask::{Near, ask_tile};
use crate::chains::{Columns, Rows, Sums, multiply};
use crate::matmul::Output;
use crate::meanwhile;
use crate::tile::{LANES, TILE};
use std::cell::RefCell;
use std::mem::offset_of;
use std::ops::Range;

/// Rows from which on this pays: where pairs are multiplied as such, half of a tile's rows at a time.
pub(crate) fn from(level: Level) -> usize {
    if level == Level::Avx512Bf16 { 5 } else { 9 }
}

/// Rows that go together.
pub(crate) const BLOCK: usize = 128;
/// Panels that take the same widened rows.
pub(crate) const PANELS: usize = 8;
/// Steps of tiles of rows that there is room for: the fewer the rows, the more of a panel is read in one go.
const ROWS: usize = 32;

/// Steps in which a page of what is attended to next is asked for.
const PARTS: usize = 8;

/// So many bytes behind a tile that is opened lies the next but one, which is brought into the first level meanwhile.
const SOON: usize = 2048;

/// What a thread works in.
#[repr(C, align(64))]
struct Room {
    /// The rows of a step one after the other.
    rows: [Rows; ROWS],
    sums: [[Sums; BLOCK / TILE]; PANELS],
}

// A vector that straddles two lines takes twice as long.
const _: () = assert!(offset_of!(Room, sums).is_multiple_of(64));

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        rows: [Rows::NONE; ROWS],
        sums: [[[[0.0; LANES]; TILE]; BLOCK / TILE]; PANELS],
    }));
}

/// At most [`PANELS`] panels of so many bytes, from panel `first_panel` of the matrix on, times at most [`BLOCK`] rows, which begin with a tile.
///
/// # Safety
/// The panels and the rows must exist, and nobody else may write their outputs meanwhile.
pub(crate) unsafe fn panels(
    level: Level,
    (panels, bytes): (&[*const u8], usize),
    x: &Bf16Activations,
    first_panel: usize,
    rows: Range<usize>,
    out: &Output<'_>,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK && panels.len() <= PANELS);
    let (first, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    // Half a tile is multiplied where the last one has no more.
    let taken = rows.len().next_multiple_of(TILE / 2);
    let few = meanwhile::pays(level, rows.len());
    ROOM.with_borrow_mut(|room| {
        for sums in &mut room.sums[..panels.len()] {
            sums[..tiles].fill([[0.0; LANES]; TILE]);
        }
        let mut columns = Columns::NONE;
        let at_once = ROWS / tiles.max(1);
        for from in (0..x.steps).step_by(at_once) {
            let some = from..x.steps.min(from + at_once);
            for (step, rows) in some.clone().zip(room.rows.chunks_exact_mut(tiles)) {
                for (t, rows) in rows.iter_mut().enumerate() {
                    // SAFETY: activations are whole tiles.
                    unsafe { rows.open(level, x.tile(first + t, step), 64) };
                }
            }
            let last = from + at_once >= x.steps;
            for (n, (panel, sums)) in panels.iter().zip(&mut room.sums).enumerate() {
                let first_output = (first_panel + n) * LANES;
                if last {
                    rows.clone().for_each(|row| out.fetch(row, first_output));
                }
                let mut opened = std::ptr::null();
                let mut page = None;
                for (step, rows) in some.clone().zip(room.rows.chunks_exact(tiles)) {
                    if few {
                        if step % PARTS == 0 {
                            page = meanwhile::next();
                        }
                        if let Some(page) = page {
                            page.ask(step % PARTS, PARTS);
                        }
                    }
                    let tile = panel.wrapping_add(x.weights_of(step));
                    if tile != opened {
                        // The next panel's, then what comes soon.
                        ask_tile(Near::Second, tile.wrapping_add(bytes));
                        ask_tile(Near::First, tile.wrapping_add(SOON));
                        // SAFETY: a tile of the panel.
                        unsafe { columns.open(level, tile) };
                        opened = tile;
                    }
                    for (rows, sums) in rows.iter().zip(sums.as_flattened_mut()[..taken].chunks_mut(TILE)) {
                        multiply(level, rows, &columns, sums);
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
