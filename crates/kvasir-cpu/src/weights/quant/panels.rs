//! Quantized weight matrices as panels of blocks, read in place until they are packed.

use crate::isa::features::Isa;
use crate::weights::panels::{EncodedPanel, EncodedRows, PanelLayout, PanelReader, Panels, RowScratch};
use crate::weights::quant::format::{BLOCK, Format};
use crate::weights::quant::pack::pack;
use crate::weights::shared_panels::MatrixId;
use kvasir_formats::DType;

/// Panel layout: blocks one after the other.
pub(crate) struct BlockLayout {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    /// Blocks per panel.
    pub(crate) blocks: usize,
}

impl PanelLayout for BlockLayout {
    fn panel_bytes(&self) -> usize {
        self.format.panel_bytes(self.blocks)
    }

    fn make(&self, rows: &EncodedPanel<'_>, out: &mut [u8], _scratch: &mut RowScratch) {
        pack(Isa::detect(), self.dtype, self.format, rows, out);
    }
}

/// A block-quantized weight matrix.
pub(crate) type QuantPanels = Panels<BlockLayout>;

/// Panel access for one multiplication.
pub(crate) type QuantReader<'a, 'r> = PanelReader<'a, 'r, BlockLayout>;

impl QuantPanels {
    /// A matrix of `outputs` rows of `inputs` weights, not packed yet. Returns the rows for
    /// encodings that are not block-quantized integers.
    pub(crate) fn quantized<R: EncodedRows + 'static>(
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: R,
        id: Option<&MatrixId>,
    ) -> Result<Self, R> {
        let Some(format) = Format::of(dtype) else { return Err(rows) };
        let kind = BlockLayout { dtype, format, blocks: inputs.div_ceil(BLOCK) };
        Ok(Self::unpacked(kind, outputs, rows, id.cloned()))
    }
}
