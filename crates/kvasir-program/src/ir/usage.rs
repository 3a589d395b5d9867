//! Number of elements that a program reads of each weight: all, or one rank's shard.

use crate::ir::op::Op;
use crate::ir::program::Program;
use crate::ir::weight::{Matrices, Matrix, WeightId};
use std::collections::BTreeMap;

impl Program {
    /// Elements of each weight that its ops read, indexed by [`WeightId`]. Reads of a tied weight
    /// count at the weight that stores its bytes.
    ///
    /// Reads by several ops are added, up to the weight's size: exact unless ops overlap in a part
    /// of it.
    pub fn elements_read(&self) -> Vec<usize> {
        let mut usage = Usage { program: self, elements: vec![0; self.weights.len()] };
        self.ops.iter().for_each(|op| usage.op(op));
        usage.elements
    }

    /// By tensor name: the elements that the ops read and all elements. Adds the weights that are
    /// parts of one tensor.
    pub fn tensor_elements_read(&self) -> BTreeMap<&str, (usize, usize)> {
        let mut tensors: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (weight, read) in self.weights.iter().zip(self.elements_read()) {
            let tensor = tensors.entry(&weight.name).or_default();
            *tensor = (tensor.0.saturating_add(read), weight.shape.iter().product());
        }
        tensors
    }
}

struct Usage<'a> {
    program: &'a Program,
    elements: Vec<usize>,
}

impl Usage<'_> {
    fn add(&mut self, id: WeightId, elements: usize) {
        let id = self.program.resolve(id);
        let all = self.program.weight(id).elements().len();
        let read = &mut self.elements[id.0 as usize];
        *read = read.saturating_add(elements).min(all);
    }

    fn add_all(&mut self, id: WeightId) {
        self.add(id, usize::MAX);
    }

    fn matrix(&mut self, matrix: &Matrix) {
        self.add(matrix.weight, matrix.outputs * matrix.inputs);
        matrix.bias.iter().for_each(|bias| self.add(bias.weight, matrix.outputs));
    }

    fn family(&mut self, all: &Matrices) {
        (0..all.count).for_each(|n| self.matrix(&all.nth(n)));
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Embed { table, .. } | Op::Lookup { table, .. } => self.add_all(*table),
            Op::Norm { weight, bias, .. } => {
                weight.iter().chain(bias).for_each(|id| self.add_all(*id));
            }
            Op::ShortConv { weight, bias, .. } => {
                self.add_all(*weight);
                bias.iter().for_each(|bias| self.add_all(*bias));
            }
            Op::Linear { matrix, .. } | Op::Head { matrix, .. } => self.matrix(matrix),
            Op::GroupLinear { matrices, .. } => self.family(matrices),
            Op::UpdateAndAttend { q, layer, sinks: Some(sinks), .. } => {
                let facts = self.program.layers[layer.0 as usize];
                let heads = self.program.value(*q).width() / facts.key_dim.max(1);
                self.add(sinks.weight, heads);
            }
            Op::Route { routing, .. } => {
                let ids = [routing.correction, routing.expert_scale, routing.token_table];
                ids.into_iter().flatten().for_each(|id| self.add_all(id));
            }
            Op::GatedDelta { form, .. } => {
                [form.decay, form.dt_bias].into_iter().for_each(|id| self.add_all(id));
            }
            Op::SelectiveScan { form, .. } => {
                [form.decay, form.dt_bias, form.skip].into_iter().for_each(|id| self.add_all(id));
            }
            Op::HyperConnection { form, .. } => {
                [form.scale, form.base].into_iter().for_each(|id| self.add_all(id));
            }
            Op::SelectKeys { pool, .. } => {
                let weights = pool.iter().flat_map(|pool| pool.combine.weights()).flatten();
                weights.for_each(|id| self.add_all(id));
            }
            Op::CompressedAttend { sinks, pool, .. } => {
                let weights = pool.combine.weights().into_iter().flatten();
                weights.chain([sinks.weight]).for_each(|id| self.add_all(id));
            }
            Op::NgramEmbed { form, .. } => form.tables.iter().for_each(|table| self.add_all(*table)),
            Op::Scale { by, .. } => by.iter().for_each(|id| self.add_all(*id)),
            Op::Mixture { experts, .. } => {
                [&experts.gate, &experts.up, &experts.down].into_iter().for_each(|all| self.family(all));
            }
            Op::Hidden { .. }
            | Op::Slice { .. }
            | Op::Concat { .. }
            | Op::Rotary { .. }
            | Op::UpdateAndAttend { sinks: None, .. }
            | Op::Gate { .. }
            | Op::Elementwise { .. }
            | Op::GroupDot { .. }
            | Op::MixStreams { .. }
            | Op::Pool { .. }
            | Op::Add { .. }
            | Op::Collect { .. }
            | Op::Gather { .. } => {}
        }
    }
}
