//! Startup shared by `serve`, its workers and `chat`: loads the model, builds the engine or the
//! fleet, and the HTTP app.

use crate::doctor::forecast::Forecast;
use crate::io::failure::Failure;
use crate::io::model_progress::loading;
use crate::options::Options;
use crate::options::model::ModelArgs;
use crate::options::reports::{log, log_warning};
use crate::options::resolve::setup_of;
use crate::options::sampling::SamplingArgs;
use crate::options::sampling_defaults::SamplingDefaults;
use kvasir::{
    AnyExecutor, DEFAULT_SLOTS, EngineConfig, Error, ExpertReplica, LoadedModel, ModelCard, OpenedModel,
    PackedFile, PackedWeights, Precision, PrefillProgress, Rank, Speculation,
};
use kvasir_chat::ChatModel;
use kvasir_engine::{Engine, Replicas, Role, Route};
use kvasir_exec::{RankControl, Ranks};
use kvasir_fleet::{
    Fleet, FleetConfig, Identity, KvPublisher, PublishedServing, RankGroup, ReplicaMember, StepBroadcast,
    StepHashes, WorkerCommand,
};
use kvasir_serve::{
    StepFeed,
    host::{AdmissionLimits, FleetParts, Host, ReplicaObserver},
    http::{AccessControl, App, ClientRules, Live, PublishedStreams, RankConfig},
    metrics::Names,
    model::{self, Card, Model},
    report::{Level, Reports},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    borrow::Cow,
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

/// Receives the forecast of memory and speed.
pub(crate) type OnForecast = Box<dyn Fn(&Forecast)>;

/// Service configuration.
pub(crate) struct Service {
    /// Access rules.
    pub(crate) access: AccessControl,
    /// Admission limits, from pool slots and maximum sequence length.
    pub(crate) allowed: Box<dyn FnOnce(u32, u32) -> AdmissionLimits>,
    /// Log and trace sinks.
    pub(crate) reports: Arc<Reports>,
    /// Metric naming.
    pub(crate) names: Names,
    /// Step time after which the engine counts as stalled.
    pub(crate) timeout: Duration,
    /// Compatibility options for clients.
    pub(crate) rules: ClientRules,
    /// Receives what is predicted before the model is loaded.
    pub(crate) on_forecast: Option<OnForecast>,
    /// Default sampling parameters, which replace the model's.
    pub(crate) defaults: Option<SamplingDefaults>,
    /// Whether dummy steps run before the app exists, so that no request is the first.
    pub(crate) warms_up: bool,
    /// Whether loading is shown on a terminal, and the progress of prompts is followed.
    pub(crate) shows_progress: bool,
    /// Whether a model without a chat template is refused.
    pub(crate) needs_template: bool,
    /// Publishes KV events.
    pub(crate) kv_events: Option<KvPublisher>,
    /// Addresses of the streams of KV events and loads.
    pub(crate) streams: PublishedStreams,
}

impl Service {
    /// Configuration for a single local user: no limits, no reports.
    pub(crate) fn for_one_user() -> Self {
        Self {
            access: AccessControl::default(),
            allowed: Box::new(|_, _| AdmissionLimits::default()),
            reports: Arc::default(),
            names: Names::Own,
            timeout: Duration::MAX,
            rules: ClientRules::default(),
            on_forecast: None,
            defaults: None,
            warms_up: false,
            shows_progress: true,
            needs_template: true,
            kv_events: None,
            streams: PublishedStreams::default(),
        }
    }
}

/// Rank 0 of an engine: the group of ranks that it leads, and its control mode.
pub(crate) struct Leader<'a> {
    pub(crate) group: &'a mut RankGroup,
    /// Whether each rank runs its own scheduler (`--rank-control requests`).
    pub(crate) by_requests: bool,
}

/// The other processes that compute the steps of an engine.
pub(crate) enum Peers<'a> {
    /// None: the engine computes alone.
    None,
    /// The other ranks of its tensor-parallel group.
    Ranks(Leader<'a>),
    /// The replicas with which it shares the experts. The opened model must be divided already.
    Experts(Arc<ReplicaMember>),
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
    /// Whether memory holds more slots than the default of `--kv-capacity` takes.
    pub(crate) is_capped: bool,
    /// Context length: prompt and answer together.
    pub(crate) max_len: u32,
    /// Maximum running sequences.
    pub(crate) max_num_seqs: u32,
    /// Maximum tokens per step.
    pub(crate) max_num_batched_tokens: u32,
    /// Name of the K/V data type, and bytes of a slot, with those of a draft model.
    pub(crate) kv: (String, usize),
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
    fn rank_config(&self, route: Option<Route>, streams: PublishedStreams) -> RankConfig {
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
        let share = config.memory_share()?;
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
                model.load_opened(opened)?.sharing_experts(ExpertReplica { exchange, control })
            }
            Peers::None => model.load_opened(opened)?,
        };
        let in_memory = loaded.slots_in_memory(share).filter(|_| config.kv_capacity.is_none());
        let resolved = loaded.resolve(config, DEFAULT_SLOTS)?;
        let core = resolved.core()?;
        let setup = setup_of(&loaded, &resolved, &core);
        if let Peers::Ranks(Leader { group, .. }) = peers {
            group.start_executors(core.cache().shape().capacity).map_err(Failure::failed)?;
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
            is_capped: in_memory.is_some_and(|in_memory| in_memory > slots),
            max_len: engine.core().limits().max_model_len.min(slots),
            max_num_seqs: engine.core().limits().max_num_seqs,
            max_num_batched_tokens: engine.core().limits().max_num_batched_tokens,
            kv: (loaded.kv().to_string(), loaded.slot_bytes()),
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

/// A running engine, or a fleet of them, with its app.
pub(crate) struct Started {
    pub(crate) app: Arc<App>,
    pub(crate) name: String,
    pub(crate) facts: EngineFacts,
    /// Progress of the newest prompt, if it is followed.
    pub(crate) prefill: Option<PrefillProgress>,
    /// Warning about the configuration, for the log.
    pub(crate) warning: Option<&'static str>,
}

impl Started {
    /// Loads the model and starts its engine. `name` is its public name.
    pub(crate) fn new(
        model: &ModelArgs,
        name: Option<&str>,
        sampling_args: &SamplingArgs,
        options: &Options,
        service: Service,
    ) -> Result<Self, Failure> {
        let config = options.config()?;
        let (opened, name) = open_model(model, name, &config, &service)?;
        if service.needs_template {
            sampling_args.check_template(&opened, &name)?;
        }
        // Dropped at the end: an engine takes time, too.
        let (opened, _line) = if service.shows_progress {
            let (opened, line) = loading(opened, name.clone());
            (opened, Some(line))
        } else {
            (opened, None)
        };
        let ready = ReadyEngine::new(model, opened, &config, service.warms_up, Peers::None)?;
        let ReadyEngine { engine, loaded, facts, setup } = ready;
        let (feed, observer) = StepFeed::new();
        let mut engine = engine.observe(observer);
        if service.kv_events.is_some() {
            record_kv_events(&mut engine, "--kv-events")?;
        }
        let prefill = service.shows_progress.then(|| {
            let (progress, observer) = PrefillProgress::of(&loaded);
            engine.add_observer(observer);
            progress
        });
        let hidden = loaded.tells_hidden();
        let served = build_model(
            name.clone(),
            &loaded.opened,
            hidden,
            sampling_args,
            service.defaults.as_ref(),
            facts.max_len,
        )?;
        drop(loaded);
        let Service { access, allowed, reports, names, timeout, rules, kv_events, streams, .. } = service;
        let wrap = |engine| match kv_events {
            Some(publisher) => Box::new(PublishedServing::new(engine, publisher)),
            None => engine,
        };
        let host = Host::start_wrapped(engine, wrap, allowed(facts.slots, facts.max_len), reports, timeout);
        let host = host.map_err(Failure::failed)?;
        let ranks = facts.rank_config(None, streams);
        let live = Live { feed, ranks, setup: Value::Object(setup) };
        let app = App::new(Arc::new(served), host, access, live, names, rules);
        Ok(Self { app, name, facts, prefill, warning: None })
    }

    /// Starts worker processes, each of which loads the model, and the HTTP app in front of them.
    pub(crate) fn fleet(
        model: &ModelArgs,
        name: Option<&str>,
        sampling_args: &SamplingArgs,
        options: &Options,
        fleet: FleetStart,
        service: Service,
    ) -> Result<Self, Failure> {
        let config = options.config()?;
        let (opened, name) = open_model(model, name, &config, &service)?;
        let Service { access, allowed, reports, names, timeout, rules, defaults, kv_events, streams, .. } =
            service;
        check_ranks(&opened, fleet.ranks)?;
        let engines = fleet.roles.len() as u32;
        if fleet.shares_experts {
            check_replicas(&opened, fleet.roles.len())?;
        }
        let observer = ReplicaObserver::new(fleet.roles.len(), timeout);
        let (counted, logged) = (observer.clone(), reports.clone());
        let identity = identity(&opened, model, options);
        let packed_file = model.compute().is_on_cpu().then(|| PackedFile::create(packed_key(&identity)));
        let packed_file = packed_file.and_then(|created| {
            let failed = |error| format!("engines do not share packed weights: {error}");
            created.map_err(|error| log_warning(&reports, &failed(error))).ok()
        });
        let started = Fleet::start(FleetConfig {
            roles: fleet.roles,
            route: fleet.route,
            shares_experts: fleet.shares_experts,
            command: (fleet.command)(packed_file),
            identity,
            step_timeout: timeout,
            kv_events,
            on_counters: Box::new(move |replica, counters| counted.update(replica, counters)),
            on_log: Box::new(move |is_warning, line| {
                let level = if is_warning { Level::Warn } else { Level::Info };
                log(&logged, level, line, Vec::new());
            }),
        });
        let started = started.map_err(Failure::failed)?;
        let kvasir_fleet::Facts { slots, max_len, has_kv_events, cut_obstacle, more, .. } =
            started.facts().clone();
        let warning = (fleet.route == Route::Prefix && !has_kv_events)
            .then_some("the caches record no KV events, so --route prefix routes by session and load");
        let facts: EngineFacts = serde_json::from_str(&more).map_err(Failure::failed)?;
        let facts = EngineFacts { slots, max_len, ..facts };
        let hidden = !model.compute().is_simulated();
        let served = build_model(name.clone(), &opened, hidden, sampling_args, defaults.as_ref(), max_len)?;
        let replicas: Arc<dyn Replicas> = Arc::new(started.handle());
        let live = Live {
            feed: StepFeed::of_replicas(replicas.clone()),
            ranks: facts.rank_config(Some(fleet.route), streams),
            setup: Value::Object(facts.setup.clone()),
        };
        let parts = FleetParts { serving: Box::new(started), replicas, cut_obstacle, metrics: observer };
        let all = slots.saturating_mul(engines);
        let host = Host::start_fleet(parts, allowed(all, max_len), reports).map_err(Failure::failed)?;
        let app = App::new(Arc::new(served), host, access, live, names, rules);
        Ok(Self { app, name, facts, prefill: None, warning })
    }
}

/// Reduces a model to the shard of `rank`, one of `ranks`.
pub(crate) fn shard(opened: OpenedModel, rank: usize, ranks: usize) -> Result<OpenedModel, Failure> {
    opened.for_rank(rank, ranks).map_err(|why| match why {
        Error::InvalidArgument { reason, .. } => Failure::usage(format!("--tp {ranks}: {reason}")),
        other => other.into(),
    })
}

/// Checks that a model can be divided among this number of ranks.
fn check_ranks(opened: &OpenedModel, ranks: usize) -> Result<(), Failure> {
    let part = opened.model.target.for_rank(0, ranks);
    part.map(drop).map_err(|why| Failure::usage(format!("--tp {ranks}: {why}")))
}

/// Checks that the experts of a model can be divided among this number of replicas.
fn check_replicas(opened: &OpenedModel, replicas: usize) -> Result<(), Failure> {
    let part = opened.model.target.for_replica(0, replicas);
    part.map(drop).map_err(|why| Failure::usage(format!("--ep on: {why}")))
}

/// Records the KV events of an engine; an error names the option that needs them.
pub(crate) fn record_kv_events(engine: &mut Engine<AnyExecutor>, option: &str) -> Result<(), Failure> {
    let recorded = engine.core_mut().record_kv_events();
    recorded.map_err(|error| Failure::usage(format!("{option}: {error}")))
}

/// Makes the command of workers from the packed file, which they inherit.
pub(crate) type WorkerCommandFactory = Box<dyn FnOnce(Option<File>) -> WorkerCommand>;

/// Roles of the workers, routing policy, and the command that starts a worker.
pub(crate) struct FleetStart {
    /// One role per worker.
    pub(crate) roles: Vec<Role>,
    /// Ranks of each worker.
    pub(crate) ranks: usize,
    /// Whether the workers share the experts of the model.
    pub(crate) shares_experts: bool,
    pub(crate) route: Route,
    pub(crate) command: WorkerCommandFactory,
}

/// Opens the model and reports its forecast. Returns the model and its public name.
fn open_model(
    model: &ModelArgs,
    name: Option<&str>,
    config: &EngineConfig,
    service: &Service,
) -> Result<(OpenedModel, String), Failure> {
    let share = config.memory_share()?;
    let opened = model.open()?;
    if let Some(on_forecast) = &service.on_forecast
        && let Some(forecast) = model.forecast(&opened, share)
    {
        on_forecast(&forecast);
    }
    Ok((opened, name.map_or_else(|| model.name(), str::to_owned)))
}

/// Identity that the server process compares with a worker's: version, model and options.
pub(crate) fn identity(opened: &OpenedModel, model: &ModelArgs, options: &Options) -> Identity {
    let mut hasher = DefaultHasher::new();
    format!("{model:?} {options:?}").hash(&mut hasher);
    Identity {
        version: env!("CARGO_PKG_VERSION").into(),
        model: opened.checkpoint.fingerprint(),
        options: hasher.finish(),
    }
}

/// Key of the packed file: only workers of the same identity may share it.
fn packed_key(identity: &Identity) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&identity.version, identity.model, identity.options).hash(&mut hasher);
    hasher.finish()
}

/// Shares the packed weights of a model with other processes through the packed file of an
/// inherited descriptor. On failure the model keeps private weights, and a warning names `process`.
pub(crate) fn share_packed(
    opened: OpenedModel,
    descriptor: Option<i32>,
    identity: &Identity,
    process: &str,
) -> OpenedModel {
    match descriptor.map(|descriptor| PackedFile::open(descriptor, packed_key(identity))) {
        Some(Ok(file)) => opened.share_packed_weights(Arc::new(file)),
        Some(Err(error)) => {
            eprintln!("kvasir: {process} does not share packed weights: {error}");
            opened
        }
        None => opened,
    }
}

/// Builds the served model from the opened one. `returns_hidden`: whether its engine returns hidden
/// states.
pub(crate) fn build_model(
    name: String,
    opened: &OpenedModel,
    returns_hidden: bool,
    sampling_args: &SamplingArgs,
    defaults: Option<&SamplingDefaults>,
    max_len: u32,
) -> Result<Model, Failure> {
    let program = Arc::new(opened.model.target.clone());
    let sampling = sampling_args.sampling(opened)?;
    let facts = model::Facts {
        vocab: program.vocab as u32,
        max_len,
        max_new_tokens: sampling_args.max_new_tokens(opened)?,
        context_shift: sampling_args.shifts_context(),
        hidden: returns_hidden.then_some(program.hidden as u32),
        eos: opened.eos(),
        sampling: defaults.map_or(sampling, |defaults| defaults.applied_to(sampling)),
        seed: defaults.and_then(SamplingDefaults::seed),
        drafter: opened.speculation().map(Speculation::name),
        card: card(&ModelCard::of(opened)),
        prefix_salt: Box::new(move |final_len| program.prefix_salt(final_len)),
    };
    let files = opened.text_files()?;
    let tokenizer = Arc::new(files.tokenizer().map_err(Failure::failed)?);
    let chat = ChatModel::new(&files, tokenizer, facts.vocabulary()).map_err(Failure::failed)?;
    Ok(Model::new(name, sampling_args.configure(chat)?, facts))
}

fn card(card: &ModelCard) -> Card {
    Card {
        family: card.architecture.clone(),
        format: card.format.clone(),
        parameters: card.parameters,
        quantization: card.quantization.clone(),
        bytes: card.bytes,
        modified: card.modified,
    }
}
