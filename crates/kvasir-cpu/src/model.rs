use crate::KvType;
use crate::lowering::Lowered;
use crate::packer::{Packer, out_of_memory};
use crate::precision::Precision;
use crate::source::WeightSource;
use crate::weights::{Form, Linear};
use crate::{Level, Team};
use kvasir_formats::Error;
use kvasir_program::{Matrices, Op, Program, Rows, Tap, ValueId, WeightId};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The matrices of one op.
pub(crate) enum OpWeights {
    None,
    One(Linear),
    Many(Vec<Linear>),
    Experts { gate: Vec<Linear>, up: Vec<Linear>, down: Vec<Linear> },
}

/// One program with its weights in the kernels' form. Any number of executors, of different caches and pools, share it.
pub struct CpuModel {
    /// As it was handed in, and as it is run: with what only leads to logits for sampled rows alone.
    whole: Program,
    pub(crate) program: Program,
    /// How its ops run.
    pub(crate) how: Lowered,
    /// Values that are kept, to be asked for.
    pub(crate) taps: Vec<(Tap, ValueId)>,
    /// An entry per op.
    pub(crate) weights: Vec<OpWeights>,
    /// Weights that are no matrices.
    pub(crate) vectors: BTreeMap<WeightId, Vec<f32>>,
    pub(crate) source: Arc<dyn WeightSource + Send + Sync>,
    pub(crate) precision: Precision,
    pub(crate) level: Level,
    pub(crate) team: Arc<Team>,
    /// Whether a step has been run: the first one reads matrices where they lie.
    used: AtomicBool,
    /// Whether everything is packed; locked by whoever packs.
    packed: Mutex<bool>,
}

/// Of what matrices take in all, the part that a step packs; and the least.
const PACKED_PER_STEP: usize = 4;
const LEAST_PACKED: usize = 16 << 20;

impl CpuModel {
    /// Makes the weights of `program` ready. Matrices whose rows are stored as such are read where they lie, if their source lets that, and packed while
    /// steps run, but those that are computed in f32; [`pack`](Self::pack) does it at once.
    pub fn load(
        program: &Program,
        source: Arc<dyn WeightSource + Send + Sync>,
        precision: Precision,
        team: Arc<Team>,
    ) -> Result<Self, Error> {
        let whole = program;
        let program = whole.sampled_early(&[]);
        let precision = precision.min(Precision::least(whole, &*source)?);
        let mut packer = Packer::new(&team, whole, &source, precision);
        let mut weights: Vec<_> = program.ops.iter().map(|_| OpWeights::None).collect();
        let mut vectors = BTreeMap::new();
        // Mapped pages go as soon as they are packed, so that a model is never in memory twice: the head, the largest by far, while
        // nothing else is there.
        let heads = |at: &usize| matches!(program.ops[*at], Op::Head { .. });
        let (first, rest): (Vec<_>, Vec<_>) = (0..program.ops.len()).partition(heads);
        for at in first.into_iter().chain(rest) {
            let op = &program.ops[at];
            weights[at] = op_weights(op, &mut packer)?;
            if let Op::Embed { table, .. } = op {
                packer.look_into(*table)?;
            }
            for id in vectors_of(op) {
                if let std::collections::btree_map::Entry::Vacant(place) = vectors.entry(id) {
                    place.insert(packer.numbers(id)?);
                }
            }
        }
        let keep = program.head_input();
        let how = Lowered::new(&program, &weights, keep.as_slice());
        Ok(Self {
            whole: whole.clone(),
            program,
            how,
            taps: Vec::new(),
            weights,
            vectors,
            source,
            precision,
            level: Level::detect(),
            team,
            used: AtomicBool::new(false),
            packed: Mutex::new(false),
        })
    }

    /// Packs all matrices that are read where they lie: steps then are as fast as they get.
    pub fn pack(&self) -> Result<(), Error> {
        let mut packed = self.packed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *packed = self.pack_some(usize::MAX).map_err(out_of_memory)?;
        Ok(())
    }

    /// Packs some matrices before a step, unless it is the first one or somebody else does. Without memory for that they are read where they lie.
    pub(crate) fn settle(&self) {
        if !self.used.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(mut packed) = self.packed.try_lock() else { return };
        if !*packed {
            let all: usize = self.linears().map(|l| l.packed.bytes()).sum();
            *packed = self.pack_some((all / PACKED_PER_STEP).max(LEAST_PACKED)).unwrap_or(true);
        }
    }

    /// Packs matrices of at least so many bytes together; says whether none is left.
    fn pack_some(&self, bytes: usize) -> io::Result<bool> {
        let mut left = bytes;
        for l in self.linears() {
            while !l.packed.is_packed() {
                if left == 0 {
                    return Ok(false);
                }
                left = left.saturating_sub(l.packed.pack_some(&self.team, left)?);
            }
        }
        Ok(true)
    }

    /// Keeps the values behind these taps, so that an executor can be asked for them.
    pub fn keeping(mut self, taps: &[Tap]) -> Result<Self, Error> {
        let value = |tap: &Tap| {
            let missing = || Error::at("program", format!("has no tap {tap:?}"));
            self.program.tap(*tap).ok_or_else(missing)
        };
        let keep = taps.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let program = self.whole.sampled_early(&keep);
        // Only gathers come and go, and they have no weights.
        let gathers = |op: &Op| matches!(op, Op::Gather { .. });
        let laid = self.program.ops.iter().zip(self.weights).filter(|(op, _)| !gathers(op));
        let mut laid = laid.map(|(_, weights)| weights);
        let place = |op| if gathers(op) { None } else { laid.next() }.unwrap_or(OpWeights::None);
        self.weights = program.ops.iter().map(place).collect();
        self.program = program;
        let all: Vec<ValueId> = keep.iter().copied().chain(self.program.head_input()).collect();
        self.how = Lowered::new(&self.program, &self.weights, &all);
        self.taps = taps.iter().copied().zip(keep).collect();
        Ok(self)
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
        if self.precision == Precision::Auto { KvType::Bf16 } else { KvType::F32 }
    }

    /// How it computes: as asked for, but no less than [`Precision::Exact`] for weights stored as f32 and [`Precision::Close`] for routed experts
    /// stored as floats.
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
            *forms.entry(l.packed.form()).or_insert(0) += l.packed.bytes();
        }
        forms
    }

    /// Bytes of the file that a step of so many tokens must read: all matrices, and of experts as many as get a token where each is chosen
    /// as often as any other.
    pub fn bytes_read(&self, tokens: u32) -> f64 {
        let bytes = |all: &[Linear]| all.iter().map(|l| l.stored_bytes).sum::<usize>() as f64;
        let of_op = |(op, weights): (&Op, &OpWeights)| match weights {
            OpWeights::None => 0.0,
            OpWeights::One(l) => l.stored_bytes as f64,
            OpWeights::Many(all) => bytes(all),
            OpWeights::Experts { gate, up, down } => {
                let idle = 1.0 - self.program.chosen(op) as f64 / gate.len().max(1) as f64;
                (bytes(gate) + bytes(up) + bytes(down)) * (1.0 - idle.powf(f64::from(tokens)))
            }
        };
        self.program.ops.iter().zip(&self.weights).map(of_op).sum()
    }

    /// Multiply-adds that one token takes in matrices of each form, counting of the experts those that are used. What only tokens take whose
    /// logits are wanted is not included unless `sampled`.
    pub fn multiply_adds(&self, sampled: bool) -> BTreeMap<Form, u64> {
        let mut work = BTreeMap::new();
        for (op, weights) in self.program.ops.iter().zip(&self.weights) {
            let mut add =
                |l: &Linear| *work.entry(l.packed.form()).or_insert(0) += (l.inputs * l.outputs) as u64;
            match (op, weights) {
                _ if !sampled && self.program.value(op.out()).rows == Rows::Sampled => {}
                (_, OpWeights::One(l)) => add(l),
                (_, OpWeights::Many(all)) => all.iter().for_each(add),
                (_, OpWeights::Experts { gate, up, down }) => {
                    let used = self.program.chosen(op);
                    [gate, up, down].into_iter().flat_map(|l| l.iter().take(used)).for_each(add);
                }
                (_, OpWeights::None) => {}
            }
        }
        work
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
