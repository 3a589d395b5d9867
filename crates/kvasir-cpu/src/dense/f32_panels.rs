//! Matrices that are computed in f32.

use super::LANES;
use super::width::{Opened, PART, Width, put_row};
use crate::ask::{Near, ask_line};
use crate::buffer::Buffer;
use crate::level::per_level;
use crate::matmul::Output;
use crate::singles::{Lying, add_products};
use crate::{Level, Team};
use std::cell::RefCell;
use std::io;

/// A matrix as panels of 16 outputs, in which numbers are as wide as they came. One chain of fused multiply-adds per output.
pub(crate) struct F32Panels {
    pub(crate) outputs: usize,
    inputs: usize,
    width: Width,
    bytes: Buffer,
}

impl F32Panels {
    /// Packs rows that `row(n, values)` fills with numbers of this width.
    pub(crate) fn pack(
        team: &Team,
        size: (usize, usize),
        width: Width,
        row: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> io::Result<Self> {
        thread_local! {
            static MADE: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
        }
        let level = Level::detect();
        Self::pack_with(team, size, width, &|n, lane, panel| {
            MADE.with_borrow_mut(|values| {
                values.resize(size.1, 0.0);
                row(n, values);
                put_row(level, width, lane, values, panel);
            });
        })
    }

    /// Packs rows that `put(n, lane, panel)` writes into their panels.
    pub(crate) fn pack_with(
        team: &Team,
        (outputs, inputs): (usize, usize),
        width: Width,
        put: &(dyn Fn(usize, usize, &mut [u8]) + Sync),
    ) -> io::Result<Self> {
        let panels = outputs.div_ceil(LANES);
        let len = inputs.div_ceil(PART) * width.bytes();
        let bytes = Buffer::in_large_pages(panels * len)?;
        let base = bytes.ptr() as usize;
        team.each_in_order(panels, &|_, panel| {
            // SAFETY: the panel lies in the buffer, and each panel is written by one thread.
            let dest = unsafe { std::slice::from_raw_parts_mut((base + panel * len) as *mut u8, len) };
            for lane in 0..LANES.min(outputs - panel * LANES) {
                put(panel * LANES + lane, lane, dest);
            }
        });
        Ok(Self { outputs, inputs, width, bytes })
    }

    fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn panel(&self, n: usize) -> &[u8] {
        let len = self.inputs.div_ceil(PART) * self.width.bytes();
        &self.bytes.bytes()[n * len..(n + 1) * len]
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
    w: &F32Panels,
    (x, stride): (&[f32], usize),
    first: usize,
    rows: usize,
    own_level: Level,
    out: &Output<'_>,
) {
    let panels = PANELS.min(w.panels() - first);
    let mut opened: [Opened; PANELS] = [[[0.0; LANES]; PART]; PANELS];
    for from in (0..rows).step_by(ROWS) {
        let rows = ROWS.min(rows - from);
        let mut sums = [[[0f32; LANES]; ROWS]; PANELS];
        for (part, at) in (0..w.inputs).step_by(PART).enumerate() {
            let bytes = w.width.bytes();
            for (panel, opened) in opened[..panels].iter_mut().enumerate() {
                let part = &w.panel(first + panel)[part * bytes..][..bytes];
                for line in (0..bytes).step_by(64) {
                    ask_line(Near::Second, part.as_ptr().wrapping_add(AHEAD + line));
                }
                w.width.open(own_level, part, opened);
            }
            let inputs = PART.min(w.inputs - at);
            let row = |n: usize| &x[(from + n) * stride + at..][..inputs];
            // A few rows take all panels at once, so that no chain waits for itself.
            let mut n = rows / TOGETHER * TOGETHER;
            if n > 0 {
                let all = &x[from * stride + at..][..(n - 1) * stride + inputs];
                let x = Lying { first: all.as_ptr(), row: stride, number: 1 };
                for (opened, sums) in opened[..panels].iter().zip(&mut sums) {
                    // SAFETY: so many rows of so many inputs each.
                    unsafe { add_products(own_level, x, &opened[..inputs], &mut sums[..n]) };
                }
            }
            while n < rows {
                add_row(&opened, row(n), n, &mut sums);
                n += 1;
            }
        }
        for (panel, sums) in sums[..panels].iter().enumerate() {
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
    /// Some panels from `first` on times all rows.
    ///
    /// # Safety
    /// Nobody else may write their outputs meanwhile.
    unsafe f32_panels(w: &F32Panels, x: (&[f32], usize), first: usize, rows: usize, own_level: Level, out: &Output<'_>) => f32_panels_body
}

/// `out[row] = w · x[row]`, rows of `x` `stride` apart.
pub(crate) fn matmul_f32(team: &Team, level: Level, w: &F32Panels, x: (&[f32], usize), out: &mut Output<'_>) {
    let out = &*out;
    team.each_in_order(w.panels().div_ceil(PANELS), &|_, n| {
        // SAFETY: the outputs are this piece of work's own.
        unsafe { f32_panels(level, w, x, n * PANELS, out.rows(), level, out) };
    });
}
