//! V rows of one head and chunk as bf16: in place if stored as bf16, else dequantized.

use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::views::Chunk;
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::CHUNK;

/// Buffers of V rows that are not read in place.
#[derive(Default)]
pub(crate) struct StagedValues {
    staged: AlignedVec<u16>,
    /// For positions without an entry.
    zeros: Vec<u16>,
    /// A row on its way to bf16.
    row: Vec<f32>,
}

impl StagedValues {
    pub(crate) fn reshape(&mut self, shape: HeadShape) {
        self.staged.clear();
        self.staged.grow(CHUNK * shape.value_width);
        self.zeros.resize(shape.value_width, 0);
        self.row.resize(shape.value_width, 0.0);
    }

    /// Addresses of one head's V rows of a chunk as bf16. Positions without an entry point at
    /// zeros.
    pub(crate) fn stage(
        &mut self,
        a: &LayerAttention<'_>,
        head: usize,
        chunk: &Chunk,
        at: &mut [*const u16; CHUNK],
    ) {
        let vd = a.facts.value_dim;
        *at = [self.zeros.as_ptr(); CHUNK];
        for run in a.views.runs(chunk) {
            let rows = a.pool(run.pool).read_as_values();
            let mut row = run.position as usize % CHUNK;
            if rows.kind() == KvType::Bf16 {
                rows.contiguous(run.slot, run.len, head, |first, bytes| {
                    let part = rows.part_bytes();
                    let to = &mut at[row..][..bytes / part];
                    row += to.len();
                    to.iter_mut().enumerate().for_each(|(n, to)| *to = first.wrapping_add(n * part).cast());
                });
                continue;
            }
            for slot in run.slot..run.slot + run.len {
                let to = &mut self.staged[row * vd..][..vd];
                // SAFETY: the executor has checked the plan's slots, and writes come before reads.
                unsafe { rows.read_bf16(a.isa, slot, head, &mut self.row[..vd], to) };
                at[row] = to.as_ptr();
                row += 1;
            }
        }
    }
}
