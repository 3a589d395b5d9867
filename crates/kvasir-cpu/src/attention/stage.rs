//! Staging of K and V for the attention kernels: rows are used in place if they are bf16 and laid
//! out as the kernels need them. Otherwise they are dequantized to bf16 in scratch.

use crate::attention::gemm::operands::KeyRows;
use crate::attention::gemm::products::widen_keys;
use crate::attention::layer::{HeadShape, LayerAttention};
use crate::attention::pack_v::ValuePacking;
use crate::attention::scratch::Scratch;
use crate::attention::softmax::state::ChunkEntries;
use crate::attention::views::{Chunk, Run};
use crate::attention::work::WorkItem;
use crate::isa::tile::{TILE, Tile};
use crate::kernels::AttentionGemm;
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::kv_type::KvType;
use crate::memory::kv_pool::rows::{BLOCK_SLOTS, CHUNK, Rows};
use crate::prefetch::ranges::PrefetchRanges;
use std::ops::Range;

impl LayerAttention<'_> {
    /// Records the entry number at each position of a chunk, for masking.
    pub(crate) fn number_entries(&self, chunk: &Chunk, s: &mut Scratch) {
        s.entries = ChunkEntries::default();
        let mut number = chunk.first as i32;
        for run in self.views.runs(chunk) {
            let first = run.position as usize % CHUNK;
            let places = first..first + run.len as usize;
            s.entries.entry[places.clone()].iter_mut().zip(number..).for_each(|(to, number)| *to = number);
            s.entries.position[places].iter_mut().zip(run.position as i32..).for_each(|(to, at)| *to = at);
            number += run.len as i32;
        }
    }

    /// Number of runs with entries among each 16 positions of a chunk.
    fn runs_of_quarters(&self, chunk: &Chunk) -> [u8; 4] {
        let mut runs = [0; 4];
        for run in self.views.runs(chunk) {
            let first = run.position as usize % CHUNK;
            (first / TILE..=(first + run.len as usize - 1) / TILE).for_each(|q| runs[q] += 1);
        }
        runs
    }

    /// Stages a chunk's K rows of these heads. Each 16 positions are used in place if they are bf16
    /// and contiguous; what is stored at positions without an entry is masked. Other rows are
    /// dequantized into scratch. With `widen` they are also widened to f32, where operands are.
    pub(crate) fn stage_keys(
        &self,
        item: &WorkItem<'_>,
        heads: Range<usize>,
        widen: bool,
        chunk: &Chunk,
        s: &mut Scratch,
    ) {
        let shape = HeadShape::of(self.facts);
        let runs_of_quarter = self.runs_of_quarters(chunk);
        s.keys.clear();
        s.widened_keys.clear();
        let size = CHUNK * shape.key_width;
        for i in 0..heads.len() {
            let base = s.staged_keys[i * size..].as_ptr().cast::<u8>();
            s.keys.push(KeyRows {
                base: std::array::from_fn(|q| base.wrapping_add(q * TILE * shape.key_width * 2)),
                stride: [shape.key_width * 2; 4],
            });
        }
        for run in self.views.runs(chunk) {
            let rows = &self.pool(run.pool).keys;
            let mut at = 0;
            while at < run.len {
                let row = (run.position + at) as usize % CHUNK;
                let n = (TILE - row % TILE).min((run.len - at) as usize);
                let part = Run { position: run.position + at, slot: run.slot + at, len: n as u32, ..*run };
                let in_place = self.in_place(rows, shape, &part, &runs_of_quarter);
                at += n as u32;
                if let Some(slot) = in_place {
                    let first = rows.part(slot, 0);
                    for (keys, head) in s.keys.iter_mut().zip(heads.clone()) {
                        keys.base[row / TILE] =
                            first.wrapping_add(rows.heads().offset(item.heads.start + head));
                        keys.stride[row / TILE] = rows.part_bytes();
                    }
                    continue;
                }
                for (i, head) in heads.clone().enumerate() {
                    let head = item.heads.start + head;
                    let to = &mut s.staged_keys[i * size + row * shape.key_width..][..n * shape.key_width];
                    let wide = &mut s.wide[..self.facts.key_dim];
                    for (slot, to) in (part.slot..).zip(to.chunks_exact_mut(shape.key_width)) {
                        // SAFETY: the plan's slots were checked, and writes come before reads.
                        unsafe { rows.read_bf16(self.isa, slot, head, wide, &mut to[..self.facts.key_dim]) };
                    }
                }
            }
        }
        if widen && AttentionGemm::of(self.isa) == AttentionGemm::Widened {
            for keys in &s.keys {
                // SAFETY: 64 rows of whole steps, the pool's or staged.
                unsafe { widen_keys(self.isa, keys, shape.steps(), &mut s.widened_keys) };
            }
        }
    }

    /// The slot of the first of 16 positions, if they can be read in place: a run's `part` must be
    /// all that is read of them, in bf16 and within an aligned block of slots.
    fn in_place(&self, rows: &Rows, shape: HeadShape, part: &Run, runs_of_quarter: &[u8; 4]) -> Option<u32> {
        let row = part.position as usize % CHUNK;
        let slot = part.slot.checked_sub((row % TILE) as u32)?;
        let fits = rows.kind() == KvType::Bf16
            && self.facts.key_dim == shape.key_width
            && slot as usize % BLOCK_SLOTS <= BLOCK_SLOTS - TILE
            && runs_of_quarter[row / TILE] == 1;
        fits.then_some(slot)
    }

    /// Starts packing one head's V rows of a chunk into `tiles`.
    pub(crate) fn start_packing(
        &self,
        head: usize,
        chunk: &Chunk,
        tiles: AlignedVec<Tile>,
        s: &mut Scratch,
    ) -> ValuePacking {
        let mut rows = [std::ptr::null(); CHUNK];
        self.value_rows(head, chunk, &mut rows, s);
        ValuePacking {
            rows,
            width: self.facts.value_dim,
            tiles,
            done: 0,
            prefetches: PrefetchRanges::default(),
        }
    }

    /// Addresses of one head's V rows of a chunk as bf16: in place if stored as bf16, else
    /// dequantized into scratch. Positions without an entry point at zeros.
    pub(crate) fn value_rows(
        &self,
        head: usize,
        chunk: &Chunk,
        at: &mut [*const u16; CHUNK],
        s: &mut Scratch,
    ) {
        let vd = self.facts.value_dim;
        *at = [s.zeros.as_ptr(); CHUNK];
        for run in self.views.runs(chunk) {
            let rows = self.pool(run.pool).read_as_values();
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
                let to = &mut s.staged_values[row * vd..][..vd];
                // SAFETY: the executor has checked the plan's slots, and writes come before reads.
                unsafe { rows.read_bf16(self.isa, slot, head, &mut s.wide[..vd], to) };
                at[row] = to.as_ptr();
                row += 1;
            }
        }
    }
}
