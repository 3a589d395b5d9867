//! Tensor and expert parallelism: shards a program by heads, feed-forward columns, experts and
//! vocabulary.
//!
//! | part of a model | on each rank |
//! |---|---|
//! | attention | some query heads (Q column-parallel, output projection row-parallel) and their KV heads |
//! | latent attention (MLA) | some heads; the latent rows of the KV cache are on every rank |
//! | sparse-attention indexer, router, norms, embedding | replicated |
//! | gated delta rule, selective scan | an equal number of heads, their states, their key heads or groups |
//! | short convolution | the channels that the rank's readers need, and their states |
//! | feed-forward block, shared experts | some columns (gate and up column-parallel, down row-parallel) |
//! | mixture (MoE) | some experts, and their addends of the weighted sum |
//! | LM head | some tokens of the vocabulary; an all-gather joins the logits |
//!
//! A recurrence whose heads cannot be divided equally is replicated. If a norm over the whole row
//! follows a sharded one, an all-gather joins the heads of all ranks.
//!
//! An all-reduce in rank order sums row-parallel results, so all ranks have equal bits. Rank 0 adds
//! the biases of row-parallel matrices. Each rank adds experts and shared experts before their one
//! all-reduce.
//!
//! Steps: [`convolutions`] divides short convolutions, [`plan`] decides the sharding of each value
//! ([`recurrences`] that of recurrent layers), [`emit`] writes the ops, and [`prune`] removes dead
//! ops and weights. Guarded by `kvasir/tests/split`, which runs ranks of all test models on both
//! backends.

pub(crate) mod convolutions;
pub(crate) mod cuts;
pub(crate) mod emit;
pub(crate) mod error;
pub(crate) mod plan;
pub(crate) mod prune;
pub(crate) mod recurrences;

use crate::ir::program::Program;
use crate::passes::split::convolutions::divide_convolutions;
use crate::passes::split::emit::Emitter;
use crate::passes::split::error::SplitError;
use crate::passes::split::plan::ShardingPlan;
use crate::passes::split::prune::prune;
use std::borrow::Cow;
use std::ops::Range;

impl Program {
    /// The program of one of `ranks` ranks: its heads, columns, experts and range of the
    /// vocabulary, with the collectives between the ranks. Weights and KV cache layout cover this
    /// shard only.
    ///
    /// A single rank has the complete program. Fails if the model cannot be divided among `ranks`
    /// ranks.
    pub fn for_rank(&self, rank: usize, ranks: usize) -> Result<Self, SplitError> {
        if rank >= ranks {
            return Err(SplitError::Rank { rank, ranks });
        }
        self.split(ranks, rank..rank + 1)
    }

    /// A program for one process that computes the shards of all `ranks` ranks and adds partial
    /// rows in rank order. Its results equal those of the ranks bit for bit.
    ///
    /// Needs the memory of the complete model. For tests: sharding may change the order of sums
    /// only.
    pub fn for_all_ranks(&self, ranks: usize) -> Result<Self, SplitError> {
        if ranks == 0 {
            return Err(SplitError::Rank { rank: 0, ranks });
        }
        self.split(ranks, 0..ranks)
    }

    fn split(&self, ranks: usize, local_ranks: Range<usize>) -> Result<Self, SplitError> {
        if let Some(shard) = self.shard.or(self.expert_shard) {
            return Err(SplitError::AlreadySplit { ranks: shard.ranks });
        }
        if ranks == 1 {
            return Ok(self.clone());
        }
        if self.is_encoder() {
            return Err(SplitError::Encoder { architecture: self.architecture.clone() });
        }
        let mut whole = Cow::Borrowed(self);
        if self.is_recurrent() {
            divide_convolutions(whole.to_mut());
            prune(whole.to_mut());
        }
        let plan = ShardingPlan::new(&whole, ranks)?;
        let mut program = Emitter::new(&whole, &plan, ranks, local_ranks).emit();
        prune(&mut program);
        Ok(program)
    }
}
