//! Shards recurrences: equal numbers of heads per rank, with the key heads or groups they read.
//!
//! 1. The sharding follows the result through norms of whole groups and output gates.
//! 2. Matrices that read the last sharded value become row-parallel. If another op reads it, such
//!    as a norm over the whole row, or if a part ends inside a quantization block, an all-gather
//!    completes the value. The matrices then take ranges of the complete row.
//!
//! A recurrence whose heads cannot be divided equally is replicated. Ranks then keep equal states.

use crate::ir::op::Op;
use crate::ir::value::ValueId;
use crate::ir::weight::Matrix;
use crate::passes::split::cuts::{self, HeadPartition, Partition};
use crate::passes::split::plan::{Planner, Sharding};

impl<'a> Planner<'a> {
    /// Shards a recurrence of `heads` heads and what follows it; replicates it without a partition.
    pub(crate) fn recurrence(&mut self, out: ValueId, heads: usize, partition: Option<HeadPartition>) {
        let Some(HeadPartition { heads: parts, kv_heads }) = partition else { return };
        let mut last = Some(out);
        let mut end = out;
        while let Some(value) = last {
            let sharded = cuts::to_elements(&parts, self.width(value) / heads.max(1));
            self.plan.shardings[value.0 as usize] = Sharding::Sharded(sharded);
            end = value;
            last = self.sharded_reader(value);
        }
        self.plan.shared_heads.insert(out, kv_heads);
        let parts = cuts::to_elements(&parts, self.width(end) / heads.max(1));
        if let Some(matrices) = self.matrices(end) {
            let is_block = |(matrix, _): &(Matrix, _)| {
                parts.iter().all(|part| (matrix.offset + part.start).is_multiple_of(self.block(matrix)))
            };
            if matrices.iter().all(is_block) {
                self.shard_inputs(&matrices, &parts);
            } else {
                self.shard_complete_row(end, &matrices);
            }
        } else if let [Op::Norm { out, .. }] = self.reading_ops(end)[..]
            && let Some(matrices) = self.matrices(*out)
        {
            self.shard_complete_row(*out, &matrices);
        }
    }

    fn reading_ops(&self, value: ValueId) -> Vec<&'a Op> {
        self.readers[value.0 as usize].iter().map(|at| &self.program.ops[*at]).collect()
    }

    /// The result of the only reader of a sharded value, if each rank can compute its part of it.
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

    /// The matrices that read a value, each with its result; `None` if it has another reader.
    fn matrices(&self, value: ValueId) -> Option<Vec<(Matrix, ValueId)>> {
        let matrix = |op: &Op| match op {
            Op::Linear { matrix, out, .. } => Some((*matrix, *out)),
            _ => None,
        };
        if self.is_tapped(value) {
            return None;
        }
        self.reading_ops(value).into_iter().map(matrix).collect()
    }

    /// Makes matrices that read a complete row row-parallel, if it has enough blocks.
    fn shard_complete_row(&mut self, value: ValueId, matrices: &[(Matrix, ValueId)]) {
        let block = matrices.iter().fold(1, |all, (matrix, _)| cuts::lcm(all, self.block(matrix)));
        if let Some(parts) = cuts::columns(self.width(value), block, self.ranks) {
            self.shard_inputs(matrices, &parts);
        }
    }

    /// Makes matrices row-parallel: each rank has the inputs of its part.
    fn shard_inputs(&mut self, matrices: &[(Matrix, ValueId)], parts: &Partition) {
        for (_, out) in matrices {
            self.plan.shardings[out.0 as usize] = Sharding::Partial;
            self.plan.row_parallel.insert(*out, parts.clone());
        }
    }
}
