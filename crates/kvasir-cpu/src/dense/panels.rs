//! Panels of bf16 out of rows of any encoding.

use super::narrow;
use crate::ask::{Near, ask_line};
use crate::panels::{Encoded, EncodedRows, Kind, Panels, ahead};
use crate::tile::{LANES, STEP, transpose_rows};
use crate::{Level, Team};
use kvasir_formats::{DType, encoding};
use std::cell::RefCell;
use std::io;

/// Floats as tiles of 32 inputs: 16 rows of pairs of inputs × 16 outputs each.
pub(crate) struct Floats {
    /// How rows are stored, if they are.
    stored: Option<DType>,
    pub(crate) steps: usize,
}

/// A matrix of bf16.
///
/// Order of summation, which all levels keep: per tile one chain of fused multiply-adds over the even inputs and one over the odd, the
/// two added, that added to the sum of the tiles before. It is the tile unit's own.
pub(crate) type Bf16Panels = Panels<Floats>;

/// Bytes of a tile, and of a row's part of it.
const TILE_BYTES: usize = 1024;
const LINE: usize = 64;

impl Kind for Floats {
    fn panel_bytes(&self) -> usize {
        self.steps * TILE_BYTES
    }

    fn make(&self, rows: &Encoded<'_>, out: &mut [u8]) {
        let level = Level::detect();
        let Some(dtype) = self.stored.filter(|dtype| *dtype != DType::BF16) else {
            return lay(level, rows, out);
        };
        self.round(level, out, |lane, values| {
            // The row's length was checked against the type when the file was opened; there is none where the matrix ends.
            let row = rows[lane];
            let inputs = row.len() / dtype.block_bytes() * dtype.block_len();
            if encoding::dequantize(dtype, row, &mut values[..inputs]).is_err() {
                values.fill(f32::NAN);
            }
        });
    }
}

impl Floats {
    /// Makes a panel out of the numbers that `row` writes for each of its outputs.
    fn round(&self, level: Level, out: &mut [u8], row: impl Fn(usize, &mut [f32])) {
        thread_local! {
            static MADE: RefCell<(Vec<f32>, Vec<u16>)> = const { RefCell::new((Vec::new(), Vec::new())) };
        }
        MADE.with_borrow_mut(|(values, bits)| {
            let len = self.steps * STEP;
            values.resize(len, 0.0);
            bits.resize(LANES * len, 0);
            let mut rows: Encoded<'_> = [&[]; LANES];
            for (lane, (bits, bytes)) in bits.chunks_exact_mut(len).zip(&mut rows).enumerate() {
                values.fill(0.0);
                row(lane, values);
                narrow(level, values, bits);
                // SAFETY: any numbers are bytes.
                *bytes = unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), size_of_val(bits)) };
            }
            lay(level, &rows, out);
        });
    }
}

impl Bf16Panels {
    /// A matrix of `outputs` rows of `inputs` floats that is not packed yet.
    pub(crate) fn floats(
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: impl EncodedRows + 'static,
    ) -> Self {
        Self::of(Floats { stored: Some(dtype), steps: inputs.div_ceil(STEP) }, outputs, rows)
    }

    /// Packs rows that `row(n, values)` fills.
    pub(crate) fn rounded(
        team: &Team,
        (outputs, inputs): (usize, usize),
        row: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) -> io::Result<Self> {
        let kind = Floats { stored: None, steps: inputs.div_ceil(STEP) };
        let level = Level::detect();
        Self::packed(kind, outputs, team, |kind, panel, out| {
            kind.round(level, out, |lane, values| {
                if panel * LANES + lane < outputs {
                    row(panel * LANES + lane, &mut values[..inputs]);
                }
            });
        })
    }
}

/// Writes rows of bf16 into their panel, and asks memory for what lies where the next panel's rows probably are.
fn lay(level: Level, rows: &Encoded<'_>, out: &mut [u8]) {
    let ahead = ahead(rows);
    // What is not a whole line: where rows end, or where there is none.
    let mut rests = [[0u8; LINE]; LANES];
    for (step, out) in out.chunks_exact_mut(TILE_BYTES).enumerate() {
        let mut lines = [std::ptr::null(); LANES];
        for ((row, rest), line) in rows.iter().zip(&mut rests).zip(&mut lines) {
            let part = &row[row.len().min(step * LINE)..row.len().min((step + 1) * LINE)];
            ask_line(Near::Second, part.as_ptr().wrapping_add(ahead));
            *line = part.as_ptr();
            if part.len() < LINE {
                rest.fill(0);
                rest[..part.len()].copy_from_slice(part);
                *line = rest.as_ptr();
            }
        }
        // SAFETY: whole lines, and a tile.
        unsafe { transpose_rows(level, &lines, out.as_mut_ptr()) };
    }
}
