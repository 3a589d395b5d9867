//! One query block and one KV chunk: S = Q K^T, software-pipelined with the online softmax of the
//! previous block.
//!
//! 1. `score`: tile products of this block, while the previous block's scores become attention
//!    weights.
//! 2. `begin_shares`: mask, running maximum, rescale factor.
//! 3. `end_shares`: the remaining weights as bf16 tiles, the running maximum and denominator stored
//!    back.

use crate::attention::coming::Coming;
#[cfg(target_arch = "x86_64")]
use crate::attention::decode;
use crate::attention::scratch::Scratch;
use crate::attention::softmax::Rule;
use crate::attention::stretch::Seen;
#[cfg(target_arch = "x86_64")]
use crate::attention::wide::Making;
use crate::attention::{Shape, in_pairs, products};
use crate::isa::features::Level;
use crate::isa::tile::transpose;
use crate::prefetch::ranges::Soon;

/// A query block with scores on their way to attention weights.
#[derive(Clone, Copy)]
pub(crate) struct Scored {
    pub(super) block: usize,
    /// Index among the chunks that are processed together.
    pub(super) chunk: usize,
    /// Positions up to the last visible one.
    pub(super) seen: usize,
    /// Which of the two score buffers it uses (double buffering).
    pub(super) place: usize,
}

impl Scored {
    /// Its index among the weight tiles of `blocks` blocks per chunk.
    fn number(self, blocks: usize) -> usize {
        self.chunk * blocks + self.block
    }
}

/// What is interleaved with the tile products of a block's keys.
#[cfg(target_arch = "x86_64")]
struct Meanwhile<'a> {
    /// Softmax of the previous block.
    making: Making<'a>,
    soon: &'a mut Soon,
    /// Packing of the first head's V.
    coming: Option<&'a mut Coming>,
}

#[cfg(target_arch = "x86_64")]
impl products::Beside for Meanwhile<'_> {
    #[inline(always)]
    unsafe fn some(&mut self) {
        // SAFETY: the caller vouches for the instructions.
        unsafe { self.making.some() };
    }

    #[inline(always)]
    unsafe fn before(&mut self, last: bool, products: usize) {
        self.soon.prefetch();
        if last && let Some(coming) = self.coming.as_mut().filter(|coming| coming.is_coming()) {
            // SAFETY: the caller vouches for the instructions; the rows are the pool's or staged.
            (0..products).for_each(|_| unsafe { coming.some(Level::Amx) });
        }
    }
}

impl Scratch {
    /// Computes S = Q K^T for a block and a chunk, and meanwhile finishes the softmax of the block
    /// `before`. V is packed through `coming`, except in the decode path, which multiplies V in
    /// place.
    ///
    /// # Safety
    /// The blocks must have been made and the keys staged at this level, and the rows of `coming`
    /// must be readable. With AMX, tiles must be configured for these products.
    pub(super) unsafe fn score(
        &mut self,
        level: Level,
        shape: Shape,
        now: Scored,
        before: Option<Scored>,
        coming: Option<&mut Coming>,
    ) {
        let queries = self.queries[self.blocks[now.block].queries..].as_ptr().cast();
        match level {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level was detected on this machine; the block has a query tile per step,
            // keys are 64 rows each; as the caller vouches.
            Level::Amx => unsafe { self.score_beside(shape, queries, now, coming) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            _ if coming.is_none() => unsafe { self.score_few(level, shape, now) },
            _ => {
                let keys = (&self.keys[0], &self.open_keys[..]);
                // SAFETY: as above.
                unsafe { products::scores(level, keys, queries, shape.steps(), &mut self.scores[now.place]) };
            }
        }
        if let Some(before) = before {
            self.end_shares(level, before, false);
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
        shape: Shape,
        queries: *const u8,
        now: Scored,
        coming: Option<&mut Coming>,
    ) {
        let queries = (queries, self.blocks[now.block].per_head);
        let [first, second] = &mut self.scores[..] else { return };
        let (out, scores) = if now.place == 0 { (first, second) } else { (second, first) };
        // Where there was no block before, none of its work is left.
        let sharing = &mut self.sharing[1 - now.place];
        let making = Making::go_on(sharing, scores, &mut self.packed[0]);
        let keys = (&self.keys[..], now.seen, &self.later[1].at);
        let mut meanwhile = Meanwhile { making, soon: &mut self.soon, coming };
        // SAFETY: as the caller vouches.
        unsafe {
            crate::attention::products::tiles::scores(keys, queries, shape.steps(), out, &mut meanwhile)
        };
        meanwhile.making.leave();
    }

    /// Starts the online softmax of a scored block: mask, running maximum, rescale factor.
    pub(super) fn begin_shares(
        &mut self,
        level: Level,
        Scored { block, place, .. }: Scored,
        seen: &Seen<'_>,
        rule: Rule,
        few: bool,
    ) {
        let block = &self.blocks[block];
        let sharing = &mut self.sharing[place];
        sharing.run.most = block.gather(&self.most);
        sharing.run.sum = block.gather(&self.sum);
        let sight = (!block.sees_all(seen.chunk, seen.first)).then_some(&block.sight);
        #[cfg(target_arch = "x86_64")]
        if few && in_pairs(level) {
            let Some(lying) = self.lying_scores.first_chunk_mut() else { return };
            // SAFETY: the level was detected on this machine.
            return unsafe {
                crate::attention::decode::shares::begin(
                    sharing,
                    level,
                    (lying, block.used()),
                    &self.entries,
                    sight,
                    rule,
                )
            };
        }
        sharing.begin(level, &mut self.scores[place], &self.entries, sight, rule);
    }

    /// Finishes the online softmax of a block: attention weights, running maximum and denominator.
    pub(super) fn end_shares(&mut self, level: Level, scored: Scored, few: bool) {
        let number = scored.number(self.blocks.len());
        match few {
            #[cfg(target_arch = "x86_64")]
            true => self.few_shares(level, scored),
            _ => {
                let packed = &mut self.packed[0];
                self.sharing[scored.place].rest(level, &self.scores[scored.place], packed);
                for (part, tile) in packed.as_chunks().0.iter().zip(&mut self.shares[number]) {
                    transpose(level, part, tile);
                }
            }
        }
        let sharing = &mut self.sharing[scored.place];
        sharing.end(level);
        let block = &self.blocks[scored.block];
        block.scatter(&sharing.run.most, &mut self.most);
        block.scatter(&sharing.run.sum, &mut self.sum);
        self.fades[number] = sharing.run.fade;
    }

    /// The remaining attention weights of a decode block (few query rows per KV head).
    #[cfg(target_arch = "x86_64")]
    fn few_shares(&mut self, level: Level, scored: Scored) {
        let number = scored.number(self.blocks.len());
        let sharing = &mut self.sharing[scored.place];
        if in_pairs(level) {
            let Some(lying) = self.lying_scores.first_chunk() else { return };
            let lanes = self.blocks[scored.block].used();
            // SAFETY: the level was detected on this machine.
            return unsafe {
                crate::attention::decode::shares::rest(sharing, (lying, lanes), &mut self.shares[number])
            };
        }
        sharing.rest(level, &self.scores[scored.place], &mut self.packed[0]);
        // SAFETY: the level was detected on this machine, and is at least AVX2, as only those have
        // a decode path.
        unsafe { decode::open(level, &self.packed[0], &mut self.open_shares[0]) };
    }
}
