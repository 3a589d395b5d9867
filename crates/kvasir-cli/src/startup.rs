//! Startup shared by `serve`, its workers and `chat`: loads the model, builds the engine
//! (`ready_engine`) or the fleet, starts the tokenizer processes (`tokenizers`), and builds the
//! HTTP app.

pub(crate) mod ready_engine;
pub(crate) mod tokenizers;

use crate::doctor::forecast::Forecast;
use crate::io::failure::Failure;
use crate::io::model_progress::loading;
use crate::options::Options;
use crate::options::model::ModelArgs;
use crate::options::reports::{log_warning, process_logger};
use crate::options::sampling::SamplingArgs;
use crate::options::sampling_defaults::SamplingDefaults;
use crate::startup::ready_engine::{EngineFacts, Peers, ReadyEngine, ranks_error};
use crate::startup::tokenizers::{TokenizerCommand, start_tokenizers};
use kvasir::{AnyExecutor, EngineConfig, ModelCard, OpenedModel, PackedFile, PrefillProgress, Speculation};
use kvasir_chat::ChatModel;
use kvasir_engine::{Engine, Replicas, Role, Route};
use kvasir_fleet::{
    Fleet, FleetConfig, Identity, KvPublisher, PublishedServing, TokenizerPool, WorkerCommand,
};
use kvasir_serve::{
    StepFeed,
    host::{AdmissionLimits, FleetParts, Host, KvExports, ReplicaObserver},
    http::{AccessControl, App, ClientRules, Live, PublishedStreams, SlotFiles},
    metrics::Names,
    model::{self, Card, Model},
    report::Reports,
};
use serde_json::Value;
use std::{
    fs::File,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
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
    /// The tokenizer processes to start, if any.
    pub(crate) tokenizers: Option<TokenizerCommand>,
    /// Directory of saved slots; `None` saves none.
    pub(crate) slot_directory: Option<PathBuf>,
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
            tokenizers: None,
            slot_directory: None,
        }
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
    /// The tokenizer processes, which end when this is dropped.
    pub(crate) tokenizers: Option<TokenizerPool>,
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
        let transfers_kv = service.slot_directory.is_some();
        let config = EngineConfig { transfers_kv, ..options.config()? };
        let (opened, name) = open_model(model, name, &config, &service)?;
        if service.needs_template {
            reject_encoder(&opened, &name)?;
            sampling_args.check_template(&opened, &name)?;
        }
        // Dropped at the end: an engine takes time, too.
        let (opened, _line) = if service.shows_progress {
            let (opened, line) = loading(opened, name.clone());
            (opened, Some(line))
        } else {
            (opened, None)
        };
        let weights = service.slot_directory.is_some().then(|| opened.weights_fingerprint());
        let ready = ReadyEngine::new(model, opened, &config, service.warms_up, Peers::None)?;
        let ReadyEngine { engine, loaded, facts, setup } = ready;
        let (feed, observer) = StepFeed::new();
        let mut engine = engine.observe(observer);
        if service.kv_events.is_some() {
            record_kv_events(&mut engine, "--kv-events")?;
        }
        let slot_files = service.slot_directory.clone().zip(weights).map(|(directory, weights)| {
            let exports = KvExports::of(&mut engine);
            let exports = exports.map_err(|error| Failure::usage(format!("--slot-save-path: {error}")))?;
            Ok::<_, Failure>(SlotFiles::new(directory, loaded.kv_fingerprint(weights), exports))
        });
        let slot_files = slot_files.transpose()?;
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
        let Service {
            access, allowed, reports, names, timeout, rules, kv_events, streams, tokenizers, ..
        } = service;
        let (served, tokenizers) = {
            let fingerprint = || loaded.opened.checkpoint.fingerprint();
            start_tokenizers(tokenizers, fingerprint, served, &reports)?
        };
        drop(loaded);
        let wrap = |engine| match kv_events {
            Some(publisher) => Box::new(PublishedServing::new(engine, publisher)),
            None => engine,
        };
        let host = Host::start_wrapped(engine, wrap, allowed(facts.slots, facts.max_len), reports, timeout);
        let host = host.map_err(Failure::failed)?;
        let ranks = facts.rank_config(None, streams);
        let live = Live { feed, ranks, setup: Value::Object(setup) };
        let rules = ClientRules { slot_files, ..rules };
        let app = App::new(Arc::new(served), host, access, live, names, rules);
        Ok(Self { app, name, facts, prefill, warning: None, tokenizers })
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
        let transfers_kv = fleet.roles.contains(&Role::Prefill);
        let config = EngineConfig { transfers_kv, ..options.config()? };
        let (opened, name) = open_model(model, name, &config, &service)?;
        let Service { access, allowed, reports, names, timeout, rules, .. } = service;
        let Service { defaults, kv_events, streams, tokenizers, .. } = service;
        check_ranks(&opened, fleet.ranks)?;
        if opened.model.target.is_encoder() && fleet.roles.iter().any(|role| *role != Role::Both) {
            let why = "--role: encoders do not support prefill and decode roles; leave `--role` out";
            return Err(Failure::usage(why.to_owned()));
        }
        let engines = fleet.roles.len() as u32;
        if fleet.expert_parallel {
            check_experts(&opened, fleet.roles.len())?;
        }
        let observer = ReplicaObserver::new(fleet.roles.len(), timeout);
        let counted = observer.clone();
        let identity = identity(&opened, model, options);
        let fingerprint = identity.model;
        let packed_file = model.compute().is_on_cpu().then(|| PackedFile::create(packed_key(&identity)));
        let packed_file = packed_file.and_then(|created| {
            let failed = |error| format!("engines do not share packed weights: {error}");
            created.map_err(|error| log_warning(&reports, &failed(error))).ok()
        });
        let started = Fleet::start(FleetConfig {
            roles: fleet.roles,
            route: fleet.route,
            expert_parallel: fleet.expert_parallel,
            command: (fleet.command)(packed_file),
            identity,
            step_timeout: timeout,
            kv_events,
            on_counters: Box::new(move |replica, counters| counted.update(replica, counters)),
            on_log: process_logger(&reports),
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
        let (served, tokenizers) = start_tokenizers(tokenizers, || fingerprint, served, &reports)?;
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
        Ok(Self { app, name, facts, prefill: None, warning, tokenizers })
    }
}

/// Returns an error if the model is an encoder, which cannot chat.
fn reject_encoder(opened: &OpenedModel, name: &str) -> Result<(), Failure> {
    if opened.model.target.is_encoder() {
        return Err(Failure::usage(format!("{name} {}", kvasir::ENCODER_CANNOT_GENERATE)));
    }
    Ok(())
}

/// Checks that a model can be divided among this number of ranks.
fn check_ranks(opened: &OpenedModel, ranks: usize) -> Result<(), Failure> {
    opened.check_ranks(ranks).map_err(|error| ranks_error(ranks, error))
}

/// Checks that the experts of a model can be divided among this number of replicas.
fn check_experts(opened: &OpenedModel, replicas: usize) -> Result<(), Failure> {
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
    /// Whether the experts of the model are divided among the workers.
    pub(crate) expert_parallel: bool,
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
    // Rejects an invalid memory share before the model is opened.
    config.check_memory_share()?;
    let opened = model.open()?;
    if let Some(on_forecast) = &service.on_forecast
        && let Some(forecast) = model.forecast(&opened, config)
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
        uses_marks: program.is_recurrent() || !program.windows().is_empty(),
        hidden: returns_hidden.then_some(program.hidden as u32),
        encoder: program.is_encoder().then(|| model::EncoderFacts { labels: program.labels() as u32 }),
        eos: opened.eos(),
        sampling: defaults.map_or(sampling, |defaults| defaults.applied_to(sampling)),
        seed: defaults.and_then(SamplingDefaults::seed),
        drafter: opened.speculation().map(Speculation::name),
        card: card(opened),
        prefix_salt: Box::new(move |final_len| program.prefix_salt(final_len)),
    };
    let files = opened.text_files()?;
    let tokenizer = Arc::new(files.tokenizer().map_err(Failure::failed)?);
    let chat = ChatModel::new(&files, tokenizer, facts.vocabulary()).map_err(Failure::failed)?;
    Ok(Model::new(name, sampling_args.configure(chat)?, facts))
}

fn card(opened: &OpenedModel) -> Card {
    let card = ModelCard::of(opened);
    let file = opened.checkpoint.path().file_name().unwrap_or_default();
    Card {
        file: file.to_string_lossy().into_owned(),
        family: card.architecture.clone(),
        format: card.format.clone(),
        parameters: card.parameters,
        quantization: card.quantization.clone(),
        bytes: card.bytes,
        modified: card.modified,
    }
}
