use super::format::{Format, SUPER};
use super::pack::pack;
use crate::Level;
use crate::panels::{Encoded, EncodedRows, Kind, PanelReader, Panels};
use kvasir_formats::DType;

/// Quantised weights: the superblocks of a panel one after the other. Bytes and codes of six bits have four inputs of 16 outputs to a vector, others
/// lie by output.
pub(crate) struct Integers {
    pub(crate) dtype: DType,
    pub(crate) format: Format,
    /// Superblocks of a panel, of all planes.
    pub(crate) supers: usize,
}

impl Kind for Integers {
    fn panel_bytes(&self) -> usize {
        self.supers * self.format.bytes()
    }

    fn make(&self, rows: &Encoded<'_>, out: &mut [u8]) {
        let level = Level::detect();
        pack(level, self.dtype, self.format, rows, level, out);
    }
}

pub(crate) type QuantPanels = Panels<Integers>;

/// Its panels for one multiplication.
pub(super) type QuantReader<'a, 'r> = PanelReader<'a, 'r, Integers>;

impl QuantPanels {
    /// A matrix of `outputs` rows of `inputs` weights that is not packed yet; the rows themselves for encodings that are not integers in blocks.
    pub(crate) fn quantised<R: EncodedRows + 'static>(
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: R,
    ) -> Result<Self, R> {
        match Format::for_matrix(dtype, outputs * inputs) {
            Some(format) => Ok(Self::in_format(format, dtype, (outputs, inputs), rows)),
            None => Err(rows),
        }
    }

    /// The same in a format that the encoding can have.
    pub(super) fn in_format(
        format: Format,
        dtype: DType,
        (outputs, inputs): (usize, usize),
        rows: impl EncodedRows + 'static,
    ) -> Self {
        let supers = inputs.div_ceil(SUPER) * format.planes;
        Self::of(Integers { dtype, format, supers }, outputs, rows)
    }
}
