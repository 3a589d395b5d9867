use crate::KvType;
use crate::lowering::Lowered;
use crate::packer::{Packer, out_of_memory};
use crate::precision::Precision;
use crate::source::WeightSource;
use crate::weights::Linear;
use crate::{Level, Team};
use kvasir_formats::Error;
use kvasir_program::{Matrices, Op, Program, Tap, ValueId, WeightId};
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

impl OpWeights {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Linear> {
        let parts: [&[Linear]; 3] = match self {
            Self::None => [&[], &[], &[]],
            Self::One(l) => [std::slice::from_ref(l), &[], &[]],
            Self::Many(l) => [l, &[], &[]],
            Self::Experts { gate, up, down } => [gate, up, down],
        };
        parts.into_iter().flatten()
    }
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

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.weights.iter().flat_map(OpWeights::all)
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
