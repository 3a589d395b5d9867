//! [`KvasirEngine`]: Dynamo's `LLMEngine` over Kvasir's engine.
//!
//! States: not started; started, with an engine thread and a model; stopped by `cleanup`. Requests
//! outside of the started state get `EngineShutdown`, so Dynamo can send them to another worker.

use crate::engine_thread::EngineThread;
use crate::failure::{failed, invalid, stopped};
use crate::load::{LoadObserver, PublisherCell};
use crate::output::chunks;
use crate::request::parameters;
use async_trait::async_trait;
use dynamo_backend_common::{
    DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput, LlmRegistration,
    MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use futures::stream::BoxStream;
use kvasir::{BackendKind, DEFAULT_SLOTS, Error, Model, OpenedModel, Precision};
use kvasir_engine::EngineConfig as KvasirConfig;
use kvasir_fleet::{KvPublisher, KvPublisherConfig, PublishedServing};
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::task::spawn_blocking;

/// Model and configuration of the engine.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    /// A GGUF file or a directory in the Hugging Face layout; the built-in model if `None`.
    pub model: Option<PathBuf>,
    /// Its name in Dynamo's registry.
    pub name: String,
    /// Threads; one per core if `None`.
    pub threads: Option<usize>,
    /// Cache, policy and limits.
    pub config: KvasirConfig,
    /// Address on which KV events are published to Dynamo's runtime in this process.
    pub kv_events: SocketAddr,
}

/// State of a started engine.
struct Started {
    thread: EngineThread,
    model: Arc<Model>,
    /// Address of its KV events.
    events: SocketAddr,
}

/// Kvasir's engine, on a thread of its own.
pub struct KvasirEngine {
    setup: EngineSetup,
    started: Mutex<Option<Arc<Started>>>,
    load: PublisherCell,
}

impl KvasirEngine {
    /// An engine that is not started.
    pub fn new(setup: EngineSetup) -> Self {
        Self { setup, started: Mutex::default(), load: PublisherCell::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Started>>> {
        // A panic cannot leave the state inconsistent: each change is one assignment.
        self.started.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn started(&self) -> Result<Arc<Started>, DynamoError> {
        self.lock().clone().ok_or_else(stopped)
    }
}

/// Loads the model and starts the engine.
fn start(setup: &EngineSetup, load: PublisherCell) -> Result<(Started, LlmRegistration), DynamoError> {
    let opened = match &setup.model {
        Some(path) => OpenedModel::find(path),
        None => OpenedModel::built_in(),
    };
    let loaded = opened.and_then(|opened| opened.load(BackendKind::Auto, Precision::Auto, setup.threads));
    let model = loaded.and_then(Model::new).map_err(invalid)?;
    let resolved = model.loaded.resolve(&setup.config, DEFAULT_SLOTS).map_err(invalid)?;
    let engine =
        resolved.core().map_err(Error::from).and_then(|core| model.loaded.engine(core, resolved.overlap));
    let mut engine = engine.map_err(failed)?;
    kvasir::warm_up(&mut engine).map_err(failed)?;
    engine.core_mut().record_kv_events().map_err(|error| invalid(format!("KV events: {error}")))?;
    let (shape, limits) = (engine.core().cache().shape(), engine.core().limits());
    let registration = LlmRegistration {
        context_length: Some(limits.max_model_len.min(shape.capacity)),
        kv_cache_block_size: Some(shape.block_size),
        total_kv_blocks: Some(u64::from(shape.capacity / shape.block_size.max(1))),
        max_num_seqs: Some(limits.max_num_seqs.into()),
        max_num_batched_tokens: Some(limits.max_num_batched_tokens.into()),
        ..LlmRegistration::default()
    };
    let on_warning = Box::new(|line: &str| tracing::warn!("{line}"));
    let publisher = KvPublisher::start(KvPublisherConfig::new(setup.kv_events, on_warning));
    let publisher = publisher.map_err(failed)?;
    let events = publisher.streams().first().map(|(events, _)| *events).ok_or_else(|| failed("no stream"))?;
    let engine = engine.observe(Box::new(LoadObserver::new(load)));
    let serving = Box::new(PublishedServing::new(Box::new(engine), publisher));
    let thread = EngineThread::start(serving).map_err(failed)?;
    Ok((Started { thread, model, events }, registration))
}

#[async_trait]
impl LLMEngine for KvasirEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (setup, load) = (self.setup.clone(), self.load.clone());
        let name = setup.name.clone();
        tracing::info!("loading the model {name}");
        let (started, registration) = spawn_blocking(move || start(&setup, load)).await.map_err(failed)??;
        tracing::info!(
            "serving {} K/V blocks of {} tokens",
            registration.total_kv_blocks.unwrap_or_default(),
            registration.kv_cache_block_size.unwrap_or_default()
        );
        *self.lock() = Some(Arc::new(started));
        Ok(EngineConfig { model: name, llm: Some(registration), ..EngineConfig::default() })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let started = self.started()?;
        let (mut params, shape) = parameters(&request, &started.model)?;
        if let Some(shape) = shape {
            // Compiling a grammar may take longer than an async task may block.
            let model = started.model.clone();
            let compiled = spawn_blocking(move || model.constraint(&shape)).await.map_err(failed)?;
            params.constraint = compiled.map_err(invalid)?;
        }
        let prompt = request.token_ids.len() as u32;
        let request = started.model.loaded.request(request.token_ids.to_vec(), params).map_err(invalid)?;
        let running = started.thread.submit(request)?;
        Ok(chunks(running, prompt, started.model.clone(), context))
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        let Some(mut started) = self.lock().take() else { return Ok(()) };
        // `generate` holds a clone until it has submitted its request.
        let started = loop {
            match Arc::try_unwrap(started) {
                Ok(started) => break started,
                Err(shared) => {
                    started = shared;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        let exit = spawn_blocking(move || started.thread.exit()).await.map_err(failed)?;
        tracing::info!("the engine has stopped: {exit}");
        Ok(())
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let events = self.started()?.events;
        let endpoint = format!("tcp://{events}");
        Ok(vec![KvEventSource::Zmq { endpoint, topic: String::new(), dp_rank: 0, image_token_id: None }])
    }

    async fn setup_metrics(&self, _: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let load = self.load.clone();
        let ready = move |publisher| {
            // Dynamo makes one publisher per engine.
            let _ = load.set(publisher);
            Ok(())
        };
        Ok(MetricsBindings { dp_ranks: vec![0], on_publisher_ready: Some(Box::new(ready)) })
    }
}
