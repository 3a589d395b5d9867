//! [`ReadyEngine`]: loads a model and builds its engine, in the server's process or in a worker.

use crate::io::failure::Failure;
use crate::options::model::ModelArgs;
use crate::options::resolve::setup_of;
use kvasir::{
    AnyExecutor, DEFAULT_SLOTS, EngineConfig, Error, ExpertReplica, LoadedModel, MemoryDivision, OpenedModel,
    PackedWeights, Precision, Rank,
};
use kvasir_engine::{Engine, Route};
use kvasir_exec::{RankControl, Ranks};
use kvasir_fleet::{ExpertGroupMember, PoolSizes, RankGroup, StepBroadcast, StepHashes};
use kvasir_kv::CacheShape;
use kvasir_serve::http::{PublishedStreams, RankConfig};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{borrow::Cow, sync::Arc};

/// Rank 0 of an engine: the group of ranks that it leads, and its control mode.
pub(crate) struct Leader<'a> {
    pub(crate) group: &'a mut RankGroup,
    /// Whether each rank runs its own scheduler (`--rank-control requests`).
    pub(crate) by_requests: bool,
}

/// The other processes that compute the steps of an engine.
pub(crate) enum Peers<'a> {
    /// The engine computes alone.
    None,
    /// The other ranks of its tensor-parallel group.
    Ranks(Leader<'a>),
    /// The other replicas of its expert-parallel group. The opened model must have only the experts
    /// of this replica.
    Experts(Arc<ExpertGroupMember>),
}

/// An engine that is ready to serve, with its loaded model, facts and setup.
pub(crate) struct ReadyEngine {
    pub(crate) engine: Engine<AnyExecutor>,
    pub(crate) loaded: LoadedModel,
    pub(crate) facts: EngineFacts,
    /// Its configuration, in the trace page's format.
    pub(crate) setup: Map<String, Value>,
}

/// Facts about an engine; a worker sends them to the server process as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EngineFacts {
    pub(crate) backend: Cow<'static, str>,
    /// KV cache slots of the pool.
    pub(crate) slots: u32,
    /// Division of the memory among K/V and recurrent states.
    pub(crate) memory: MemoryDivision,
    /// Context length: prompt and answer together.
    pub(crate) max_len: u32,
    /// Maximum running sequences.
    pub(crate) max_num_seqs: u32,
    /// Maximum tokens per step.
    pub(crate) max_num_batched_tokens: u32,
    /// Name of the K/V data type.
    pub(crate) kv: String,
    /// Memory of packed weights, in bytes.
    pub(crate) packed_bytes: u64,
    /// The part of `packed_bytes` that all engines share.
    pub(crate) shared_bytes: u64,
    /// Text for the log: number of threads and activation precision, or the name of the backend.
    pub(crate) arithmetic: String,
    /// Configuration of a worker's engine, in the format of the trace page.
    #[serde(default)]
    pub(crate) setup: Map<String, Value>,
}

impl EngineFacts {
    /// Limits, route and event streams of the engines, for routes that routers read.
    pub(super) fn rank_config(&self, route: Option<Route>, streams: PublishedStreams) -> RankConfig {
        let Self { max_num_seqs, max_num_batched_tokens, .. } = *self;
        RankConfig { max_num_seqs, max_num_batched_tokens, route, streams }
    }
}

impl ReadyEngine {
    /// Loads an opened model and builds its engine, with a warm-up if `warms_up`. If it leads
    /// ranks, it loads only the shard of rank 0, and starts the executors of the others.
    pub(crate) fn new(
        model: &ModelArgs,
        opened: OpenedModel,
        config: &EngineConfig,
        warms_up: bool,
        peers: Peers<'_>,
    ) -> Result<Self, Failure> {
        // Rejects an invalid memory share before the weights are loaded.
        config.check_memory_share()?;
        let loaded = match &peers {
            Peers::Ranks(Leader { group, by_requests }) => {
                let ranks = group.member();
                let control: Box<dyn RankControl> = if *by_requests {
                    Box::new(StepHashes::new(group.member()))
                } else {
                    Box::new(StepBroadcast::new(group.member()))
                };
                let loaded = model.load_opened(shard(opened, 0, ranks.count())?)?;
                loaded.among(Rank { ranks, control: Some(control) })
            }
            Peers::Experts(member) => {
                let (exchange, control) = (Arc::clone(member) as Arc<_>, member.control());
                model.load_opened(opened)?.with_expert_parallelism(ExpertReplica { exchange, control })
            }
            Peers::None => model.load_opened(opened)?,
        };
        let resolved = loaded.resolve(config, DEFAULT_SLOTS)?;
        let core = resolved.core()?;
        let setup = setup_of(&loaded, &resolved, &core);
        if let Peers::Ranks(Leader { group, .. }) = peers {
            let CacheShape { capacity: slots, windows, states, .. } = core.cache().shape().clone();
            group.start_executors(PoolSizes { slots, windows, states }).map_err(Failure::failed)?;
        }
        let mut engine = loaded.engine(core, resolved.overlap)?;
        if warms_up {
            kvasir::warm_up(&mut engine)?;
        }
        let slots = engine.core().cache().shape().capacity;
        let PackedWeights { bytes: packed_bytes, shared: shared_bytes } = loaded.packed_weights();
        let facts = EngineFacts {
            packed_bytes,
            shared_bytes,
            backend: loaded.backend().into(),
            slots,
            memory: resolved.division,
            max_len: engine.core().limits().max_model_len.min(slots),
            max_num_seqs: engine.core().limits().max_num_seqs,
            max_num_batched_tokens: engine.core().limits().max_num_batched_tokens,
            kv: loaded.kv().to_string(),
            arithmetic: match loaded.arithmetic() {
                Some((1, precision)) => format!("1 thread, {}", precision_name(precision)),
                Some((threads, precision)) => format!("{threads} threads, {}", precision_name(precision)),
                None => format!("{} backend", loaded.backend()),
            },
            setup: Map::new(),
        };
        Ok(Self { engine, loaded, facts, setup })
    }
}

fn precision_name(precision: Precision) -> &'static str {
    match precision {
        Precision::Auto => "16-bit integer, bf16 or f32 activations, by weight type",
        Precision::Bf16x2 => "activations of two bf16 terms",
        Precision::F32 => "f32 activations",
    }
}

/// Reduces a model to the shard of `rank`, one of `ranks`.
pub(crate) fn shard(opened: OpenedModel, rank: usize, ranks: usize) -> Result<OpenedModel, Failure> {
    opened.for_rank(rank, ranks).map_err(|error| ranks_error(ranks, error))
}

/// The error of a model that cannot be sharded for `ranks` ranks; names `--tp`.
pub(crate) fn ranks_error(ranks: usize, error: Error) -> Failure {
    match error {
        Error::InvalidArgument { reason, .. } => Failure::usage(format!("--tp {ranks}: {reason}")),
        other => other.into(),
    }
}
