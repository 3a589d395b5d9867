//! Tensor parallelism: divides a program among ranks by heads, feed-forward columns, experts and
//! vocabulary.
//!
//! | part of a model | each rank has |
//! |---|---|
//! | attention | some query heads (Q column-parallel, output projection row-parallel) and their KV heads |
//! | latent attention (MLA) | some heads; the latent rows of the KV cache are on every rank |
//! | sparse-attention indexer, router, norms, embedding | all of it |
//! | feed-forward block, shared experts | some columns (gate and up column-parallel, down row-parallel) |
//! | mixture | some experts: their part of the weighted sum |
//! | LM head | some tokens of the vocabulary; the logits are joined |
//!
//! Row-parallel results are summed over the ranks in rank order, so all ranks have equal bits. The
//! biases of row-parallel matrices are added by rank 0. Branches that are added (experts and shared
//! experts) are added on each rank first, and summed over the ranks once.
//!
//! Steps: [`plan`] decides what is cut, [`emit`] writes the ops, [`prune`] drops what is left over.
//! Guarded by `kvasir/tests/split.rs`, which runs ranks of all test models on both backends.

pub(crate) mod cuts;
pub(crate) mod emit;
pub(crate) mod error;
pub(crate) mod plan;
pub(crate) mod prune;

use crate::ir::program::Program;
use crate::passes::split::emit::Emitter;
use crate::passes::split::error::SplitError;
use crate::passes::split::plan::Plan;
use crate::passes::split::prune::prune;
use std::ops::Range;

impl Program {
    /// The program of one of `ranks` ranks: its heads, columns, experts and part of the vocabulary,
    /// with the collectives between the ranks. Its weights and KV cache layout are those of its
    /// part.
    ///
    /// A single rank has the whole program. Fails, naming counts or tensor, if the model cannot be
    /// divided so.
    pub fn for_rank(&self, rank: usize, ranks: usize) -> Result<Self, SplitError> {
        if rank >= ranks {
            return Err(SplitError::Rank { rank, ranks });
        }
        self.split(ranks, rank..rank + 1)
    }

    /// The program that one process runs with the bits of `ranks` ranks: it makes the ranks' parts
    /// one after the other, and adds them in rank order.
    ///
    /// It is as large as the whole model, and proves that dividing it changes nothing but the order
    /// of sums.
    pub fn for_all_ranks(&self, ranks: usize) -> Result<Self, SplitError> {
        if ranks == 0 {
            return Err(SplitError::Rank { rank: 0, ranks });
        }
        self.split(ranks, 0..ranks)
    }

    fn split(&self, ranks: usize, own: Range<usize>) -> Result<Self, SplitError> {
        if let Some(shard) = self.shard {
            return Err(SplitError::AlreadySplit { ranks: shard.ranks });
        }
        if ranks == 1 {
            return Ok(self.clone());
        }
        let plan = Plan::new(self, ranks)?;
        let mut program = Emitter::new(self, &plan, ranks, own).run();
        prune(&mut program);
        Ok(program)
    }
}
