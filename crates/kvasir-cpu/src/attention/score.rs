//! One query block and one KV chunk: S = Q K^T, software-pipelined with the online softmax of the
//! previous block.
//!
//! 1. `score`: tile products of this block, while the previous block's scores become attention
//!    weights.
//! 2. `begin_softmax`: mask, running maximum, rescale factor.
//! 3. `end_softmax`: the remaining weights as bf16 tiles, the running maximum and denominator stored
//!    back.

#[cfg(target_arch = "x86_64")]
use crate::attention::decode::gemv;
#[cfg(target_arch = "x86_64")]
use crate::attention::gemm::amx;
use crate::attention::gemm::operands::{Interleaved, ScoreOperands};
use crate::attention::gemm::products;
use crate::attention::layer::HeadShape;
use crate::attention::pack_v::ValuePacking;
use crate::attention::scratch::Scratch;
use crate::attention::softmax::state::ScoreScaling;
#[cfg(target_arch = "x86_64")]
use crate::attention::softmax::{self, avx512::WeightLoop};
use crate::attention::work::{ScoredBlock, VisibleChunk};
use crate::isa::features::Isa;
use crate::isa::tile::transpose;
use crate::kernels::AttentionGemm;
use crate::prefetch::ranges::PrefetchRanges;

/// What is interleaved with the tile products of a block's keys.
#[cfg(target_arch = "x86_64")]
struct SoftmaxBeside<'a> {
    /// Softmax of the previous block.
    weights: WeightLoop<'a>,
    prefetches: &'a mut PrefetchRanges,
    /// Packing of the first head's V.
    packing: Option<&'a mut ValuePacking>,
}

#[cfg(target_arch = "x86_64")]
impl Interleaved for SoftmaxBeside<'_> {
    #[inline(always)]
    unsafe fn step(&mut self) {
        // SAFETY: the caller vouches for the instructions.
        unsafe { self.weights.step() };
    }

    #[inline(always)]
    unsafe fn before(&mut self, last: bool, products: usize) {
        self.prefetches.prefetch();
        if last && let Some(packing) = self.packing.as_mut().filter(|packing| packing.is_unfinished()) {
            // SAFETY: the caller vouches for the instructions; the rows are the pool's or staged.
            (0..products).for_each(|_| unsafe { packing.step(Isa::AMX) });
        }
    }
}

impl Scratch {
    /// Computes S = Q K^T for a block and a chunk, and meanwhile finishes the softmax of the block
    /// `before`. V is packed through `packing`, except in the decode path, which multiplies V in
    /// place.
    ///
    /// # Safety
    /// The blocks must have been made and the keys staged for this instruction set, and the rows of
    /// `packing` must be readable. With AMX, tiles must be configured for these products.
    pub(crate) unsafe fn score(
        &mut self,
        isa: Isa,
        shape: HeadShape,
        now: ScoredBlock,
        before: Option<ScoredBlock>,
        packing: Option<&mut ValuePacking>,
    ) {
        let queries = self.queries[self.blocks[now.block].queries..].as_ptr().cast();
        match AttentionGemm::of(isa) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the instruction set was detected on this machine; the block has a query tile
            // per step, keys are 64 rows each; as the caller vouches.
            AttentionGemm::Tiles => unsafe { self.score_beside(shape, queries, now, packing) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            _ if packing.is_none() => unsafe { self.decode_scores(isa, shape, now) },
            _ => {
                let (keys, widened) = (&self.keys[0], &self.widened_keys[..]);
                let out = &mut self.scores[now.place];
                // SAFETY: as above.
                unsafe { products::scores(isa, keys, widened, queries, shape.steps(), out) };
            }
        }
        if let Some(before) = before {
            self.end_softmax(isa, before, false);
        }
    }

    /// `score` on AMX.
    ///
    /// # Safety
    /// The machine must have the instructions, the block's queries and the keys must be readable,
    /// and tiles configured.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
    unsafe fn score_beside(
        &mut self,
        shape: HeadShape,
        queries: *const u8,
        now: ScoredBlock,
        packing: Option<&mut ValuePacking>,
    ) {
        let [first, second] = &mut self.scores[..] else { return };
        let (out, scores) = if now.place == 0 { (first, second) } else { (second, first) };
        // Where there was no block before, none of its work is left.
        let softmax = &mut self.softmax[1 - now.place];
        let weights = WeightLoop::resume(softmax, scores, &mut self.packed[0]);
        let operands = ScoreOperands {
            keys: &self.keys,
            visible: now.seen,
            behind: &self.next_heads[1].at,
            queries,
            rows_per_head: self.blocks[now.block].per_head,
            steps: shape.steps(),
        };
        let mut beside = SoftmaxBeside { weights, prefetches: &mut self.prefetches, packing };
        // SAFETY: as the caller vouches.
        unsafe { amx::scores(operands, out, &mut beside) };
        beside.weights.suspend();
    }

    /// Starts the online softmax of a scored block: mask, running maximum, rescale factor.
    pub(crate) fn begin_softmax(
        &mut self,
        isa: Isa,
        ScoredBlock { block, place, .. }: ScoredBlock,
        seen: &VisibleChunk<'_>,
        scaling: ScoreScaling,
        decode: bool,
    ) {
        let block = &self.blocks[block];
        let softmax = &mut self.softmax[place];
        softmax.run.max = block.gather(&self.max);
        softmax.run.sum = block.gather(&self.sum);
        let bounds = (!block.sees_all(seen.chunk, seen.first)).then_some(&block.bounds);
        #[cfg(target_arch = "x86_64")]
        if decode && AttentionGemm::of(isa) == AttentionGemm::Bf16Dot {
            let Some(rows) = self.score_rows.first_chunk_mut() else { return };
            // SAFETY: the instruction set was detected on this machine.
            return unsafe {
                softmax::decode::begin(softmax, isa, rows, block.used(), &self.entries, bounds, scaling)
            };
        }
        softmax.begin(isa, &mut self.scores[place], &self.entries, bounds, scaling);
    }

    /// Finishes the online softmax of a block: attention weights, running maximum and denominator.
    pub(crate) fn end_softmax(&mut self, isa: Isa, scored: ScoredBlock, decode: bool) {
        let number = scored.number(self.blocks.len());
        if decode {
            #[cfg(target_arch = "x86_64")]
            self.decode_weights(isa, scored);
        } else {
            let packed = &mut self.packed[0];
            self.softmax[scored.place].finish_weights(isa, &self.scores[scored.place], packed);
            for (part, tile) in packed.as_chunks().0.iter().zip(&mut self.weights[number]) {
                transpose(isa, part, tile);
            }
        }
        let softmax = &mut self.softmax[scored.place];
        softmax.finish(isa);
        let block = &self.blocks[scored.block];
        block.scatter(&softmax.run.max, &mut self.max);
        block.scatter(&softmax.run.sum, &mut self.sum);
        self.rescales[number] = softmax.run.rescale;
    }

    /// The remaining attention weights of a decode block (few query rows per KV head).
    #[cfg(target_arch = "x86_64")]
    fn decode_weights(&mut self, isa: Isa, scored: ScoredBlock) {
        let number = scored.number(self.blocks.len());
        let softmax = &mut self.softmax[scored.place];
        if AttentionGemm::of(isa) == AttentionGemm::Bf16Dot {
            let Some(rows) = self.score_rows.first_chunk() else { return };
            let used = self.blocks[scored.block].used();
            // SAFETY: the instruction set was detected on this machine.
            return unsafe {
                softmax::decode::finish_weights(softmax, rows, used, &mut self.weights[number])
            };
        }
        softmax.finish_weights(isa, &self.scores[scored.place], &mut self.packed[0]);
        // SAFETY: the instruction set was detected on this machine, and is at least AVX2, as only
        // those have a decode path.
        unsafe { gemv::widen_weights(isa, &self.packed[0], &mut self.widened_weights[0]) };
    }
}
