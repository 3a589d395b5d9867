//! Quantized weight matrices as panels of superblocks, read in place until they are packed.

use crate::isa::features::Isa;
use crate::weights::int8::format::{Format, SUPERBLOCK};
use crate::weights::int8::pack::pack;
use crate::weights::panels::{EncodedPanel, EncodedRows, PanelLayout, PanelReader, Panels, RowScratch};
use kvasir_formats::DType;

/// Panel layout: superblocks one after the other. 6- and 8-bit codes have four inputs of 16 outputs
/// per vector; 4- and 5-bit codes are stored by output.
pub(crate) struct SuperblockLayout {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    /// Superblocks per panel, all planes counted.
    pub(crate) superblocks: usize,
}

impl PanelLayout for SuperblockLayout {
    fn panel_bytes(&self) -> usize {
        self.superblocks * self.format.bytes()
    }

    fn make(&self, rows: &EncodedPanel<'_>, out: &mut [u8], _scratch: &mut RowScratch) {
        let isa = Isa::detect();
        pack(isa, self.dtype, self.format, rows, isa, out);
    }
}

/// A block-quantized weight matrix.
pub(crate) type QuantPanels = Panels<SuperblockLayout>;

/// Panel access for one multiplication.
pub(crate) type QuantReader<'a, 'r> = PanelReader<'a, 'r, SuperblockLayout>;

impl QuantPanels {
    /// A matrix of `outputs` rows of `inputs` weights, not packed yet. Returns the rows for
    /// encodings that are not block-quantized integers.
    pub(crate) fn quantized<R: EncodedRows + 'static>(
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: R,
    ) -> Result<Self, R> {
        match Format::for_matrix(dtype, outputs * inputs) {
            Some(format) => Ok(Self::in_format(format, dtype, (outputs, inputs), rows)),
            None => Err(rows),
        }
    }

    /// As [`quantized`](Self::quantized), in a given format, which the encoding must support.
    pub(crate) fn in_format(
        format: Format,
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: impl EncodedRows + 'static,
    ) -> Self {
        let superblocks = inputs.div_ceil(SUPERBLOCK) * format.planes;
        Self::unpacked(SuperblockLayout { dtype, format, superblocks }, outputs, rows)
    }
}
