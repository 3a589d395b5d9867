use crate::KvType;
use crate::lowering::merged;
use crate::quant::Format;
use crate::source::WeightSource;
use crate::weights::{Form, Linear, Packed, Packer, Precision};
use crate::{Level, Team};
use kvasir_formats::{DType, Error};
use kvasir_program::{Buffers, Matrices, Op, Program, Role, WeightId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The matrices of one op.
pub(crate) enum OpWeights {
    None,
    One(Linear),
    Many(Vec<Linear>),
    Experts { gate: Vec<Linear>, up: Vec<Linear>, down: Vec<Linear> },
}

/// One program with its weights in the kernels' form. Any number of executors, of different caches and pools, share it.
pub struct CpuModel {
    pub(crate) program: Program,
    pub(crate) buffers: Buffers,
    /// Of each op whether it runs inside the next one.
    pub(crate) merged: Vec<bool>,
    /// An entry per op.
    pub(crate) weights: Vec<OpWeights>,
    /// Weights that are no matrices, and those that are looked up by row in exact form.
    pub(crate) vectors: BTreeMap<WeightId, Vec<f32>>,
    pub(crate) source: Arc<dyn WeightSource + Send + Sync>,
    pub(crate) precision: Precision,
    pub(crate) level: Level,
    pub(crate) team: Arc<Team>,
}

impl CpuModel {
    /// Packs the weights of `program`.
    pub fn load(
        program: &Program,
        source: Arc<dyn WeightSource + Send + Sync>,
        precision: Precision,
        team: Arc<Team>,
    ) -> Result<Self, Error> {
        if program.takes_hidden() {
            return Err(Error::at("program", "takes hidden states, which this backend is not handed"));
        }
        let precision = if needs_f32(program, &*source)? { Precision::Exact } else { precision };
        let mut packer = Packer::new(&team, program, &*source, precision);
        let mut weights = Vec::with_capacity(program.ops.len());
        let mut vectors = BTreeMap::new();
        for op in &program.ops {
            weights.push(op_weights(op, &mut packer)?);
            for id in vectors_of(op) {
                if let std::collections::btree_map::Entry::Vacant(place) = vectors.entry(id) {
                    place.insert(packer.numbers(id)?);
                }
            }
        }
        for weight in &program.weights {
            source.let_go(&weight.name);
        }
        let merged = merged(program, &weights);
        let buffers = Buffers::plan_merged(program, &[], &merged);
        let program = program.clone();
        Ok(Self {
            program,
            buffers,
            merged,
            weights,
            vectors,
            source,
            precision,
            level: Level::detect(),
            team,
        })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Its threads.
    pub fn team(&self) -> &Arc<Team> {
        &self.team
    }

    /// The instructions its kernels use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// How K and V are kept unless somebody says otherwise.
    pub fn natural_kv(&self) -> KvType {
        if self.precision == Precision::Exact { KvType::F32 } else { KvType::Bf16 }
    }

    /// How it computes: as asked for, but [`Precision::Exact`] for weights stored as f32 and for routed experts stored as floats.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.weights.iter().flat_map(|w| {
            let (one, many): (Option<&Linear>, [&[Linear]; 3]) = match w {
                OpWeights::None => (None, [&[], &[], &[]]),
                OpWeights::One(l) => (Some(l), [&[], &[], &[]]),
                OpWeights::Many(l) => (None, [l, &[], &[]]),
                OpWeights::Experts { gate, up, down } => (None, [gate, up, down]),
            };
            one.into_iter().chain(many.into_iter().flatten())
        })
    }

    /// Bytes of packed matrices by form.
    pub fn forms(&self) -> BTreeMap<Form, usize> {
        let mut forms = BTreeMap::new();
        for l in self.linears() {
            *forms.entry(form(l)).or_insert(0) += l.packed.bytes();
        }
        forms
    }

    /// Bytes that the matrices take in the file: what one token's step must read at least, for models without experts.
    pub fn stored_bytes(&self) -> usize {
        self.linears().map(|l| l.stored_bytes).sum()
    }

    /// Multiply-adds that one token takes in matrices of each form, counting of the experts those that are used. The head is not included
    /// unless `with_head`.
    pub fn multiply_adds(&self, with_head: bool) -> BTreeMap<Form, u64> {
        let mut work = BTreeMap::new();
        for (op, weights) in self.program.ops.iter().zip(&self.weights) {
            let mut add = |l: &Linear| *work.entry(form(l)).or_insert(0) += (l.inputs * l.outputs) as u64;
            match (op, weights) {
                (Op::Head { .. }, _) if !with_head => {}
                (_, OpWeights::One(l)) => add(l),
                (_, OpWeights::Many(all)) => all.iter().for_each(add),
                (Op::Mixture { routes, .. }, OpWeights::Experts { gate, up, down }) => {
                    let kvasir_program::Holds::Routes(used) = self.program.value(*routes).holds else {
                        continue;
                    };
                    [gate, up, down].into_iter().flat_map(|l| l.iter().take(used)).for_each(add);
                }
                _ => {}
            }
        }
        work
    }
}

/// Whether the fast arithmetic would be the wrong one. A checkpoint whose matrices are f32 is there to be compared with. And
/// experts stored as floats of any width are chosen by scores that lie close together: rounded activations choose others.
fn needs_f32(program: &Program, source: &dyn WeightSource) -> Result<bool, Error> {
    let routed = program.ops.iter().any(|op| matches!(op, Op::Route { .. }));
    for weight in program.weights.iter().filter(|w| matches!(w.role, Role::Matrix | Role::Experts)) {
        let dtype = source.stored(&weight.name, &weight.shape)?.map(|stored| stored.dtype);
        let keeps = match dtype {
            Some(DType::F32) => true,
            Some(dtype) => routed && Format::of(dtype).is_none(),
            None => routed,
        };
        if !keeps {
            return Ok(false);
        }
    }
    Ok(true)
}

fn form(l: &Linear) -> Form {
    match l.packed {
        Packed::Quant(_) => Form::Quantised,
        Packed::Bf16(_) => Form::Bf16,
        Packed::F32(_) => Form::F32,
    }
}

fn op_weights(op: &Op, packer: &mut Packer<'_>) -> Result<OpWeights, Error> {
    let mut many =
        |m: &Matrices| (0..m.count).map(|n| packer.linear(&m.nth(n))).collect::<Result<Vec<_>, _>>();
    Ok(match op {
        Op::Linear { matrix, .. } | Op::Head { matrix, .. } => OpWeights::One(packer.linear(matrix)?),
        Op::GroupLinear { matrices, .. } => OpWeights::Many(many(matrices)?),
        Op::Mixture { experts, .. } => OpWeights::Experts {
            gate: many(&experts.gate)?,
            up: many(&experts.up)?,
            down: many(&experts.down)?,
        },
        _ => OpWeights::None,
    })
}

fn vectors_of(op: &Op) -> impl Iterator<Item = WeightId> {
    let pair = match op {
        Op::Norm { weight, bias, .. } => [Some(*weight), *bias],
        Op::UpdateAndAttend { sinks, .. } => [*sinks, None],
        Op::Route { routing, .. } => [routing.correction, None],
        _ => [None, None],
    };
    pair.into_iter().flatten()
}
