//! State shared by all handlers: the served model, the engine, access rules, sessions.
//!
//! `submission`, `model_names` and `session_turns` implement the operations on it.

use crate::context::ignored_fields::{LoggedFields, UnknownFields};
use crate::error::ApiError;
use crate::host::engine_thread::Host;
use crate::host::step_subscription::StepFeed;
use crate::http::access::AccessControl;
use crate::http::erasures::Erasures;
use crate::http::model_fetcher::{FetchModel, ModelFetcher};
use crate::http::rank_config::RankConfig;
use crate::http::slot_files::SlotFiles;
use crate::metrics::prometheus::Names;
use crate::model::Model;
use crate::request::rerank::Scoring;
use crate::session::conversations::Conversations;
use crate::session::pins::Pins;
use crate::session::responses::ResponseStore;
use crate::session::slots::Slots;
use crate::session::store::Sessions;
use crate::work_pool::{fair_queue::Cost, pool::WorkPool};
use kvasir_engine::RankLoad;
use serde_json::Value;
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

/// `system_fingerprint` of responses: the version, which decides the numbers.
pub(super) const FINGERPRINT: &str = concat!("kvasir-", env!("CARGO_PKG_VERSION"));

/// State shared by all handlers.
pub struct App {
    pub(crate) model: Arc<Model>,
    pub(crate) host: Arc<Host>,
    pub(super) work: WorkPool,
    pub(super) access: AccessControl,
    pub(super) live: Live,
    pub(super) sessions: Arc<Sessions>,
    pub(super) pins: Pins,
    pub(super) erasures: Erasures,
    pub(super) slots: Arc<Slots>,
    pub(super) responses: ResponseStore,
    pub(super) fetcher: ModelFetcher,
    pub(super) conversations: Conversations,
    pub(super) names: Names,
    pub(crate) rules: ClientRules,
    pub(super) logged_fields: LoggedFields,
    pub(super) ids: AtomicU64,
    pub(super) random: RandomState,
    /// Start time in seconds since 1970, reported as the model's creation time.
    pub(super) since: u64,
}

/// Compatibility options for clients.
#[derive(Clone, Debug)]
pub struct ClientRules {
    /// Further names of the model; `*` accepts any.
    pub aliases: Vec<String>,
    /// Handling of unknown fields.
    pub unknown_fields: UnknownFields,
    /// Strips Claude Code's billing header from system prompts: it changes with every request and
    /// would defeat the prefix cache.
    pub strip_billing_header: bool,
    /// Largest `priority` that a request gets.
    pub max_priority: i32,
    /// How `/v1/rerank` and `/v1/score` compare texts where the request does not say it.
    pub scoring: Scoring,
    /// Fetches models for `/api/pull`; `None` refuses to.
    pub fetch_model: Option<FetchModel>,
    /// Saves and restores slots; `None` refuses to.
    pub slot_files: Option<SlotFiles>,
}

impl Default for ClientRules {
    fn default() -> Self {
        Self {
            aliases: Vec::new(),
            unknown_fields: UnknownFields::default(),
            strip_billing_header: true,
            max_priority: i32::MAX,
            scoring: Scoring::Embeddings,
            fetch_model: None,
            slot_files: None,
        }
    }
}

/// The configuration of the engine, or of each engine, and a live view of its steps.
pub struct Live {
    /// The step subscription service.
    pub feed: StepFeed,
    /// Limits of the engines, and addresses of their streams.
    pub ranks: RankConfig,
    /// The engine's configuration, in the trace page's format.
    pub setup: Value,
}

impl App {
    /// An app that serves `model`, run by `host`, under these access rules.
    pub fn new(
        model: Arc<Model>,
        host: Arc<Host>,
        access: AccessControl,
        live: Live,
        names: Names,
        rules: ClientRules,
    ) -> Arc<Self> {
        let (sessions, random) = (Arc::default(), RandomState::new());
        let (ids, since) = (AtomicU64::new(1), unix_seconds());
        let logged_fields = LoggedFields::default();
        Arc::new(Self {
            model,
            host,
            work: WorkPool::default(),
            access,
            live,
            sessions,
            pins: Pins::default(),
            erasures: Erasures::default(),
            slots: Arc::default(),
            responses: ResponseStore::default(),
            fetcher: ModelFetcher::new(rules.fetch_model),
            conversations: Conversations::default(),
            names,
            rules,
            logged_fields,
            ids,
            random,
            since,
        })
    }

    /// Runs the CPU-bound part of a request on the work pool.
    pub(super) async fn run_work<T: Send + 'static>(
        self: &Arc<Self>,
        cost: Cost,
        work: impl FnOnce(&Arc<Self>) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let app = self.clone();
        self.work.run(cost, move || work(&app)).await
    }

    /// Whether tools get a generic prompt, because the chat template does not render them.
    pub fn needs_tool_prompt(&self) -> bool {
        self.model.chat.needs_tool_prompt()
    }

    /// Load of each running engine; empty while the server is not ready.
    pub fn rank_loads(&self) -> Vec<RankLoad> {
        if self.host.why_not_ready().is_some() {
            return Vec::new();
        }
        self.host.metrics().rank_loads().into_iter().map(|(load, _)| load).collect()
    }

    /// Number of open answers.
    pub fn host_open(&self) -> usize {
        self.host.open()
    }

    /// An unpredictable 64-bit number.
    pub(super) fn random_u64(&self) -> u64 {
        self.random.hash_one(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    /// An id for a response.
    pub(super) fn new_id(&self) -> String {
        format!("{:016x}", self.random_u64())
    }
}

/// Unix time in seconds.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
