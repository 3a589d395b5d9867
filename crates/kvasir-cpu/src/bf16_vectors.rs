//! Many rows of bf16 without a tile unit: a few steps of rows and of a panel are widened at a time, and stay in the first-level cache while
//! they are multiplied.

use crate::Level;
use crate::chains::{Columns, Rows, Sums, multiply};
use crate::dense::{Bf16Activations, Bf16Panels};
use crate::matmul::Output;
use crate::quant::{LANES, TILE};
use std::cell::RefCell;
use std::ops::Range;

/// Rows from which on this pays.
pub(crate) const MANY: usize = 9;
/// Rows that go together.
pub(crate) const BLOCK: usize = 128;
/// Panels that take the same widened rows.
pub(crate) const PANELS: usize = 8;
/// Steps that are widened at a time.
const STEPS: usize = 4;

/// What a thread works in.
struct Room {
    rows: [[Rows; STEPS]; BLOCK / TILE],
    columns: [Columns; STEPS],
    sums: [[Sums; BLOCK / TILE]; PANELS],
}

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room {
        rows: [[Rows::NONE; STEPS]; BLOCK / TILE],
        columns: [Columns::NONE; STEPS],
        sums: [[[[0.0; LANES]; TILE]; BLOCK / TILE]; PANELS],
    }));
}

/// At most [`PANELS`] panels times at most [`BLOCK`] rows, which begin with a tile.
pub(crate) fn panels(
    level: Level,
    w: &Bf16Panels,
    x: &Bf16Activations,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Output,
) {
    debug_assert!(rows.start.is_multiple_of(TILE) && rows.len() <= BLOCK && panels.len() <= PANELS);
    let (first, tiles) = (rows.start / TILE, rows.len().div_ceil(TILE));
    ROOM.with_borrow_mut(|room| {
        for sums in &mut room.sums[..panels.len()] {
            sums[..tiles].fill([[0.0; LANES]; TILE]);
        }
        for from in (0..w.steps).step_by(STEPS) {
            let steps = from..w.steps.min(from + STEPS);
            for (t, rows) in room.rows[..tiles].iter_mut().enumerate() {
                for (step, rows) in steps.clone().zip(rows) {
                    // SAFETY: activations are whole tiles.
                    unsafe { rows.open(level, x.tile(first + t, step), 64) };
                }
            }
            for (panel, sums) in panels.clone().zip(&mut room.sums) {
                for (step, columns) in steps.clone().zip(&mut room.columns) {
                    // SAFETY: a tile of the panel.
                    unsafe { columns.open(level, w.panel(panel).wrapping_add(step * 1024)) };
                }
                for (rows, sums) in room.rows[..tiles].iter().zip(sums) {
                    for (rows, columns) in rows.iter().zip(&room.columns).take(steps.len()) {
                        multiply(level, rows, columns, sums);
                    }
                }
            }
        }
        for (panel, sums) in panels.zip(&room.sums) {
            for (row, sums) in rows.clone().zip(sums.as_flattened()) {
                out.store(row, panel * LANES, sums);
            }
        }
    });
}
