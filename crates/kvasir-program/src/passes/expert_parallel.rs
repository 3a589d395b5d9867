//! Expert parallelism: gives each data-parallel replica a range of the experts of every MoE layer.
//!
//! | part of a model | on each replica |
//! |---|---|
//! | attention, routers, norms, dense and shared feed-forward blocks, vocabulary | complete |
//! | mixture (MoE) | a contiguous range of the routed experts; the replicas exchange rows |
//!
//! A replica routes its own rows. Its executor dispatches each row to the replicas of its top-k
//! experts, and adds the returned outputs in the order of the complete model. So the outputs equal
//! those of the complete model bit for bit.

use crate::ir::op::Op;
use crate::ir::program::{Program, Shard};
use crate::passes::split::cuts;
use crate::passes::split::error::SplitError;
use crate::passes::split::prune::prune;

/// Sizes of a row that a replica dispatches to the experts of other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchShape {
    /// Values per row.
    pub width: usize,
    /// Experts per row.
    pub top_k: usize,
}

impl Program {
    /// The program of one of `replicas` expert-parallel replicas. It has all weights but those of
    /// the other replicas' experts. An executor runs its mixtures with an `ExpertExchange`.
    ///
    /// A single replica has the complete program. Fails if the model has no MoE layer, or one with
    /// fewer experts than there are replicas.
    pub fn for_replica(&self, replica: usize, replicas: usize) -> Result<Self, SplitError> {
        if replica >= replicas {
            return Err(SplitError::Rank { rank: replica, ranks: replicas });
        }
        if let Some(shard) = self.shard.or(self.expert_shard) {
            return Err(SplitError::AlreadySplit { ranks: shard.ranks });
        }
        if replicas == 1 {
            return Ok(self.clone());
        }
        let mut program = self.clone();
        program.expert_shard = Some(Shard { rank: replica, ranks: replicas });
        let mut has_mixture = false;
        for op in &mut program.ops {
            let Op::Mixture { experts, .. } = op else { continue };
            let parts = cuts::even(experts.gate.count, replicas).ok_or_else(|| SplitError::Experts {
                architecture: self.architecture.clone(),
                experts: experts.gate.count,
                ranks: replicas,
            })?;
            let local = parts[replica].clone();
            for matrices in [&mut experts.gate, &mut experts.up, &mut experts.down] {
                *matrices = matrices.range(local.clone());
            }
            experts.first += local.start;
            has_mixture = true;
        }
        if !has_mixture {
            return Err(SplitError::NoExperts { architecture: self.architecture.clone() });
        }
        prune(&mut program);
        Ok(program)
    }

    /// Maximum sizes of the rows that its mixtures dispatch to other replicas. `None` for a program
    /// that has all of its experts.
    pub fn dispatch_shape(&self) -> Option<DispatchShape> {
        self.expert_shard?;
        let mixtures = self.ops.iter().filter(|op| matches!(op, Op::Mixture { .. }));
        let shapes =
            mixtures.map(|op| DispatchShape { width: self.value(op.out()).width(), top_k: self.top_k(op) });
        shapes.reduce(|a, b| DispatchShape { width: a.width.max(b.width), top_k: a.top_k.max(b.top_k) })
    }
}
