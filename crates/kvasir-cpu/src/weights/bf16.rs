//! Panels of 16-bit floats in VNNI tile layout (the B operand of AMX), packed from rows of any
//! encoding.
//!
//! bf16 and f16 rows are only transposed; other encodings are dequantized to f32 and rounded to
//! bf16 first. Panels of f16 are widened to f32 on every instruction set. A panel is a pure
//! function of its rows, so an in-place (not yet packed) matrix gives the same bits as a packed
//! one.

use crate::isa::features::Isa;
use crate::isa::float16::round_to_bf16;
use crate::isa::tile::{LANES, STEP, transpose_rows};
use crate::memory::aligned::AlignedVec;
use crate::prefetch::hint::{CacheLevel, prefetch_line};
use crate::threads::pool::ThreadPool;
use crate::weights::panels::{
    EncodedPanel, EncodedRows, PanelLayout, PanelReader, PanelScratch, Panels, RowScratch, WriteRow,
    next_panel_distance,
};
use crate::weights::shared_panels::MatrixId;
use kvasir_formats::{DType, Error, encoding};
use std::convert::Infallible;

/// Panel layout: tiles of 32 inputs x 16 outputs, each 16 rows of bf16 input pairs (VNNI).
pub(crate) struct Bf16Layout {
    /// Encoding of the stored rows; `None` if the matrix was packed from computed values.
    stored: Option<DType>,
    /// Whether the panels hold f16, else bf16.
    pub(crate) is_f16: bool,
    pub(crate) steps: usize,
}

/// A weight matrix of 16-bit floats.
///
/// Summation order on every instruction set, that of AMX: per tile one FMA chain over the even
/// inputs and one over the odd inputs; their sum is added to the accumulator.
pub(crate) type Bf16Panels = Panels<Bf16Layout>;

/// Bytes of a tile.
pub(crate) const TILE_BYTES: usize = 1024;
/// Bytes of one source row's part of a tile.
const LINE: usize = 64;

/// A panel layout that bf16 kernels can multiply.
pub(crate) trait TileLayout: PanelLayout {
    /// Tiles per panel.
    fn steps(&self) -> usize;

    /// Whether the tiles hold f16, else bf16.
    fn is_f16(&self) -> bool {
        false
    }

    /// The tiles of panel `n`, dequantized into `scratch` if it is block-quantized.
    fn tiles<'p>(reader: &'p PanelReader<'_, '_, Self>, n: usize, scratch: &'p mut TileScratch) -> &'p [u8]
    where
        Self: Sized;
}

/// Scratch for a panel that is made or dequantized on the fly.
#[derive(Default)]
pub(crate) struct TileScratch {
    pub(crate) panel: PanelScratch,
    pub(crate) tiles: AlignedVec<u8>,
}

impl TileLayout for Bf16Layout {
    fn steps(&self) -> usize {
        self.steps
    }

    fn is_f16(&self) -> bool {
        self.is_f16
    }

    fn tiles<'p>(reader: &'p PanelReader<'_, '_, Self>, n: usize, scratch: &'p mut TileScratch) -> &'p [u8] {
        reader.panel(n, &mut scratch.panel)
    }
}

impl PanelLayout for Bf16Layout {
    fn panel_bytes(&self) -> usize {
        self.steps * TILE_BYTES
    }

    fn make(&self, rows: &EncodedPanel<'_>, out: &mut [u8], scratch: &mut RowScratch) {
        let isa = Isa::detect();
        let Some(dtype) = self.stored.filter(|dtype| !matches!(dtype, DType::BF16 | DType::F16)) else {
            return lay(isa, rows, out);
        };
        let rounded: Result<(), Infallible> = self.round(isa, out, scratch, |lane, values| {
            // Row lengths were checked against the type when the file was opened. Rows past the end
            // of the matrix are empty.
            let row = rows[lane];
            let inputs = row.len() / dtype.block_bytes() * dtype.block_len();
            if encoding::dequantize(dtype, row, &mut values[..inputs]).is_err() {
                values.fill(f32::NAN);
            }
            Ok(())
        });
        let Ok(()) = rounded;
    }
}

impl Bf16Layout {
    /// Builds a panel from the f32 values that `row(lane, values)` writes, rounded to bf16.
    fn round<E>(
        &self,
        isa: Isa,
        out: &mut [u8],
        scratch: &mut RowScratch,
        row: impl Fn(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let (len, RowScratch { values, bits }) = (self.steps * STEP, scratch);
        values.resize(len, 0.0);
        bits.resize(LANES * len, 0);
        let mut rows: EncodedPanel<'_> = [&[]; LANES];
        for (lane, (bits, bytes)) in bits.chunks_exact_mut(len).zip(&mut rows).enumerate() {
            values.fill(0.0);
            row(lane, values)?;
            round_to_bf16(isa, values, bits);
            // SAFETY: u16 has no padding, so its bytes are initialized.
            *bytes = unsafe { std::slice::from_raw_parts(bits.as_ptr().cast(), size_of_val(bits)) };
        }
        lay(isa, &rows, out);
        Ok(())
    }
}

impl Bf16Panels {
    /// A matrix of `outputs` rows of `inputs` floats that is read in place until it is packed.
    pub(crate) fn floats(
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: impl EncodedRows + 'static,
        id: Option<MatrixId>,
    ) -> Self {
        let is_f16 = dtype == DType::F16;
        let kind = Bf16Layout { stored: Some(dtype), is_f16, steps: inputs.div_ceil(STEP) };
        Self::unpacked(kind, outputs, rows, id)
    }

    /// Packs a matrix whose row `n` is written by `row(n, values)`, rounded to bf16.
    pub(crate) fn rounded(
        threads: &ThreadPool,
        (outputs, inputs): (usize, usize),
        id: Option<MatrixId>,
        row: &WriteRow<'_>,
    ) -> Result<Self, Error> {
        let kind = Bf16Layout { stored: None, is_f16: false, steps: inputs.div_ceil(STEP) };
        let isa = Isa::detect();
        Self::packed(kind, outputs, threads, id, |kind, panel, out, scratch| {
            kind.round(isa, out, scratch, |lane, values| {
                let n = panel * LANES + lane;
                if n < outputs { row(n, &mut values[..inputs]) } else { Ok(()) }
            })
        })
    }
}

/// Transposes 16 rows of 16-bit floats into panel layout; prefetches the rows of the next panel at
/// their likely addresses.
fn lay(isa: Isa, rows: &EncodedPanel<'_>, out: &mut [u8]) {
    let ahead = next_panel_distance(rows);
    // Zero-padded copies of partial lines, at the end of rows and for absent rows.
    let mut rests = [[0u8; LINE]; LANES];
    for (step, out) in out.chunks_exact_mut(TILE_BYTES).enumerate() {
        let mut lines = [std::ptr::null(); LANES];
        for ((row, rest), line) in rows.iter().zip(&mut rests).zip(&mut lines) {
            let part = &row[row.len().min(step * LINE)..row.len().min((step + 1) * LINE)];
            prefetch_line(CacheLevel::L2, part.as_ptr().wrapping_add(ahead));
            *line = part.as_ptr();
            if part.len() < LINE {
                rest.fill(0);
                rest[..part.len()].copy_from_slice(part);
                *line = rest.as_ptr();
            }
        }
        // SAFETY: each pointer has 64 readable bytes, and `out` is a whole tile.
        unsafe { transpose_rows(isa, &lines, out.as_mut_ptr()) };
    }
}
