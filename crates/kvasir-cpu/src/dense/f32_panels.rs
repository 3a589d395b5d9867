//! Matrices that are computed in f32.

use super::width::{Opened, PART, Width, put_row};
use crate::ask::{Near, ask_line};
use crate::level::per_level;
use crate::matmul::Output;
use crate::panels::{Kind, Panels, Room};
use crate::singles::{Lying, add_products};
use crate::tile::LANES;
use crate::{Level, Team};
use std::cell::RefCell;
use std::io;

/// Numbers as wide as they came, [`PART`] inputs of all outputs after the other. One chain of fused multiply-adds per output.
#[derive(Clone, Copy)]
pub(crate) struct Wide {
    inputs: usize,
    width: Width,
}

/// A matrix that is computed in f32; it is packed when it is made.
pub(crate) type F32Panels = Panels<Wide>;

impl Kind for Wide {
    fn panel_bytes(&self) -> usize {
        self.inputs.div_ceil(PART) * self.width.bytes()
    }
}

impl F32Panels {
    /// Packs rows that `row(n, values)` fills with numbers of this width.
    pub(crate) fn numbers(
        team: &Team,
        size: (usize, usize),
        width: Width,
        row: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> io::Result<Self> {
        thread_local! {
            static MADE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let level = Level::detect();
        Self::codes(team, size, width, &|n, lane, panel| {
            MADE.with_borrow_mut(|values| {
                values.resize(size.1, 0.0);
                row(n, values);
                put_row(level, width, lane, values, panel);
            });
        })
    }

    /// Packs rows that `put(n, lane, panel)` writes into their panels.
    pub(crate) fn codes(
        team: &Team,
        (outputs, inputs): (usize, usize),
        width: Width,
        put: &(dyn Fn(usize, usize, &mut [u8]) + Sync),
    ) -> io::Result<Self> {
        Self::packed(Wide { inputs, width }, outputs, team, |_, panel, out| {
            let first = panel * LANES;
            (0..LANES.min(outputs - first)).for_each(|lane| put(first + lane, lane, out));
        })
    }
}

/// Panels that take a row at the same time: a chain waits for itself.
const PANELS: usize = 4;
/// Rows that a part is opened for at once.
const ROWS: usize = 32;
/// Rows from which on a panel is multiplied alone.
const TOGETHER: usize = 4;
/// Bytes from what is opened to what memory is asked for.
const AHEAD: usize = 2048;

/// # Safety
/// As for [`f32_panels`].
#[inline(always)]
unsafe fn f32_panels_body(
    kind: Wide,
    panels: &[&[u8]],
    (x, stride): (&[f32], usize),
    first: usize,
    own_level: Level,
    out: &Output<'_>,
) {
    let (Wide { inputs: all, width }, rows) = (kind, out.rows());
    let mut opened: [Opened; PANELS] = [[[0.0; LANES]; PART]; PANELS];
    for from in (0..rows).step_by(ROWS) {
        let rows = ROWS.min(rows - from);
        let mut sums = [[[0f32; LANES]; ROWS]; PANELS];
        for (part, at) in (0..all).step_by(PART).enumerate() {
            let bytes = width.bytes();
            for (panel, opened) in panels.iter().zip(&mut opened) {
                let part = &panel[part * bytes..][..bytes];
                for line in (0..bytes).step_by(64) {
                    ask_line(Near::Second, part.as_ptr().wrapping_add(AHEAD + line));
                }
                width.open(own_level, part, opened);
            }
            let inputs = PART.min(all - at);
            let row = |n: usize| &x[(from + n) * stride + at..][..inputs];
            // A few rows take all panels at once, so that no chain waits for itself.
            let mut n = rows / TOGETHER * TOGETHER;
            if n > 0 {
                let all = &x[from * stride + at..][..(n - 1) * stride + inputs];
                let x = Lying { first: all.as_ptr(), row: stride, number: 1 };
                for (opened, sums) in opened[..panels.len()].iter().zip(&mut sums) {
                    // SAFETY: so many rows of so many inputs each.
                    unsafe { add_products(own_level, x, &opened[..inputs], &mut sums[..n]) };
                }
            }
            while n < rows {
                add_row(&opened, row(n), n, &mut sums);
                n += 1;
            }
        }
        for (panel, sums) in sums[..panels.len()].iter().enumerate() {
            for (n, sums) in sums[..rows].iter().enumerate() {
                // SAFETY: the caller's outputs.
                unsafe { out.store(from + n, (first + panel) * LANES, sums) };
            }
        }
    }
}

/// Adds a part of all panels times one row.
#[inline(always)]
fn add_row(w: &[Opened; PANELS], x: &[f32], row: usize, sums: &mut [[[f32; LANES]; ROWS]; PANELS]) {
    let mut all: [[f32; LANES]; PANELS] = std::array::from_fn(|panel| sums[panel][row]);
    for (i, &v) in x.iter().enumerate().take(PART) {
        for panel in 0..PANELS {
            for lane in 0..LANES {
                all[panel][lane] = w[panel][i][lane].mul_add(v, all[panel][lane]);
            }
        }
    }
    (0..PANELS).for_each(|panel| sums[panel][row] = all[panel]);
}

per_level! {
    /// At most [`PANELS`] panels, whose outputs begin with panel `first`'s, times all rows.
    ///
    /// # Safety
    /// Nobody else may write their outputs meanwhile.
    unsafe f32_panels(kind: Wide, panels: &[&[u8]], x: (&[f32], usize), first: usize, own_level: Level, out: &Output<'_>) => f32_panels_body
}

/// `out[row] = w · x[row]`, rows of `x` `stride` apart.
pub(crate) fn matmul_f32(team: &Team, level: Level, w: &F32Panels, x: (&[f32], usize), out: &mut Output<'_>) {
    let (out, all) = (&*out, w.panels());
    w.read(team, |reader| {
        team.each_in_order(all.div_ceil(PANELS), &|_, n| {
            let (first, mut unused) = (n * PANELS, [const { Room::new() }; PANELS]);
            let mut panels: [&[u8]; PANELS] = [&[]; PANELS];
            let there = first..all.min(first + PANELS);
            for ((panel, room), n) in panels.iter_mut().zip(&mut unused).zip(there.clone()) {
                *panel = reader.panel(n, room);
            }
            // SAFETY: the outputs are this piece of work's own.
            unsafe { f32_panels(level, w.kind, &panels[..there.len()], x, first, level, out) };
        });
    });
}
