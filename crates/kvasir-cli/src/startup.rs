//! Startup shared by `serve` and `chat`: loads the model, builds the engine and the HTTP app.

use crate::doctor::forecast::Forecast;
use crate::io::failure::Failure;
use crate::io::model_progress::loading;
use crate::options::Options;
use crate::options::model::ModelArgs;
use crate::options::resolve::setup_of;
use crate::options::sampling::SamplingArgs;
use crate::options::sampling_defaults::SamplingDefaults;
use kvasir::{DEFAULT_SLOTS, KvType, LoadedModel, ModelCard, Precision, PrefillProgress, Speculation};
use kvasir_chat::ChatModel;
use kvasir_serve::{
    StepFeed,
    host::{AdmissionLimits, Host},
    http::{AccessControl, App, ClientRules, Live},
    metrics::Names,
    model::{self, Card, Model},
    report::Reports,
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// Receives predictions.
pub(crate) type OnForecast = Box<dyn FnOnce(&Forecast)>;

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
        }
    }
}

/// A running engine with its app.
pub(crate) struct Started {
    pub(crate) app: Arc<App>,
    pub(crate) name: String,
    pub(crate) backend: &'static str,
    /// KV cache slots of the pool.
    pub(crate) slots: u32,
    /// Whether memory holds more slots than the default of `--kv-capacity` takes.
    pub(crate) is_capped: bool,
    /// Context length: prompt and answer together.
    pub(crate) max_len: u32,
    /// K/V data type, and bytes of a slot, with those of a draft model.
    pub(crate) kv: (KvType, usize),
    /// Threads and precision of the CPU backend.
    pub(crate) arithmetic: Option<(usize, Precision)>,
    /// Progress of the newest prompt, if it is followed.
    pub(crate) prefill: Option<PrefillProgress>,
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
        let share = config.memory_share()?;
        let opened = model.open()?;
        if let Some(on_forecast) = service.on_forecast
            && let Some(forecast) = model.forecast(&opened, share)
        {
            on_forecast(&forecast);
        }
        let name = name.map_or_else(|| model.name(), str::to_owned);
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
        let loaded = model.load_opened(opened)?;
        let in_memory = loaded.slots_in_memory(share).filter(|_| config.kv_capacity.is_none());
        let resolved = loaded.resolve(&config, DEFAULT_SLOTS)?;
        let core = resolved.core()?;
        let setup = setup_of(&loaded, &resolved, &core);
        let (feed, observer) = StepFeed::new();
        let mut engine = loaded.engine(core, resolved.overlap)?.observe(observer);
        let prefill = service.shows_progress.then(|| {
            let (progress, observer) = PrefillProgress::of(&loaded);
            engine.add_observer(observer);
            progress
        });
        if service.warms_up {
            kvasir::warm_up(&mut engine)?;
        }
        let slots = engine.core().cache().shape().capacity;
        let is_capped = in_memory.is_some_and(|in_memory| in_memory > slots);
        let max_len = engine.core().limits().max_model_len.min(slots);
        let (served, backend) = (
            served(name.clone(), &loaded, sampling_args, service.defaults.as_ref(), max_len)?,
            loaded.backend(),
        );
        let kv = (loaded.kv(), loaded.slot_bytes());
        let arithmetic = loaded.arithmetic();
        drop(loaded);
        let Service { access, allowed, reports, names, timeout, rules, .. } = service;
        let host = Host::start(engine, allowed(slots, max_len), reports, timeout);
        let host = host.map_err(Failure::failed)?;
        let live = Live { feed, setup: Value::Object(setup) };
        let app = App::new(Arc::new(served), host, access, live, names, rules);
        Ok(Self { app, name, backend, slots, is_capped, max_len, kv, arithmetic, prefill })
    }
}

/// Builds the served model from the loaded one.
fn served(
    name: String,
    loaded: &LoadedModel,
    sampling_args: &SamplingArgs,
    defaults: Option<&SamplingDefaults>,
    max_len: u32,
) -> Result<Model, Failure> {
    let program = Arc::new(loaded.program().clone());
    let sampling = sampling_args.sampling(loaded)?;
    let facts = model::Facts {
        vocab: program.vocab as u32,
        max_len,
        max_new_tokens: sampling_args.max_new_tokens(loaded)?,
        context_shift: sampling_args.shifts_context(),
        hidden: loaded.tells_hidden().then_some(program.hidden as u32),
        eos: loaded.opened.eos(),
        sampling: defaults.map_or(sampling, |defaults| defaults.applied_to(sampling)),
        seed: defaults.and_then(SamplingDefaults::seed),
        drafter: loaded.speculation().map(Speculation::name),
        card: card(&ModelCard::of(&loaded.opened)),
        prefix_salt: Box::new(move |final_len| program.prefix_salt(final_len)),
    };
    let files = loaded.opened.text_files()?;
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
