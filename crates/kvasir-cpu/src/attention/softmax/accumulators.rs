//! Online softmax state of a work item: running maximum m, denominator l and accumulators O of each
//! query row, kept from chunk to chunk.

use crate::attention::packed_values::unpermute_scaled;
use crate::attention::query_blocks::QueryBlock;
use crate::attention::softmax::state::{RunningState, ScoreScaling, exp2};
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::memory::aligned::AlignedVec;

/// m, l and O per query row.
#[derive(Default)]
pub(crate) struct SoftmaxState {
    max: Vec<f32>,
    sum: Vec<f32>,
    /// O in the column order of [`packed_values`](crate::attention::packed_values).
    outputs: AlignedVec<f32>,
    /// Numbers of O per row.
    pub(crate) width: usize,
}

impl SoftmaxState {
    /// Starts a work item of `rows` query rows.
    pub(crate) fn reset(&mut self, rows: usize, width: usize) {
        self.width = width;
        self.outputs.clear();
        self.outputs.grow(rows * width);
        // Padded, as a block loads 16 numbers at a time.
        self.max.clear();
        self.max.resize(rows + LANES, f32::NEG_INFINITY);
        self.sum.clear();
        self.sum.resize(rows + LANES, 0.0);
    }

    /// Loads m and l of a block's rows.
    pub(crate) fn load(&self, block: &QueryBlock, run: &mut RunningState) {
        run.max = block.gather(&self.max);
        run.sum = block.gather(&self.sum);
    }

    /// Stores m and l of a block's rows.
    pub(crate) fn store(&mut self, block: &QueryBlock, run: &RunningState) {
        block.scatter(&run.max, &mut self.max);
        block.scatter(&run.sum, &mut self.sum);
    }

    /// O of `rows` consecutive query rows.
    pub(crate) fn outputs(&mut self, first: u32, rows: usize) -> &mut [f32] {
        &mut self.outputs[first as usize * self.width..][..rows * self.width]
    }

    /// Writes a query row's result: O / l.
    pub(crate) fn write_result(&self, isa: Isa, row: usize, sink: Option<f32>, to: &mut [f32]) {
        let factor = normalization(self.max[row], self.sum[row], sink);
        unpermute_scaled(isa, &self.outputs[row * self.width..][..self.width], factor, to);
    }
}

/// Normalization factor of O: 1 / l, with the attention sink added to l.
pub(crate) fn normalization(max: f32, sum: f32, sink: Option<f32>) -> f32 {
    let (rescale, total) = match sink.map(ScoreScaling::to_base2) {
        None => (1.0, sum),
        Some(sink) => {
            let top = max.max(sink);
            let rescale = exp2(max - top);
            (rescale, sum.mul_add(rescale, exp2(sink - top)))
        }
    };
    if total > 0.0 { rescale / total } else { 0.0 }
}
