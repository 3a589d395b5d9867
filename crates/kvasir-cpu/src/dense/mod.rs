//! Weights that are floats: bf16 in pairs of inputs, and f32 for exact arithmetic.

mod f32_panels;
mod many;
pub(crate) mod nibbles;
pub(crate) mod octets;
mod panels;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod width;

use crate::buffer::Buffer;
use crate::halves::{bf16, round_bf16};
use crate::level::per_level;
use crate::matmul::{Output, token_blocks};
use crate::panels::{PanelReader, Room};
use crate::quant::{LANES, TILE};
use crate::{Level, Team};
pub(crate) use f32_panels::{F32Panels, matmul_f32};
pub(crate) use panels::Bf16Panels;
use panels::Floats;
use std::cell::RefCell;
use std::io;
pub(crate) use width::{PART, Width};

/// Inputs of one tile of bf16.
pub(crate) const STEP: usize = 32;

/// Rows of activations as bf16 in tiles of 16 rows × 32 inputs.
pub(crate) struct Bf16Activations {
    taken: Taken,
    /// Tiles that rows are multiplied as, one after the other.
    pub(crate) steps: usize,
    tiles: usize,
    bytes: Buffer,
}

/// As how many bf16 a number is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The nearest one.
    Once,
    /// That, and the nearest one to what it leaves: 16 bits and more of the number. A tile of the first is followed by one of the second.
    Twice,
}

impl Bf16Activations {
    pub(crate) fn new(rows: usize, inputs: usize, taken: Taken) -> io::Result<Self> {
        let (tiles, steps) = (rows.div_ceil(TILE).next_multiple_of(2), inputs.div_ceil(STEP) << taken as u32);
        Ok(Self { taken, steps, tiles, bytes: Buffer::in_large_pages(tiles * steps * 1024)? })
    }

    /// The same room for rows of another length, if they fit.
    pub(crate) fn reshape(&mut self, inputs: usize) {
        self.steps = inputs.div_ceil(STEP) << self.taken as u32;
        self.tiles = (self.bytes.len() / 1024 / self.steps.max(1)) & !1;
    }

    /// Whether there is room for so many rows.
    pub(crate) fn takes(&self, rows: usize) -> bool {
        rows <= self.tiles * TILE
    }

    pub(crate) fn tile(&self, tile: usize, step: usize) -> *const u8 {
        debug_assert!(tile < self.tiles && step < self.steps);
        self.bytes.ptr().wrapping_add((tile * self.steps + step) * 1024)
    }

    /// Writes row `row` from `x`.
    ///
    /// # Safety
    /// No other thread may use the same row meanwhile, and there must be room for it.
    pub(crate) unsafe fn write_row(&self, level: Level, row: usize, x: &[f32]) {
        let place = |step| self.tile(row / TILE, step).wrapping_add(row % TILE * 64).cast_mut();
        for (n, numbers) in x.chunks(STEP).enumerate() {
            let mut bits = [[0u16; STEP]; 2];
            match self.taken {
                Taken::Once => narrow(level, numbers, &mut bits[0]),
                Taken::Twice => split(level, numbers, &mut bits),
            }
            for (part, bits) in bits.iter().enumerate().take(1 << self.taken as u32) {
                // SAFETY: 64 bytes of this row.
                unsafe {
                    place((n << self.taken as u32) + part).cast::<[u16; STEP]>().write_unaligned(*bits)
                };
            }
        }
    }

    /// Where in a panel the weights lie that a step is multiplied with.
    #[inline(always)]
    pub(crate) fn weights_of(&self, step: usize) -> usize {
        (step >> self.taken as u32) * 1024
    }
}

#[inline(always)]
fn narrow_body(x: &[f32], bits: &mut [u16]) {
    bits.iter_mut().zip(x).for_each(|(b, &v)| *b = round_bf16(v));
}

per_level! {
    /// Rounds to bf16.
    narrow(x: &[f32], bits: &mut [u16]) => narrow_body
}

#[inline(always)]
fn split_body(x: &[f32], [upper, lower]: &mut [[u16; STEP]; 2]) {
    for ((upper, lower), &v) in upper.iter_mut().zip(lower).zip(x) {
        *upper = round_bf16(v);
        *lower = round_bf16(v - bf16(*upper));
    }
}

per_level! {
    /// Numbers as sums of two bf16.
    split(x: &[f32], parts: &mut [[u16; STEP]; 2]) => split_body
}

/// `c += a · b` for one tile of 16 outputs and `N` rows, as the tile unit does it. `a` is a row of 32 bf16, `b` a tile.
///
/// # Safety
/// `b` must be a tile of 1024 bytes, each of `a` 64 bytes.
#[inline(always)]
pub(crate) unsafe fn dot_step<const N: usize>(a: [*const u8; N], b: *const u8, c: &mut [[f32; LANES]; N]) {
    let (mut even, mut odd) = ([[0f32; LANES]; N], [[0f32; LANES]; N]);
    for i in 0..16 {
        // SAFETY: row `i` of the tile, pair `i` of each row.
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
        // SAFETY: as the caller vouches.
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
    /// One panel times all rows with vectors; its outputs begin with `first`.
    ///
    /// # Safety
    /// The rows must exist, and nobody else may write these outputs meanwhile.
    unsafe vector_panel(tiles: &[u8], x: &Bf16Activations, first: usize, rows: usize, out: &Output<'_>) => vector_panel_body
}

thread_local! {
    /// Where panels are made that are not packed.
    static MADE: RefCell<[Room; many::PANELS]> = const { RefCell::new([const { Room::new() }; many::PANELS]) };
}

/// `out[row] = w · x[row]`.
pub(crate) fn matmul_bf16(
    team: &Team,
    level: Level,
    w: &Bf16Panels,
    x: &Bf16Activations,
    out: &mut Output<'_>,
) {
    assert!(x.takes(out.rows()) && x.steps == w.kind.steps << x.taken as u32, "rows and matrix fit");
    w.read(team, |reader| matmul_of(team, level, reader, x, out));
}

fn matmul_of(
    team: &Team,
    level: Level,
    w: PanelReader<'_, '_, Floats>,
    x: &Bf16Activations,
    out: &Output<'_>,
) {
    let (panels, steps, rows) = (w.panels.panels(), w.panels.kind.steps, out.rows());
    if level < Level::Amx && rows >= many::from(level) {
        let groups = panels.div_ceil(many::PANELS);
        return team.each_in_order(groups * rows.div_ceil(many::BLOCK), &|_, item| {
            let first = item % groups * many::PANELS;
            let row = item / groups * many::BLOCK;
            let rows = row..rows.min(row + many::BLOCK);
            MADE.with_borrow_mut(|made| {
                let mut at = [std::ptr::null(); many::PANELS];
                let some = at.iter_mut().zip(made).zip(first..panels.min(first + many::PANELS));
                let n = some.map(|((at, room), panel)| *at = w.panel(panel, room).as_ptr()).count();
                // SAFETY: the panels exist, and so do the rows; the outputs are this piece of work's own.
                unsafe { many::panels(level, (&at[..n], steps * 1024), x, first, rows, out) };
            });
        });
    }
    let block = if rows > 2 * TILE { token_blocks(rows, x.steps * STEP * 2) } else { rows };
    let group = if rows > 2 * TILE { 4 } else { (64 / steps.max(1)).clamp(1, 64).next_multiple_of(2) };
    let groups = panels.div_ceil(group);
    team.each_in_order(groups * rows.div_ceil(block.max(1)), &|_, item| {
        let panels = item % groups * group..panels.min((item % groups + 1) * group);
        let first = item / groups * block;
        MADE.with_borrow_mut(|made| {
            #[cfg(target_arch = "x86_64")]
            if level >= Level::Amx {
                // SAFETY: the level says that tiles are permitted; the rows exist, and the outputs are this piece of work's own.
                return unsafe { tiles::panels(&w, made, x, panels, first..rows.min(first + block), out) };
            }
            if first == 0 {
                for panel in panels {
                    let tiles = w.panel(panel, &mut made[0]);
                    // SAFETY: as above.
                    unsafe { vector_panel(level, tiles, x, panel * LANES, rows, out) };
                }
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panels::tests::Lines;
    use kvasir_formats::{DType, encoding};

    fn value(i: usize) -> f32 {
        let mut x = (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 29;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((x >> 40) as f32 / (1 << 24) as f32 - 0.5) * 3.0
    }

    #[test]
    fn every_level_and_number_of_rows_gives_the_same_bits() {
        for (outputs, inputs) in [(40, 96), (16, 32), (77, 200)] {
            let team = Team::new(2);
            let row = |n: usize, out: &mut [f32]| {
                out.iter_mut().enumerate().for_each(|(i, v)| *v = value(n * 7919 + i))
            };
            let w = Bf16Panels::rounded(&team, (outputs, inputs), &row).unwrap();
            let wide = F32Panels::pack(&team, (outputs, inputs), Width::Whole, &row).unwrap();
            let values: Vec<f32> = (0..70 * inputs).map(|i| value(i + 1_000_000)).collect();
            let [once, twice] = [Taken::Once, Taken::Twice].map(|taken| {
                let x = Bf16Activations::new(70, inputs, taken).unwrap();
                for (r, v) in values.chunks_exact(inputs).enumerate() {
                    // SAFETY: one thread, rows below the number asked for.
                    unsafe { x.write_row(Level::detect(), r, v) };
                }
                x
            });
            let run = |level, rows: usize| {
                let mut out = vec![f32::NAN; rows * outputs * 3];
                let (a, rest) = out.split_at_mut(rows * outputs);
                let (b, c) = rest.split_at_mut(rows * outputs);
                let output = |out| Output::new(out, rows, outputs, outputs);
                matmul_bf16(&team, level, &w, &once, &mut output(a));
                matmul_bf16(&team, level, &w, &twice, &mut output(c));
                matmul_f32(&team, level, &wide, (&values, inputs), &mut output(b));
                [a.to_vec(), b.to_vec(), c.to_vec()]
            };
            let reference = run(Level::Portable, 70);
            for level in Level::available() {
                for rows in [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 25, 32, 33, 70] {
                    let got = run(level, rows);
                    for (got, want) in got.iter().zip(&reference) {
                        assert!(
                            got.iter().zip(want).all(|(a, b)| a.to_bits() == b.to_bits()),
                            "{level} {rows}"
                        );
                    }
                }
            }
            let exact = |weight: &dyn Fn(usize) -> f32, r: usize, o: usize| -> f64 {
                let product = |i| f64::from(weight(o * 7919 + i)) * f64::from(values[r * inputs + i]);
                (0..inputs).map(product).sum()
            };
            let narrow = |i| bf16(round_bf16(value(i)));
            for i in 0..70 * outputs {
                let (r, o) = (i / outputs, i % outputs);
                let [once, wide, twice] = reference.each_ref().map(|all| f64::from(all[i]));
                let (want, narrow) = (exact(&value, r, o), exact(&narrow, r, o));
                assert!((once - want).abs() < 0.15, "bf16: {once} {want}");
                assert!((wide - want).abs() < 1e-4, "f32: {wide} {want}");
                assert!((twice - narrow).abs() < 1e-3, "bf16 times what is taken twice: {twice} {narrow}");
            }
        }
    }

    #[test]
    fn rows_where_they_lie_give_the_bits_of_packed_ones() {
        let (outputs, team) = (77, Team::new(2));
        for (dtype, inputs) in [(DType::BF16, 200), (DType::BF16, 96), (DType::F16, 200)] {
            let values: Vec<f32> = (0..outputs * inputs).map(value).collect();
            let mut bytes = Vec::new();
            for row in values.chunks_exact(inputs) {
                encoding::quantize(dtype, row, inputs, &mut bytes).unwrap();
            }
            let mut stored = vec![0.0; values.len()];
            encoding::dequantize(dtype, &bytes, &mut stored).unwrap();
            let row = |n: usize, out: &mut [f32]| out.copy_from_slice(&stored[n * inputs..][..inputs]);
            let packed = Bf16Panels::rounded(&team, (outputs, inputs), &row).unwrap();
            let w =
                Bf16Panels::floats(dtype, (outputs, inputs), Lines { step: bytes.len() / outputs, bytes });
            let x = Bf16Activations::new(70, inputs, Taken::Once).unwrap();
            for r in 0..70 {
                let row: Vec<f32> = (0..inputs).map(|i| value(r * inputs + i + 1_000_000)).collect();
                // SAFETY: one thread, rows below the number asked for.
                unsafe { x.write_row(Level::detect(), r, &row) };
            }
            for part in 0..3 {
                for level in Level::available() {
                    for rows in [1, 5, 16, 40, 70] {
                        let run = |w: &Bf16Panels| {
                            let mut out = vec![f32::NAN; rows * outputs];
                            let mut output = Output::new(&mut out, rows, outputs, outputs);
                            matmul_bf16(&team, level, w, &x, &mut output);
                            out.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                        };
                        assert!(run(&w) == run(&packed), "{dtype} {level} {rows} rows, part {part}");
                    }
                }
                assert_eq!(w.is_packed(), part == 2);
                match part {
                    0 => assert!(w.pack_some(&team, 1).unwrap() > 0),
                    _ => while w.pack_some(&team, usize::MAX).unwrap() > 0 {},
                }
            }
        }
    }
}
