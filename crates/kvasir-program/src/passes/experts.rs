//! Expert parallelism: gives each data-parallel replica a range of the experts of every mixture.
//!
//! | part of a model | on each replica |
//! |---|---|
//! | attention, routers, norms, dense and shared feed-forward blocks, vocabulary | complete |
//! | mixture (MoE) | a contiguous range of experts; the replicas exchange rows |
//!
//! A replica routes its own rows. Its executor sends each row to the replicas that hold the chosen
//! experts, and adds the returned outputs in the order of the complete model. So the bits are those
//! of the complete model.

use crate::ir::op::Op;
use crate::ir::program::{Program, Shard};
use crate::passes::split::cuts;
use crate::passes::split::error::SplitError;
use crate::passes::split::prune::prune;

impl Program {
    /// The program of one of `replicas` replicas that share their experts. Its weights cover this
    /// replica's experts only, and each mixture exchanges rows with the other replicas.
    ///
    /// A single replica has the complete program. Fails if the model has no mixture, or a mixture has
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
        let mut has_experts = false;
        for op in &mut program.ops {
            let Op::Mixture { experts, .. } = op else { continue };
            let parts = cuts::even(experts.gate.count, replicas).ok_or_else(|| SplitError::Experts {
                architecture: self.architecture.clone(),
                experts: experts.gate.count,
                ranks: replicas,
            })?;
            let local = parts[replica].clone();
            for family in [&mut experts.gate, &mut experts.up, &mut experts.down] {
                *family = family.range(local.clone());
            }
            experts.first += local.start;
            has_experts = true;
        }
        if !has_experts {
            return Err(SplitError::NoExperts { architecture: self.architecture.clone() });
        }
        prune(&mut program);
        Ok(program)
    }

    /// The largest row that a mixture exchanges: its width, and the experts per token. `None` for a
    /// program that has all of its experts.
    pub fn exchanged_row(&self) -> Option<(usize, usize)> {
        self.expert_shard?;
        let mixtures = self.ops.iter().filter(|op| matches!(op, Op::Mixture { .. }));
        let sizes = mixtures.map(|op| (self.value(op.out()).width(), self.chosen(op)));
        sizes.reduce(|(width, chosen), (w, c)| (width.max(w), chosen.max(c)))
    }
}
