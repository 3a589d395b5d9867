//! Query blocks: 16 query rows (query heads of tokens) that are computed together.
//!
//! A block is the M (or N) dimension of the attention GEMMs: 16 query rows of one KV head, as GQA
//! and the tokens of a prefill chunk supply them. In decode, where each KV head has few rows,
//! several heads share a block.

use crate::attention::softmax::state::MaskBounds;
use crate::attention::views::{Chunk, VisibleChunk};
use crate::gemm::bf16::operands::OperandB;
use crate::isa::tile::{LANES, Tile};
use crate::memory::aligned::AlignedVec;
use crate::memory::kv_pool::rows::CHUNK;
use std::ops::Range;

/// Up to 16 query rows that are computed together: some of one KV head, or all of several KV heads.
#[derive(Clone, Debug)]
pub(crate) struct QueryBlock {
    /// KV heads, relative to the work item's first.
    pub(crate) heads: Range<usize>,
    /// Query rows per KV head.
    pub(crate) per_head: usize,
    pub(crate) rows: [u32; LANES],
    /// Whether the used row indices are consecutive.
    pub(crate) consecutive: bool,
    pub(crate) bounds: MaskBounds,
    /// Minimum and maximum of `bounds`: the number of visible entries, and the first visible
    /// position, over its rows.
    pub(crate) visible: (i32, i32),
    pub(crate) from: (i32, i32),
}

/// The query blocks of some tokens, in order of KV head, and their queries.
#[derive(Default)]
pub(crate) struct QueryBlocks {
    pub(crate) blocks: Vec<QueryBlock>,
    /// Query tiles per block: one per step of 32 numbers.
    pub(crate) steps: usize,
    /// bf16 pairs to a word. A query row is a column, or a row in the decode path in bf16 pair
    /// order.
    pub(crate) tiles: AlignedVec<Tile>,
    /// The tiles widened to f32, in the decode path where operands are widened.
    pub(crate) widened: Vec<OperandB>,
    /// A block's queries before the transpose: a row per query row.
    pub(crate) rows: AlignedVec<Tile>,
}

impl QueryBlock {
    pub(crate) fn used(&self) -> usize {
        self.heads.len() * self.per_head
    }

    /// Loads a number per query row, such as the running maxima.
    pub(crate) fn gather(&self, from: &[f32]) -> [f32; LANES] {
        let at = self.rows[0] as usize;
        match from.get(at..at + LANES).and_then(<[f32]>::first_chunk) {
            Some(all) if self.consecutive => *all,
            _ => self.rows.map(|row| from[row as usize]),
        }
    }

    /// Stores a number per query row; the inverse of [`gather`](Self::gather).
    pub(crate) fn scatter(&self, numbers: &[f32; LANES], to: &mut [f32]) {
        let (at, used) = (self.rows[0] as usize, self.used());
        if self.consecutive {
            return to[at..at + used].copy_from_slice(&numbers[..used]);
        }
        self.rows.iter().zip(numbers).take(used).for_each(|(row, number)| to[*row as usize] = *number);
    }

    /// Whether every row sees the whole chunk, from position `first` on: no mask is applied.
    pub(crate) fn sees_all(&self, chunk: &Chunk, first: i32) -> bool {
        chunk.len as usize == CHUNK
            && self.visible.0 >= (chunk.first + chunk.len) as i32
            && self.from.1 <= first
    }

    /// Whether some row of the block sees some entry of the chunk.
    pub(crate) fn meets(&self, seen: &VisibleChunk<'_>) -> bool {
        self.visible.1 > seen.chunk.first as i32 && self.from.0 <= seen.last
    }
}
