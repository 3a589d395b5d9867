//! Shards recurrences: each rank has an equal number of heads and the key heads or groups they read.
//!
//! 1. Norms of whole groups and output gates that read the result are sharded by the same heads.
//! 2. Matrices that read the last sharded value become row-parallel. If a norm over the whole row
//!    reads it, or if a part ends inside a quantization block, an all-gather makes the row complete.
//!    The matrices then read ranges of the complete row, which may differ from the ranks' heads.
//!
//! A recurrence whose heads cannot be divided equally is replicated. All ranks then have equal states.

use crate::ir::op::Op;
use crate::ir::value::ValueId;
use crate::ir::weight::Matrix;
use crate::passes::split::cuts::{self, HeadPartition, Partition};
use crate::passes::split::plan::{Planner, Sharding};

impl<'a> Planner<'a> {
    /// Shards a recurrence of `heads` heads with the result `out`, and the ops that follow it. Without
    /// a partition the recurrence stays replicated.
    pub(crate) fn shard_recurrence(&mut self, out: ValueId, heads: usize, partition: Option<HeadPartition>) {
        let Some(HeadPartition { heads: parts, kv_heads }) = partition else { return };
        let mut next = Some(out);
        let mut last = out;
        while let Some(value) = next {
            let elements = cuts::to_elements(&parts, self.width(value) / heads.max(1));
            self.plan.shardings[value.0 as usize] = Sharding::Sharded(elements);
            last = value;
            next = self.sharded_reader(value);
        }
        self.plan.shared_heads.insert(out, kv_heads);
        let parts = cuts::to_elements(&parts, self.width(last) / heads.max(1));
        if let Some(matrices) = self.reading_matrices(last) {
            let is_aligned = |(matrix, _): &(Matrix, _)| {
                parts.iter().all(|part| (matrix.offset + part.start).is_multiple_of(self.block(matrix)))
            };
            if matrices.iter().all(is_aligned) {
                self.shard_inputs(&matrices, &parts);
            } else {
                self.shard_gathered_inputs(last, &matrices);
            }
        } else if let [Op::Norm { out, .. }] = self.reading_ops(last)[..]
            && let Some(matrices) = self.reading_matrices(*out)
        {
            self.shard_gathered_inputs(*out, &matrices);
        }
    }

    fn reading_ops(&self, value: ValueId) -> Vec<&'a Op> {
        self.readers[value.0 as usize].iter().map(|at| &self.program.ops[*at]).collect()
    }

    /// The result of the only reader of a sharded value, if each rank can compute its part of that
    /// result from its part of the value.
    fn sharded_reader(&self, value: ValueId) -> Option<ValueId> {
        let readers = self.reading_ops(value);
        match readers[..] {
            _ if self.is_tapped(value) => None,
            [Op::Norm { groups, out, .. }] if groups.is_multiple_of(self.ranks) => Some(*out),
            [Op::Gate { gate, up, out, .. }]
                if *up == value && *gate != value && self.width(*gate) == self.width(value) =>
            {
                Some(*out)
            }
            _ => None,
        }
    }

    /// The matrices that read a value, each with its result. `None` if a tap or any other op reads
    /// the value.
    fn reading_matrices(&self, value: ValueId) -> Option<Vec<(Matrix, ValueId)>> {
        let matrix = |op: &Op| match op {
            Op::Linear { matrix, out, .. } => Some((*matrix, *out)),
            _ => None,
        };
        if self.is_tapped(value) {
            return None;
        }
        self.reading_ops(value).into_iter().map(matrix).collect()
    }

    /// Makes matrices that read the complete row of a value row-parallel, if the row has at least one
    /// quantization block per rank.
    fn shard_gathered_inputs(&mut self, value: ValueId, matrices: &[(Matrix, ValueId)]) {
        let block = matrices.iter().fold(1, |all, (matrix, _)| cuts::lcm(all, self.block(matrix)));
        if let Some(parts) = cuts::columns(self.width(value), block, self.ranks) {
            self.shard_inputs(matrices, &parts);
        }
    }

    /// Makes matrices row-parallel: each rank reads the inputs of its part.
    fn shard_inputs(&mut self, matrices: &[(Matrix, ValueId)], parts: &Partition) {
        for (_, out) in matrices {
            self.plan.shardings[out.0 as usize] = Sharding::Partial;
            self.plan.row_parallel.insert(*out, parts.clone());
        }
    }
}
