//! K and V of the chunks that are processed, as the attention kernels read them: rows in place if
//! they are bf16 and laid out as the kernels need them, otherwise dequantized to bf16.

use crate::attention::chunk_prefetch::ChunkPrefetch;
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::packed_values::PackedValues;
use crate::attention::views::{Chunk, Run};
use crate::gemm::bf16::operands::OperandA;
use crate::isa::tile::TILE;
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{BLOCK_SLOTS, CHUNK, Rows};
use std::ops::Range;

/// K and V of the chunks that are processed together.
#[derive(Default)]
pub(crate) struct StagedKv {
    pub(crate) keys: StagedKeys,
    pub(crate) values: StagedValues,
    pub(crate) packed: PackedValues,
    pub(crate) prefetch: ChunkPrefetch,
}

// SAFETY: its addresses are of a work item's rows; each item writes them before it reads there.
unsafe impl Send for StagedKv {}

impl StagedKv {
    /// Clears the buffers for another shape of heads.
    pub(crate) fn reshape(&mut self, shape: HeadShape) {
        self.keys.staged.clear();
        self.keys.row.resize(shape.key_width, 0.0);
        self.values.staged.clear();
        self.values.staged.grow(CHUNK * shape.value_width);
        self.values.zeros.resize(shape.value_width, 0);
        self.values.row.resize(shape.value_width, 0.0);
        self.packed.reshape(shape);
    }
}

/// K rows of a chunk: four times 16 rows of bf16, each padded to whole steps of 32 numbers.
#[derive(Clone, Copy)]
pub(crate) struct KeyRows {
    pub(crate) base: [*const u8; 4],
    /// Row stride in bytes, for each 16 rows.
    pub(crate) stride: [usize; 4],
}

/// K of a chunk, for the KV heads of a query block.
#[derive(Default)]
pub(crate) struct StagedKeys {
    /// Per head, its rows in the pool or in `staged`.
    pub(crate) heads: Vec<KeyRows>,
    /// K widened to f32, where operands are and several query blocks use it.
    pub(crate) widened: Vec<[OperandA; 4]>,
    /// The padding beyond the head dimension is never written, and stays zero.
    staged: AlignedVec<u16>,
    /// A row on its way to bf16.
    row: Vec<f32>,
}

impl StagedKeys {
    /// Stages a chunk's K rows of these heads. Each 16 positions are used in place if they are bf16
    /// and contiguous; what is stored at positions without an entry is masked. Other rows are
    /// dequantized.
    pub(crate) fn stage(&mut self, a: &LayerAttention<'_>, heads: Range<usize>, chunk: &Chunk) {
        let width = HeadShape::of(a.facts).key_width;
        let size = CHUNK * width;
        self.staged.grow(heads.len() * size);
        let runs_of_quarter = a.runs_of_quarters(chunk);
        self.heads.clear();
        self.widened.clear();
        for i in 0..heads.len() {
            let base = self.staged[i * size..].as_ptr().cast::<u8>();
            self.heads.push(KeyRows {
                base: std::array::from_fn(|q| base.wrapping_add(q * TILE * width * 2)),
                stride: [width * 2; 4],
            });
        }
        for run in a.views.runs(chunk) {
            let rows = &a.pool(run.pool).keys;
            let mut at = 0;
            while at < run.len {
                let row = (run.position + at) as usize % CHUNK;
                let n = (TILE - row % TILE).min((run.len - at) as usize);
                let part = Run { position: run.position + at, slot: run.slot + at, len: n as u32, ..*run };
                let in_place = a.in_place(rows, width, &part, &runs_of_quarter);
                at += n as u32;
                if let Some(slot) = in_place {
                    let first = rows.part(slot, 0);
                    for (keys, head) in self.heads.iter_mut().zip(heads.clone()) {
                        keys.base[row / TILE] = first.wrapping_add(rows.heads().offset(head));
                        keys.stride[row / TILE] = rows.part_bytes();
                    }
                    continue;
                }
                for (i, head) in heads.clone().enumerate() {
                    let to = &mut self.staged[i * size + row * width..][..n * width];
                    let wide = &mut self.row[..a.facts.key_dim];
                    for (slot, to) in (part.slot..).zip(to.chunks_exact_mut(width)) {
                        // SAFETY: the plan's slots were checked, and writes come before reads.
                        unsafe { rows.read_bf16(a.isa, slot, head, wide, &mut to[..a.facts.key_dim]) };
                    }
                }
            }
        }
    }
}

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
    /// Addresses of one head's V rows of a chunk as bf16. Positions without an entry point at
    /// zeros.
    pub(crate) fn rows(&mut self, a: &LayerAttention<'_>, head: usize, chunk: &Chunk) -> [*const u16; CHUNK] {
        let vd = a.facts.value_dim;
        let mut at = [self.zeros.as_ptr(); CHUNK];
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
        at
    }
}

impl LayerAttention<'_> {
    /// Number of runs with entries among each 16 positions of a chunk.
    fn runs_of_quarters(&self, chunk: &Chunk) -> [u8; 4] {
        let mut runs = [0; 4];
        for run in self.views.runs(chunk) {
            let first = run.position as usize % CHUNK;
            (first / TILE..=(first + run.len as usize - 1) / TILE).for_each(|q| runs[q] += 1);
        }
        runs
    }

    /// The slot of the first of 16 positions, if they can be read in place: a run's `part` must be
    /// all that is read of them, in bf16 and within an aligned block of slots.
    fn in_place(&self, rows: &Rows, width: usize, part: &Run, runs_of_quarter: &[u8; 4]) -> Option<u32> {
        let row = part.position as usize % CHUNK;
        let slot = part.slot.checked_sub((row % TILE) as u32)?;
        let fits = rows.kind() == KvType::Bf16
            && self.facts.key_dim == width
            && slot as usize % BLOCK_SLOTS <= BLOCK_SLOTS - TILE
            && runs_of_quarter[row / TILE] == 1;
        fits.then_some(slot)
    }
}
