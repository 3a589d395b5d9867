//! `LoadedModel`: a model whose weights are prepared for a backend.

use crate::backend::{AnyExecutor, BackendKind};
use crate::draft_model::{DraftWeights, LoadedDraft, OpenedDraft};
use crate::error::Error;
use crate::opened::OpenedModel;
use crate::speculation::Speculation;
use kvasir_cpu::{
    CpuExecutor, CpuModel, KvType, LoadOptions, Precision, RandomWeights, ThreadPool, WeightSource,
};
use kvasir_exec::{Executor, ExpertExchange, Ran, RankControl, RankExecutor, Ranks};
use kvasir_kv::{Slots, StateConfig, Token};
use kvasir_plain::{Limits, PlainExecutor, PlainModel};
use kvasir_program::{LayerFacts, Program};
use kvasir_sim::{Paced, Preset, TokenList};
use std::sync::{Arc, Mutex, PoisonError};
use xxhash_rust::xxh64::xxh64;

impl OpenedModel {
    /// Prepares the weights for a backend.
    pub fn load(
        mut self,
        backend: BackendKind,
        precision: Precision,
        threads: Option<usize>,
    ) -> Result<LoadedModel, Error> {
        self.reject_recurrent_draft()?;
        let draft = self.draft.take();
        let (weights, draft) = match backend {
            BackendKind::Auto | BackendKind::Cpu => {
                let pool = Arc::new(threads.map_or_else(ThreadPool::of_machine, ThreadPool::new));
                let source: Arc<dyn WeightSource + Send + Sync> = match self.random {
                    Some(dtype) => Arc::new(RandomWeights::new(dtype)),
                    None => Arc::new(self.checkpoint.clone()),
                };
                let (target, packed_file) = (&self.model.target, self.packed_file.clone());
                let options = LoadOptions { watch: &self.watch, packed_file: packed_file.clone() };
                let model = CpuModel::load_with(target, source, precision, Arc::clone(&pool), options)?;
                let tap = draft.as_ref().and_then(OpenedDraft::tap);
                let model = match tap.or(self.draft_tap) {
                    Some(tap) => model.keeping(&[tap])?,
                    None => model,
                };
                let draft = draft.map(|draft| draft.load_cpu(precision, &pool, packed_file)).transpose()?;
                (Weights::Cpu(Arc::new(model)), draft)
            }
            // The reference backend has one thread and one (exact) precision.
            BackendKind::Plain if self.random.is_some() => {
                return Err(Error::invalid("backend", "random weights run on the cpu backend only"));
            }
            BackendKind::Plain => {
                let weights = Weights::Plain(PlainModel::load(&self.model, &self.checkpoint)?);
                (weights, draft.map(OpenedDraft::load_plain).transpose()?)
            }
            // The simulated device reads no weights, only words.
            BackendKind::Sim(preset) => (Weights::Sim(preset, self.words()?), None),
        };
        let mut loaded = LoadedModel {
            opened: self,
            weights,
            draft,
            kv: KvType::F32,
            batch_sizes: Vec::new(),
            rank: Mutex::new(None),
            replica: Mutex::new(None),
        };
        if let Some(speculation) = loaded.speculation() {
            speculation.check_backend(loaded.backend())?;
        }
        loaded.kv = loaded.natural_kv();
        Ok(loaded)
    }

    /// Fails for a draft model with recurrent layers: no backend runs such draft models.
    fn reject_recurrent_draft(&self) -> Result<(), Error> {
        match self.draft.as_ref().map(OpenedDraft::program).filter(|draft| draft.is_recurrent()) {
            Some(draft) => {
                let architecture = &draft.architecture;
                let reason = format!("{architecture} has recurrent layers, which a draft model cannot have");
                Err(Error::invalid("speculation", reason))
            }
            None => Ok(()),
        }
    }
}

/// A model ready to run; any number of executors share its weights.
pub struct LoadedModel {
    /// Its checkpoint and programs.
    pub opened: OpenedModel,
    weights: Weights,
    draft: Option<LoadedDraft>,
    /// Default K/V data type.
    kv: KvType,
    /// Batch sizes that executors declare, in rising order.
    batch_sizes: Vec<u32>,
    /// The rank of its only executor, until that is built. `None` for an unsharded model.
    rank: Mutex<Option<Rank>>,
    /// The replica of its only executor, until that is built. `None` for a model with all experts.
    replica: Mutex<Option<ExpertReplica>>,
}

/// The pools of an executor, and the size of its steps.
#[derive(Clone, Copy)]
pub(crate) struct ExecutorSizes {
    /// Slots of the KV pool.
    pub(crate) slots: u32,
    /// Maximum tokens per step.
    pub(crate) tokens: u32,
    /// Maximum sequences per step.
    pub(crate) rows: u32,
    /// K/V data type; `None` takes the model's default.
    pub(crate) kv: Option<KvType>,
    /// The longest write, if sliding-window layers use ring buffers.
    pub(crate) ring: Option<u32>,
    /// Slots per layer group, if sliding-window layers have pools of their own.
    pub(crate) group_slots: Option<Slots>,
    /// The pool of recurrent states.
    pub(crate) states: Option<StateConfig>,
}

/// One replica of an expert-parallel group.
pub struct ExpertReplica {
    /// Exchanges rows with the other replicas.
    pub exchange: Arc<dyn ExpertExchange>,
    /// Runs the steps of the replicas in lockstep.
    pub control: Box<dyn RankControl>,
}

/// One rank of a tensor-parallel group.
pub struct Rank {
    /// The collectives between the ranks.
    pub ranks: Arc<dyn Ranks>,
    /// Keeps the other ranks at the same step. `None` for a following rank.
    pub control: Option<Box<dyn RankControl>>,
}

/// Memory use of packed weights, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedWeights {
    /// Private and shared panels.
    pub bytes: u64,
    /// Panels in a [`PackedFile`](kvasir_cpu::PackedFile), which processes share.
    pub shared: u64,
}

enum Weights {
    Cpu(Arc<CpuModel>),
    Plain(PlainModel),
    Sim(Box<Preset>, TokenList),
}

impl LoadedModel {
    /// The target's program.
    pub fn program(&self) -> &Program {
        &self.opened.model.target
    }

    /// Whether executors return hidden states (all but the simulated device).
    pub fn tells_hidden(&self) -> bool {
        !matches!(self.weights, Weights::Sim(..))
    }

    /// Threads and arithmetic precision of the CPU backend; `None` for the others.
    pub fn arithmetic(&self) -> Option<(usize, Precision)> {
        match &self.weights {
            Weights::Cpu(model) => Some((model.threads().len(), model.precision())),
            Weights::Plain(_) | Weights::Sim(..) => None,
        }
    }

    /// A hash of the version, the [fingerprint of the weights](OpenedModel::weights_fingerprint) and
    /// the arithmetic. Loads with the same one are assumed to compute the same K and V of given
    /// tokens; weights that differ only after the beginnings of the tensors are not detected.
    /// Stable: files may store it.
    pub fn kv_fingerprint(&self, weights_fingerprint: u64) -> u64 {
        let precision = self.arithmetic().map(|(_, precision)| precision);
        let version = env!("CARGO_PKG_VERSION");
        xxh64(format!("{version} {weights_fingerprint} {precision:?}").as_bytes(), 0)
    }

    /// Default K/V data type of engines and sessions.
    pub fn kv(&self) -> KvType {
        self.kv
    }

    /// Changes the default K/V data type, if the backend supports it.
    pub fn with_kv(self, kv: KvType) -> Result<Self, Error> {
        match self.weights {
            Weights::Plain(_) if kv != KvType::F32 => Err(Error::invalid(
                "kv_dtype",
                format!("the plain backend stores K and V as f32, not `{kv}`"),
            )),
            _ => Ok(Self { kv, ..self }),
        }
    }

    /// The model's context length, in tokens.
    pub fn max_model_len(&self) -> u32 {
        u32::try_from(self.program().max_positions).unwrap_or(u32::MAX)
    }

    /// Batch sizes that decode steps are padded to, if any are declared.
    pub fn batch_sizes(&self) -> &[u32] {
        &self.batch_sizes
    }

    /// Declares the batch sizes that decode steps are padded to, if the backend has such sizes.
    pub fn with_batch_sizes(self, mut sizes: Vec<u32>) -> Result<Self, Error> {
        if !matches!(self.weights, Weights::Plain(_)) {
            let why = "it runs a batch of any size as it is; plain takes sizes";
            return Err(Error::invalid("batch_sizes", format!("on the {} backend: {why}", self.backend())));
        }
        if sizes.contains(&0) {
            return Err(Error::invalid("batch_sizes", "a batch size must be at least 1"));
        }
        sizes.sort_unstable();
        sizes.dedup();
        Ok(Self { batch_sizes: sizes, ..self })
    }

    /// Makes its executor one rank of a tensor-parallel group. The model must be
    /// [sharded](OpenedModel::for_rank) for the rank. Only one executor can then be built.
    pub fn among(mut self, rank: Rank) -> Self {
        self.rank = Mutex::new(Some(rank));
        self
    }

    /// Makes its executor one replica of an expert-parallel group. The model must have only the
    /// experts of the replica ([`OpenedModel::for_replica`]). Only one executor can then be built.
    pub fn with_expert_parallelism(mut self, replica: ExpertReplica) -> Self {
        self.replica = Mutex::new(Some(replica));
        self
    }

    fn natural_kv(&self) -> KvType {
        match &self.weights {
            Weights::Cpu(model) => model.natural_kv(),
            Weights::Plain(_) | Weights::Sim(..) => KvType::F32,
        }
    }

    /// Layers of the draft model, whose KV pool mirrors the target's; empty without a draft model.
    pub(crate) fn draft_layers(&self) -> &[LayerFacts] {
        self.draft.as_ref().map_or(&[], |draft| &draft.layers)
    }

    /// Bytes of K/V per slot of the target and the draft model together.
    pub fn slot_bytes(&self) -> usize {
        self.kv.slot_bytes(&self.program().layers) + self.kv.slot_bytes(self.draft_layers())
    }

    /// An executor with a KV pool of its own. `kv` is its K/V data type; `None` takes the default.
    pub fn executor(
        &self,
        slots: u32,
        tokens: u32,
        rows: u32,
        kv: Option<KvType>,
    ) -> Result<AnyExecutor, Error> {
        let (ring, group_slots, states) = (None, None, None);
        self.executor_with(ExecutorSizes { slots, tokens, rows, kv, ring, group_slots, states })
    }

    /// Builds an executor with these pools.
    pub(crate) fn executor_with(&self, sizes: ExecutorSizes) -> Result<AnyExecutor, Error> {
        let ExecutorSizes { slots, tokens, rows, kv, ring, group_slots, states } = sizes;
        Ok(match &self.weights {
            Weights::Cpu(model) => {
                let kv = kv.unwrap_or(self.kv);
                let limits = kvasir_cpu::Limits { slots, tokens, rows, kv, ring };
                let no_memory =
                    |e| Error::invalid("kv_capacity", format!("no memory for `{slots}` slots: {e}"));
                let executor = CpuExecutor::new(Arc::clone(model), limits).map_err(no_memory)?;
                let executor = executor.with_window_groups(group_slots).map_err(no_memory)?;
                let executor = executor.with_states(states).map_err(|e| {
                    let slots = states.map_or(0, |states| states.slots());
                    Error::invalid("state_memory", format!("no memory for {slots} states: {e}"))
                })?;
                let drafting = match &self.draft {
                    Some(LoadedDraft { weights: DraftWeights::Cpu(model), kind, shape, taps, .. }) => {
                        let (model, kind) = (Arc::clone(model), kind.clone());
                        let drafting = kvasir_cpu::Drafting::new(model, kind, *shape, limits, *taps);
                        Some(drafting.map_err(no_memory)?)
                    }
                    _ => None,
                };
                let executor = match drafting {
                    Some(drafting) => executor.drafting(drafting),
                    None => executor,
                };
                let alone = |executor| AnyExecutor::Cpu(Box::new(executor));
                let with_experts = CpuExecutor::with_expert_parallelism;
                self.join_group(executor, with_experts, CpuExecutor::among, alone)?
            }
            Weights::Plain(_) if kv.is_some_and(|kv| kv != KvType::F32) => {
                return Err(Error::invalid("kv_dtype", "the plain backend stores K and V as f32 only"));
            }
            Weights::Plain(model) => {
                let limits = Limits { slots, tokens, rows, states };
                let executor = PlainExecutor::new(model, limits).with_window_groups(group_slots);
                let executor = executor.with_batch_sizes(self.batch_sizes.clone());
                let drafting = match &self.draft {
                    Some(LoadedDraft {
                        weights: DraftWeights::Plain(model),
                        source,
                        kind,
                        shape,
                        taps,
                        ..
                    }) => kvasir_plain::Drafting::new(model, *source, kind.clone(), *shape, limits, *taps),
                    _ => None,
                };
                let executor = match drafting {
                    Some(drafting) => executor.drafting(drafting),
                    None => executor,
                };
                let with_experts = PlainExecutor::with_expert_parallelism;
                let alone = |executor| AnyExecutor::Plain(Box::new(executor));
                self.join_group(executor, with_experts, PlainExecutor::among, alone)?
            }
            Weights::Sim(preset, words) => AnyExecutor::Sim(Box::new(Paced::new(**preset, words.clone()))),
        })
    }

    /// Makes a new executor a member of the model's group: one replica of an expert-parallel group
    /// (`with_experts`) or one rank of a tensor-parallel group (`among`). `alone` converts an
    /// executor that no control keeps in lockstep.
    fn join_group<E: Executor<Pending = Ran> + Send + 'static>(
        &self,
        executor: E,
        with_experts: impl FnOnce(E, Arc<dyn ExpertExchange>) -> Result<E, String>,
        among: impl FnOnce(E, Arc<dyn Ranks>) -> Result<E, String>,
        alone: impl FnOnce(E) -> AnyExecutor,
    ) -> Result<AnyExecutor, Error> {
        let (member, control) = if let Some(ExpertReplica { exchange, control }) = self.take_replica()? {
            (with_experts(executor, exchange), Some(control))
        } else if let Some(Rank { ranks, control }) = self.take_rank()? {
            (among(executor, ranks), control)
        } else {
            (Ok(executor), None)
        };
        let member = member.map_err(Error::Failed)?;
        Ok(match control {
            Some(control) => AnyExecutor::Ranked(Box::new(RankExecutor::new(member, control))),
            None => alone(member),
        })
    }

    /// Takes the rank for a new executor; `None` for an unsharded model. Fails at the second call.
    fn take_rank(&self) -> Result<Option<Rank>, Error> {
        if self.program().ranks().is_none() {
            return Ok(None);
        }
        let rank = self.rank.lock().unwrap_or_else(PoisonError::into_inner).take();
        rank.map(Some).ok_or_else(|| {
            Error::Failed(
                "the model is sharded for one rank: call `among` first, and build one executor only".into(),
            )
        })
    }

    /// Takes the replica for a new executor; `None` for a model with all of its experts. Fails at
    /// the second call.
    fn take_replica(&self) -> Result<Option<ExpertReplica>, Error> {
        if self.program().expert_shard.is_none() {
            return Ok(None);
        }
        let replica = self.replica.lock().unwrap_or_else(PoisonError::into_inner).take();
        replica.map(Some).ok_or_else(|| {
            Error::Failed(
                "the model has the experts of one replica: call `with_expert_parallelism` first, and build \
                 one executor only"
                    .into(),
            )
        })
    }

    /// The model of the CPU backend; `None` for the others.
    pub fn cpu_model(&self) -> Option<Arc<CpuModel>> {
        match &self.weights {
            Weights::Cpu(model) => Some(Arc::clone(model)),
            Weights::Plain(_) | Weights::Sim(..) => None,
        }
    }

    /// Target and draft model on the CPU backend; empty for other backends.
    fn cpu_models(&self) -> impl Iterator<Item = &CpuModel> {
        let target = match &self.weights {
            Weights::Cpu(model) => Some(&**model),
            Weights::Plain(_) | Weights::Sim(..) => None,
        };
        let draft = match &self.draft {
            Some(LoadedDraft { weights: DraftWeights::Cpu(model), .. }) => Some(&**model),
            _ => None,
        };
        target.into_iter().chain(draft)
    }

    /// Packed weights of the target and the draft model; zero on other backends than the CPU.
    pub fn packed_weights(&self) -> PackedWeights {
        PackedWeights {
            bytes: self.cpu_models().map(|model| model.packed_bytes() as u64).sum(),
            shared: self.cpu_models().map(|model| model.shared_bytes() as u64).sum(),
        }
    }

    /// Memory that the weights will take and that the system still counts as available: matrices
    /// that are packed later, and tables in mapped files, whose pages it could reclaim.
    pub fn pending_weight_bytes(&self) -> u64 {
        self.cpu_models().map(|model| model.unpacked_bytes() as u64 + model.mapped_bytes()).sum()
    }

    /// Speculative decoding of engines over this model.
    pub fn speculation(&self) -> Option<&Speculation> {
        self.opened.speculation()
    }

    /// The simulated device, if that is the backend.
    pub fn simulated(&self) -> Option<&Preset> {
        match &self.weights {
            Weights::Sim(preset, _) => Some(preset),
            _ => None,
        }
    }

    /// Name of the backend.
    pub fn backend(&self) -> &'static str {
        match self.weights {
            Weights::Cpu(_) => "cpu",
            Weights::Plain(_) => "plain",
            Weights::Sim(..) => "sim",
        }
    }

    /// Rejects empty, out-of-vocabulary or overlong prompts.
    pub(crate) fn check_prompt(&self, prompt: &[Token]) -> Result<(), Error> {
        let (vocab, longest) = (self.program().vocab, self.program().max_positions);
        if prompt.is_empty() {
            return Err(Error::invalid("prompt", "is empty"));
        }
        if let Some(id) = prompt.iter().find(|id| **id as usize >= vocab) {
            let reason = format!("has id `{id}`, the vocabulary ends at {}", vocab - 1);
            return Err(Error::invalid("prompt", reason));
        }
        if prompt.len() > longest {
            let reason = format!("has `{}` tokens, the model takes {longest}", prompt.len());
            return Err(Error::invalid("prompt", reason));
        }
        Ok(())
    }
}
