//! Matrices of f32, for exact arithmetic.

use super::LANES;
use crate::buffer::Buffer;
use crate::level::per_level;
use crate::matmul::Output;
use crate::{Level, Team};
use std::io;

/// An f32 matrix as panels of 16 outputs, a vector per input. One chain of fused multiply-adds per output.
pub(crate) struct F32Panels {
    pub(crate) outputs: usize,
    inputs: usize,
    bytes: Buffer,
}

impl F32Panels {
    /// Packs rows that `row(n, values)` fills.
    pub(crate) fn pack(
        team: &Team,
        (outputs, inputs): (usize, usize),
        row: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> io::Result<Self> {
        let panels = outputs.div_ceil(LANES);
        let bytes = Buffer::in_large_pages(panels * inputs * 64)?;
        let base = bytes.ptr() as usize;
        team.each(panels, &|_, panel| {
            // SAFETY: the panel lies in the buffer, and each panel is written by one thread.
            let dest = unsafe {
                std::slice::from_raw_parts_mut((base + panel * inputs * 64) as *mut [f32; LANES], inputs)
            };
            let mut values = vec![0f32; inputs];
            for lane in 0..LANES.min(outputs - panel * LANES) {
                row(panel * LANES + lane, &mut values);
                dest.iter_mut().zip(&values).for_each(|(d, &v)| d[lane] = v);
            }
        });
        Ok(Self { outputs, inputs, bytes })
    }

    pub(crate) fn panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn panel(&self, n: usize) -> &[[f32; LANES]] {
        debug_assert!(n < self.panels());
        // SAFETY: the panel lies in the buffer, which is aligned to a page; every bit pattern is a float.
        unsafe { std::slice::from_raw_parts(self.bytes.ptr().add(n * self.inputs * 64).cast(), self.inputs) }
    }
}

#[inline(always)]
fn f32_panel_body(w: &F32Panels, x: &[f32], stride: usize, panel: usize, rows: usize, out: &Output) {
    #[inline(always)]
    fn some<const N: usize>(w: &[[f32; LANES]], x: [&[f32]; N]) -> [[f32; LANES]; N] {
        let mut sums = [[0f32; LANES]; N];
        for (i, w) in w.iter().enumerate() {
            for n in 0..N {
                let v = x[n][i];
                for lane in 0..LANES {
                    sums[n][lane] = w[lane].mul_add(v, sums[n][lane]);
                }
            }
        }
        sums
    }
    let weights = w.panel(panel);
    let at = |row: usize| &x[row * stride..row * stride + w.inputs];
    let mut row = 0;
    while row < rows {
        if rows - row >= 4 {
            let sums = some::<4>(weights, std::array::from_fn(|n| at(row + n)));
            sums.iter().enumerate().for_each(|(n, s)| out.store(row + n, panel * LANES, s));
            row += 4;
        } else {
            let [sums] = some::<1>(weights, [at(row)]);
            out.store(row, panel * LANES, &sums);
            row += 1;
        }
    }
}

per_level! {
    /// One panel times all rows.
    f32_panel(w: &F32Panels, x: &[f32], stride: usize, panel: usize, rows: usize, out: &Output) => f32_panel_body
}

/// `out[row] = w · x[row]`, rows of `x` `stride` apart.
pub(crate) fn matmul_f32(
    team: &Team,
    level: Level,
    w: &F32Panels,
    (x, stride): (&[f32], usize),
    rows: usize,
    out: &Output,
) {
    team.each(w.panels(), &|_, panel| f32_panel(level, w, x, stride, panel, rows, out));
}
