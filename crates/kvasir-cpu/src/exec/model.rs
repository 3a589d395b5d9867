//! A loaded model: one program with its weights packed into the kernels' panel layout.
//!
//! 1. `load` maps matrices that are multiplied as integers or bf16. Their panels are at first made
//!    on the fly from the stored rows, so that time to first token does not wait for packing.
//! 2. `pack_before_step` packs a quarter of the weights before each step after the first.
//! 3. `pack` packs everything at once, and so does a dummy step (`pack_for_warm_up`).
//!
//! Packed and unpacked panels have the same bytes, so results do not change. Mapped pages are
//! released once packed: a model is never in memory twice. With a `PackedFile`, processes pack the
//! model together: a step adopts the panels that others have packed, and skips matrices that they
//! are packing. Executors share a model through an `Arc`; packing takes a lock, and kernels see it
//! only through the atomics of `panels`. `tests/checkpoints.rs` compares every recorded checkpoint.

use crate::exec::lowering::Lowered;
use crate::isa::features::Isa;
use crate::memory::kv_pool::kv_type::KvType;
use crate::recurrent::short_conv::MAX_KERNEL;
use crate::recurrent::weights::{ConvWeights, HeadWeights, RecurrentWeights};
use crate::threads::pool::ThreadPool;
use crate::weights::linear::{Form, Linear, OpWeights};
use crate::weights::packed_file::{POLL_INTERVAL, PackedFile, STALL_TIMEOUT};
use crate::weights::packer::Packer;
use crate::weights::panels::out_of_memory;
use crate::weights::precision::Precision;
use crate::weights::source::WeightSource;
use kvasir_formats::Error;
use kvasir_program::{Matrices, Op, Program, Tap, ValueId, WeightId};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

/// One program with its weights ready for the kernels. Immutable but for lazy packing; any number
/// of executors with different caches and pools share it.
pub struct CpuModel {
    /// The program as it was handed in. `program` is the lowered one: ops that only lead to logits
    /// run for sampled rows alone.
    whole: Program,
    pub(crate) program: Program,
    /// Fusion and buffer assignment of its ops.
    pub(crate) lowered: Lowered,
    /// Values that stay readable after a step, for `CpuExecutor::tap`.
    pub(crate) taps: Vec<(Tap, ValueId)>,
    /// Weight matrices, one entry per op.
    pub(crate) weights: Vec<OpWeights>,
    /// Weights that are not matrices: norms, biases, sinks, corrections.
    pub(crate) vectors: BTreeMap<WeightId, Vec<f32>>,
    /// Weights of recurrent ops, indexed by `StateId`.
    pub(crate) recurrent: Vec<RecurrentWeights>,
    pub(crate) source: Arc<dyn WeightSource + Send + Sync>,
    pub(crate) precision: Precision,
    pub(crate) isa: Isa,
    pub(crate) threads: Arc<ThreadPool>,
    /// Whether a step has run: the first one reads unpacked matrices in place.
    used: AtomicBool,
    /// Whether all matrices are packed; held while packing.
    packed: Mutex<bool>,
    /// Ops of the newest forward pass that have run.
    pub(crate) ops_run: AtomicUsize,
}

/// Options of [`CpuModel::load_with`].
pub struct LoadOptions<'a> {
    /// Progress callback: number of ops whose weights are ready, and number of all ops.
    pub watch: &'a dyn Fn(usize, usize),
    /// The file that packed weights are shared in; `None` packs into private memory.
    pub packed_file: Option<Arc<PackedFile>>,
}

impl Default for LoadOptions<'_> {
    fn default() -> Self {
        Self { watch: &|_, _| {}, packed_file: None }
    }
}

/// Each step packs the total divided by this, but at least `LEAST_PACKED` bytes.
const PACKED_PER_STEP: usize = 4;
const LEAST_PACKED: usize = 16 << 20;

impl CpuModel {
    /// Loads the weights of `program`. Matrices that the source stores row by row are mapped and
    /// packed lazily while steps run; those computed in f32 are packed now. [`pack`](Self::pack)
    /// packs the rest at once.
    pub fn load(
        program: &Program,
        source: Arc<dyn WeightSource + Send + Sync>,
        precision: Precision,
        threads: Arc<ThreadPool>,
    ) -> Result<Self, Error> {
        Self::load_with(program, source, precision, threads, LoadOptions::default())
    }

    /// Loads the weights as `load` does, with options.
    pub fn load_with(
        program: &Program,
        source: Arc<dyn WeightSource + Send + Sync>,
        precision: Precision,
        threads: Arc<ThreadPool>,
        LoadOptions { watch, packed_file }: LoadOptions<'_>,
    ) -> Result<Self, Error> {
        let whole = program;
        let program = whole.sampled_early(&[]);
        let precision = precision.min(Precision::least(whole, &*source)?);
        let mut packer = Packer::new(&threads, whole, &source, precision, packed_file);
        let mut weights: Vec<_> = program.ops.iter().map(|_| OpWeights::None).collect();
        let mut vectors = BTreeMap::new();
        // Mapped pages are released once packed, so a model is never in memory twice. The LM head,
        // the largest matrix by far, goes first while memory is still free.
        let heads = |at: &usize| matches!(program.ops[*at], Op::Head { .. });
        let (first, rest): (Vec<_>, Vec<_>) = (0..program.ops.len()).partition(heads);
        for (done, at) in first.into_iter().chain(rest).enumerate() {
            watch(done, program.ops.len());
            let op = &program.ops[at];
            weights[at] = op_weights(op, &mut packer)?;
            for table in tables_of(op) {
                packer.check_row_access(*table)?;
            }
            for id in vectors_of(op) {
                if let std::collections::btree_map::Entry::Vacant(place) = vectors.entry(id) {
                    place.insert(packer.numbers(id)?);
                }
            }
        }
        let invalid = |(name, why): (&str, String)| Error::at(format!("tensor {name}"), why);
        program.check_token_tables(|table| &vectors[&table][..]).map_err(invalid)?;
        let recurrent = recurrent_weights(&program, &packer)?;
        let keep = program.hidden_output();
        let lowered = Lowered::new(&program, &weights, keep.as_slice());
        Ok(Self {
            whole: whole.clone(),
            program,
            lowered,
            taps: Vec::new(),
            weights,
            vectors,
            recurrent,
            source,
            precision,
            isa: Isa::detect(),
            threads,
            used: AtomicBool::new(false),
            packed: Mutex::new(false),
            ops_run: AtomicUsize::new(0),
        })
    }

    /// Share of the newest forward pass that has run, by ops: 1 between two passes.
    pub fn forward_share(&self) -> f64 {
        self.ops_run.load(Ordering::Relaxed) as f64 / self.program.ops.len().max(1) as f64
    }

    /// Packs all matrices that are still read in place. Afterwards steps run at full speed.
    /// Matrices whose packing has stalled in another process are still read in place.
    pub fn pack(&self) -> Result<(), Error> {
        let mut packed = self.packed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *packed = self.pack_all().map_err(out_of_memory)?;
        Ok(())
    }

    /// Memory that packing has yet to take, in bytes.
    pub fn unpacked_bytes(&self) -> usize {
        self.linears().map(|l| l.packed.unpacked_bytes()).sum()
    }

    /// Bytes of the embedding tables if they stay in the mapped file, where steps read single
    /// rows; else 0.
    pub fn mapped_bytes(&self) -> u64 {
        if !self.source.reads_in_place() {
            return 0;
        }
        let tables = self.program.ops.iter().flat_map(tables_of).map(|table| self.program.resolve(*table));
        let bytes = |id: WeightId| {
            let weight = self.program.weight(id);
            let width = weight.shape.last().copied().unwrap_or(0).max(1);
            let rows = weight.shape.iter().product::<usize>() / width;
            let dtype = self.source.dtype(&weight.name, &weight.shape).ok().flatten();
            dtype.and_then(|dtype| dtype.row_bytes(width).ok()).map_or(0, |row| (rows * row) as u64)
        };
        tables.collect::<BTreeSet<_>>().into_iter().map(bytes).sum()
    }

    /// Bytes that the panels of all matrices occupy once packed.
    pub fn packed_bytes(&self) -> usize {
        self.linears().map(|l| l.packed.bytes()).sum()
    }

    /// Bytes of the panels that lie in a `PackedFile`.
    pub fn shared_bytes(&self) -> usize {
        self.linears().filter(|l| l.packed.is_shared()).map(|l| l.packed.bytes()).sum()
    }

    /// Packs some matrices before a step, unless it is the first step or another thread is packing.
    /// If memory runs out, the rest stays unpacked and is read in place.
    pub(crate) fn pack_before_step(&self) {
        if !self.used.swap(true, Ordering::Relaxed) {
            return;
        }
        let Ok(mut packed) = self.packed.try_lock() else { return };
        if !*packed {
            *packed =
                self.pack_some((self.packed_bytes() / PACKED_PER_STEP).max(LEAST_PACKED)).unwrap_or(true);
        }
    }

    /// Packs all that is left before a dummy step, where no request waits for its first token. If
    /// memory runs out, the rest is read in place.
    pub(crate) fn pack_for_warm_up(&self) {
        self.used.store(true, Ordering::Relaxed);
        let mut packed = self.packed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !*packed {
            *packed = self.pack_all().unwrap_or(true);
        }
    }

    /// Packs all panels, and waits for those that other processes pack. Gives up after
    /// `STALL_TIMEOUT` without progress; returns whether all panels are packed.
    fn pack_all(&self) -> io::Result<bool> {
        let (mut left, mut progress) = (usize::MAX, Instant::now());
        while !self.pack_some(usize::MAX)? {
            let unpacked = self.unpacked_bytes();
            if unpacked < left {
                (left, progress) = (unpacked, Instant::now());
            } else if progress.elapsed() > STALL_TIMEOUT {
                return Ok(false);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(true)
    }

    /// Packs at least `bytes` bytes of panels; returns whether nothing is left to pack. Skips
    /// matrices that other processes are packing.
    fn pack_some(&self, bytes: usize) -> io::Result<bool> {
        let (mut left, mut is_packed) = (bytes, true);
        for l in self.linears() {
            l.packed.adopt();
            while !l.packed.is_packed() {
                if left == 0 {
                    return Ok(false);
                }
                match l.packed.pack_some(&self.threads, left)? {
                    0 => {
                        is_packed = false;
                        break;
                    }
                    packed => left = left.saturating_sub(packed),
                }
            }
        }
        Ok(is_packed)
    }

    /// Keeps the activations behind these taps, so that `CpuExecutor::tap` can return them after a
    /// step. Fails if the program lacks one of the taps.
    pub fn keeping(mut self, taps: &[Tap]) -> Result<Self, Error> {
        let value = |tap: &Tap| {
            let missing = || Error::at("program", format!("has no tap {tap:?}"));
            self.program.tap(*tap).ok_or_else(missing)
        };
        let keep = taps.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let program = self.whole.sampled_early(&keep);
        // Only gathers differ between the two lowerings, and they have no weights.
        let gathers = |op: &Op| matches!(op, Op::Gather { .. });
        let laid = self.program.ops.iter().zip(self.weights).filter(|(op, _)| !gathers(op));
        let mut laid = laid.map(|(_, weights)| weights);
        let place = |op| if gathers(op) { None } else { laid.next() }.unwrap_or(OpWeights::None);
        self.weights = program.ops.iter().map(place).collect();
        self.program = program;
        let all: Vec<ValueId> = keep.iter().copied().chain(self.program.hidden_output()).collect();
        self.lowered = Lowered::new(&self.program, &self.weights, &all);
        self.taps = taps.iter().copied().zip(keep).collect();
        Ok(self)
    }

    /// The program as it runs, lowered for sampled rows.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The thread pool that its kernels run on.
    pub fn threads(&self) -> &Arc<ThreadPool> {
        &self.threads
    }

    /// The instruction set that its kernels use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The default KV cache data type: f32 for [`Precision::F32`] and [`Precision::Bf16x2`],
    /// otherwise by the stored weights ([`default_kv`]).
    pub fn natural_kv(&self) -> KvType {
        match self.precision {
            Precision::F32 | Precision::Bf16x2 => KvType::F32,
            Precision::Auto => default_kv(self.isa, self.linears().map(|l| l.packed.form())),
        }
    }

    /// The arithmetic in use: as requested, but at least [`Precision::F32`] for weights stored as
    /// f32 and [`Precision::Bf16x2`] for routed experts stored as floats.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    pub(crate) fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.weights.iter().flat_map(OpWeights::all)
    }
}

/// The default KV cache data type of weights of these forms: f16 if any matrix is stored as f16, if
/// bf16 matrices are multiplied by an instruction set with bf16 dot products, or if matrices are
/// bf16 and none is quantized; bf16 otherwise.
///
/// Bf16 matrices are exact. Rounding K, V, Q and P to bf16 is a third of the remaining error where
/// bf16 dot products round activations, and all of it elsewhere; attention over f16 rounds neither
/// Q nor P. With quantized weights that error is negligible.
fn default_kv(isa: Isa, forms: impl Iterator<Item = Form>) -> KvType {
    let forms: Vec<Form> = forms.collect();
    let has = |form| forms.contains(&form);
    let rounding_matters = isa.has_bf16_dot() || !has(Form::Quantized);
    if has(Form::F16) || has(Form::Bf16) && rounding_matters { KvType::F16 } else { KvType::Bf16 }
}

/// Packs the weight matrices of one op.
fn op_weights(op: &Op, packer: &mut Packer<'_>) -> Result<OpWeights, Error> {
    let mut many = |m: &Matrices| packer.linears(m);
    Ok(match op {
        Op::Linear { matrix, .. } => OpWeights::One(packer.linear(matrix)?),
        Op::Head { matrix, .. } => OpWeights::One(Linear { makes_logits: true, ..packer.linear(matrix)? }),
        Op::GroupLinear { matrices, .. } => OpWeights::Many(many(matrices)?),
        Op::Mixture { experts, .. } => OpWeights::Experts {
            gate: many(&experts.gate)?,
            up: if experts.up == experts.gate { Vec::new() } else { many(&experts.up)? },
            down: many(&experts.down)?,
        },
        Op::Embed { .. }
        | Op::Lookup { .. }
        | Op::Hidden { .. }
        | Op::Norm { .. }
        | Op::Elementwise { .. }
        | Op::Pool { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Rotary { .. }
        | Op::SelectKeys { .. }
        | Op::HyperConnection { .. }
        | Op::MixStreams { .. }
        | Op::GroupDot { .. }
        | Op::NgramEmbed { .. }
        | Op::CompressedAttend { .. }
        | Op::UpdateAndAttend { .. }
        | Op::ShortConv { .. }
        | Op::GatedDelta { .. }
        | Op::SelectiveScan { .. }
        | Op::Gate { .. }
        | Op::Scale { .. }
        | Op::Add { .. }
        | Op::Route { .. }
        | Op::Collect { .. }
        | Op::Gather { .. } => OpWeights::None,
    })
}

/// The weights of recurrent ops, in ascending order of their `StateId`.
fn recurrent_weights(program: &Program, packer: &Packer<'_>) -> Result<Vec<RecurrentWeights>, Error> {
    let mut ops: Vec<&Op> = program.ops.iter().filter(|op| op.state().is_some()).collect();
    ops.sort_by_key(|op| op.state());
    let numbers = |id: WeightId| packer.numbers(id);
    let weights = |op: &Op| {
        Ok(match op {
            Op::ShortConv { kernel, .. } if !(1..=MAX_KERNEL).contains(kernel) => {
                let why =
                    format!("a short convolution over `{kernel}` tokens; 1 to {MAX_KERNEL} are supported");
                return Err(Error::at("program", why));
            }
            Op::ShortConv { weight, bias, kernel, .. } => {
                let bias = bias.map(numbers).transpose()?;
                RecurrentWeights::Conv(ConvWeights::new(&numbers(*weight)?, *kernel, bias))
            }
            Op::GatedDelta { form, .. } => {
                let (decay, dt_bias) = (numbers(form.decay)?, numbers(form.dt_bias)?);
                RecurrentWeights::Head(HeadWeights::new(&decay, form.decay_rate, dt_bias, Vec::new()))
            }
            Op::SelectiveScan { form, .. } => {
                let (decay, dt_bias) = (numbers(form.decay)?, numbers(form.dt_bias)?);
                let skip = numbers(form.skip)?;
                RecurrentWeights::Head(HeadWeights::new(&decay, form.decay_rate, dt_bias, skip))
            }
            Op::NgramEmbed { .. } => RecurrentWeights::NgramTables,
            _ => return Err(Error::at("program", "an op has a state, but is not recurrent")),
        })
    };
    ops.into_iter().map(weights).collect()
}

/// The tables from which an op reads single rows.
fn tables_of(op: &Op) -> &[WeightId] {
    match op {
        Op::Embed { table, .. } | Op::Lookup { table, .. } => std::slice::from_ref(table),
        Op::NgramEmbed { form, .. } => &form.tables,
        _ => &[],
    }
}

/// The weights of an op, without matrices and without those of a recurrence.
fn vectors_of(op: &Op) -> impl Iterator<Item = WeightId> {
    let vectors = match op {
        Op::Norm { weight, bias, .. } => [*weight, *bias, None],
        Op::Scale { by, .. } => [*by, None, None],
        Op::HyperConnection { form, .. } => [Some(form.scale), Some(form.base), None],
        Op::SelectKeys { pool, .. } => {
            let [first, second] = pool.map_or([None; 2], |pool| pool.combine.weights());
            [first, second, None]
        }
        Op::CompressedAttend { pool, sinks, .. } => {
            let [first, second] = pool.combine.weights();
            [first, second, Some(sinks.weight)]
        }
        Op::UpdateAndAttend { sinks, .. } => [sinks.map(|sinks| sinks.weight), None, None],
        Op::Route { routing, .. } => [routing.correction, routing.expert_scale, routing.token_table],
        Op::Embed { .. }
        | Op::Lookup { .. }
        | Op::Elementwise { .. }
        | Op::Pool { .. }
        | Op::Hidden { .. }
        | Op::Linear { .. }
        | Op::GroupLinear { .. }
        | Op::Slice { .. }
        | Op::Concat { .. }
        | Op::Rotary { .. }
        | Op::MixStreams { .. }
        | Op::GroupDot { .. }
        | Op::NgramEmbed { .. }
        | Op::ShortConv { .. }
        | Op::GatedDelta { .. }
        | Op::SelectiveScan { .. }
        | Op::Gate { .. }
        | Op::Add { .. }
        | Op::Mixture { .. }
        | Op::Collect { .. }
        | Op::Gather { .. }
        | Op::Head { .. } => [None; 3],
    };
    vectors.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::default_kv;
    use crate::isa::features::Isa;
    use crate::memory::kv_pool::kv_type::KvType;
    use crate::weights::linear::Form;

    #[test]
    fn default_kv_type_follows_weight_forms_and_bf16_dot_products() {
        let widened = Isa::detect().without_bf16_dot();
        let dot = Isa { bf16_dot: true, ..widened };
        let default = |isa, forms: &[Form]| default_kv(isa, forms.iter().copied());
        assert_eq!(default(widened, &[Form::Bf16, Form::F32]), KvType::F16);
        assert_eq!(default(widened, &[Form::Quantized, Form::Bf16]), KvType::Bf16);
        assert_eq!(default(widened, &[Form::Quantized, Form::F16]), KvType::F16);
        assert_eq!(default(dot, &[Form::Quantized, Form::Bf16]), KvType::F16);
        assert_eq!(default(dot, &[Form::Quantized]), KvType::Bf16);
    }
}
