//! f32-arithmetic weight panels: packed on construction at their stored width, never read in place.

use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::threads::pool::ThreadPool;
use crate::weights::f32::PART;
use crate::weights::f32::width::{Width, encode_row};
use crate::weights::panels::{PanelLayout, Panels, WriteRow};
use crate::weights::shared_panels::MatrixId;
use kvasir_formats::Error;

/// Panel layout: parts of [`PART`] inputs x 16 outputs, in the stored width.
#[derive(Clone, Copy)]
pub(crate) struct F32Layout {
    pub(crate) inputs: usize,
    pub(crate) width: Width,
}

/// A matrix multiplied in f32 arithmetic. It is packed on construction, never read in place.
pub(crate) type F32Panels = Panels<F32Layout>;

impl PanelLayout for F32Layout {
    fn panel_bytes(&self) -> usize {
        self.inputs.div_ceil(PART) * self.width.bytes()
    }
}

impl F32Panels {
    /// Packs `size = (outputs, inputs)`; `row(n, values)` writes row `n`, whose values must be
    /// exact in `width`.
    pub(crate) fn numbers(
        threads: &ThreadPool,
        size: (usize, usize),
        width: Width,
        id: Option<MatrixId>,
        row: &WriteRow<'_>,
    ) -> Result<Self, Error> {
        let isa = Isa::detect();
        Self::codes(threads, size, width, id, |n, lane, panel, values| {
            values.resize(size.1, 0.0);
            row(n, values)?;
            encode_row(isa, width, lane, values, panel);
            Ok(())
        })
    }

    /// Packs encoded rows: `put(n, lane, panel, values)` writes row `n` into lane `lane` of its
    /// panel; `values` is scratch.
    pub(crate) fn codes(
        threads: &ThreadPool,
        (outputs, inputs): (usize, usize),
        width: Width,
        id: Option<MatrixId>,
        put: impl Fn(usize, usize, &mut [u8], &mut Vec<f32>) -> Result<(), Error> + Sync,
    ) -> Result<Self, Error> {
        Self::packed(F32Layout { inputs, width }, outputs, threads, id, |_, panel, out, scratch| {
            let first = panel * LANES;
            (0..LANES.min(outputs - first))
                .try_for_each(|lane| put(first + lane, lane, out, &mut scratch.values))
        })
    }
}
