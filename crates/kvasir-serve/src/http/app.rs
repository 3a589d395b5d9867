//! State shared by all handlers: the served model, the engine, access rules, sessions.
//!
//! Builds engine requests from sampling parameters, submits them, and looks up sessions.

use crate::context::clamped_limit::ClampedLimit;
use crate::context::ignored_fields::{LoggedFields, UnknownFields};
use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::host::engine_thread::{Host, Submission, TokenStream};
use crate::host::errors::refused;
use crate::host::step_subscription::StepFeed;
use crate::http::access::AccessControl;
use crate::http::access::rate_limits::{Charge, RateLimit};
use crate::metrics::Rejected;
use crate::metrics::prometheus::Names;
use crate::model::Model;
use crate::model::marked_prefixes::MarkedPrefix;
use crate::request::completions::Prompt;
use crate::request::reader::Reader;
use crate::request::rerank::Scoring;
use crate::request::sampling::SamplingFields;
use crate::session::pins::Pins;
use crate::session::responses::ResponseStore;
use crate::session::store::{SessionContent, Sessions, Turn};
use crate::work_pool::{fair_queue::Cost, pool::WorkPool};
use kvasir_engine::{Pin, SessionId};
use kvasir_kv::Token;
use serde_json::{Map, Value};
use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Answer tokens that admission charges for a request without `max_tokens`: few answers are as long
/// as the model allows.
const EXPECTED_ANSWER: u32 = 1024;

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
    pub(super) responses: ResponseStore,
    pub(super) names: Names,
    pub(crate) rules: ClientRules,
    pub(super) logged_fields: LoggedFields,
    pub(super) ids: AtomicU64,
    pub(super) random: RandomState,
    /// Start time in seconds since 1970, reported as the model's creation time.
    pub(super) since: u64,
}

/// Compatibility options for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl Default for ClientRules {
    fn default() -> Self {
        Self {
            aliases: Vec::new(),
            unknown_fields: UnknownFields::default(),
            strip_billing_header: true,
            max_priority: i32::MAX,
            scoring: Scoring::Embeddings,
        }
    }
}

/// Live view of the engine's steps.
pub struct Live {
    /// The step subscription service.
    pub feed: StepFeed,
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
            responses: ResponseStore::default(),
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

    /// Whether requests may name the model so. Ollama's clients append `:latest`.
    pub(super) fn answers_to(&self, name: &str) -> bool {
        let is_named = |name: &str| {
            name == self.model.name || self.rules.aliases.iter().any(|alias| alias == "*" || alias == name)
        };
        is_named(name) || name.strip_suffix(":latest").is_some_and(is_named)
    }

    /// The model's name and its aliases, for lists.
    pub(super) fn model_names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.rules.aliases.iter().map(String::as_str).filter(|alias| *alias != "*");
        std::iter::once(self.model.name.as_str()).chain(aliases)
    }

    pub(super) fn check_model(&self, requested: Option<&str>) -> Result<(), ApiError> {
        match requested {
            Some(name) if !self.answers_to(name) => Err(ApiError::not_found(
                "model",
                format!(
                    "there is no model `{name}`; this is `{}`, and --model-name gives it more names",
                    self.model.name
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Whether tools get a generic prompt, because the chat template does not render them.
    pub fn needs_tool_prompt(&self) -> bool {
        self.model.needs_tool_prompt()
    }

    /// Number of open answers.
    pub fn host_open(&self) -> usize {
        self.host.open()
    }

    /// Builds the engine request: a prompt beyond the context is rejected, a maximum beyond it clamped.
    pub(super) fn submission(
        &self,
        param: &str,
        prompt: Vec<Token>,
        fields: &SamplingFields,
        key: u64,
    ) -> Result<Submission, ApiError> {
        let longest = self.model.facts.max_len;
        let mut prompt = prompt;
        if let Some(keep) = fields.truncate_prompt {
            let rest = longest.saturating_sub(fields.length.reserved(longest));
            let keep = u32::try_from(keep).unwrap_or(rest) as usize;
            prompt.drain(..prompt.len().saturating_sub(keep));
        }
        let used = u32::try_from(prompt.len()).unwrap_or(u32::MAX);
        if used == 0 {
            return Err(ApiError::param(param, format!("`{param}` has no token")));
        }
        let context_shift = fields.context_shift.filter(|_| self.model.facts.context_shift);
        let left = match context_shift {
            None => fields.length.fit(param, used, longest)?,
            Some(_) => fields.length.fit_shifting(param, used, longest)?,
        };
        if fields.sampling.logprobs.is_some() || fields.prompt_logprobs.is_some() {
            self.model.require_logits("probability")?;
        }
        let max_new_tokens = self.model.facts.max_new_tokens.unwrap_or(left).max(fields.length.min_tokens);
        let limit = left.min(max_new_tokens);
        if let Some(requested) = fields.length.max_tokens.filter(|requested| *requested > limit) {
            let clamped = ClampedLimit { field: fields.length.field, requested, limit };
            RequestContext::current().clamped.record(clamped);
        }
        let mut params = fields.params(limit);
        if fields.seed.is_none() {
            params.sampling.seed = self.random_u64();
        }
        params.context_shift = context_shift;
        params.prediction = self.prediction(fields)?;
        params.eos = self.model.facts.eos.clone();
        params.key = key;
        params.priority = params.priority.min(self.rules.max_priority);
        // The salt isolates prefix caches by key: no hits, and no timing side channel, across keys.
        let final_len = used.saturating_add(params.max_tokens).min(longest);
        params.salt =
            self.salt(key, fields.cache_salt.as_deref()) << 1 | (self.model.facts.prefix_salt)(final_len);
        // Checked before streaming starts, so that the error has an HTTP status.
        params.check().map_err(refused)?;
        // Admission counts what the K/V of the request may take.
        let most = params.max_tokens.min(longest - used);
        let expected = fields.length.max_tokens.map_or(most.min(EXPECTED_ANSWER), |_| most);
        let tokens = u64::from(used) + u64::from(expected);
        Ok(Submission { request: kvasir_engine::Request { tag: 0, prompt, params }, tokens })
    }

    /// The tokens of a predicted output, if the drafter uses them; for another drafter, or for none,
    /// the field is recorded as ignored. A method that is not the server's is refused.
    fn prediction(&self, fields: &SamplingFields) -> Result<Vec<Token>, ApiError> {
        let (asked, drafter) = (&fields.speculation, self.model.facts.drafter);
        if let Some(method) = asked.method.as_deref().filter(|method| Some(*method) != drafter) {
            let why = match drafter {
                Some(own) => format!("method `{method}` is not that of this server, `{own}`"),
                None => format!("method `{method}`: this server runs without --spec"),
            };
            return Err(ApiError::param("speculation.method", why));
        }
        match drafter {
            _ if asked.prediction.is_empty() => Ok(Vec::new()),
            Some("suffix") if asked.max_tokens == Some(0) => Ok(Vec::new()),
            Some("suffix") => self.model.encode_prediction(&asked.prediction),
            _ => {
                RequestContext::current().ignored.record("prediction");
                Ok(Vec::new())
            }
        }
    }

    /// Submits orders of one key to the engine, each with `n` answers.
    pub(super) fn submit(&self, submissions: Vec<Submission>, n: u32) -> Result<Vec<TokenStream>, ApiError> {
        let sessions: Vec<_> =
            submissions.iter().filter_map(|submission| submission.request.params.session).collect();
        let tokens = submissions.iter().map(|submission| submission.tokens).sum::<u64>() * u64::from(n);
        if let Some(first) = submissions.first() {
            self.take_rate(first.request.params.key, Charge { requests: 0, tokens })?;
        }
        let answers = self.host.submit(submissions, n)?;
        // A session deleted while its turn was prepared: the engine saw the deletion too early, so
        // it is repeated.
        let deleted = sessions.into_iter().filter(|id| !self.sessions.contains(*id));
        deleted.for_each(|id| self.host.end_session(id));
        Ok(answers)
    }

    /// Counts a request toward its key's rate, before anything is computed for it.
    pub(super) fn take_request(&self, key: u64) -> Result<(), ApiError> {
        self.take_rate(key, Charge { requests: 1, tokens: 0 })
    }

    /// Takes a charge from the rates of a key, and notes what is left for the response's headers.
    fn take_rate(&self, key: u64, charge: Charge) -> Result<(), ApiError> {
        let (limits, name) = (&self.access.rate_limits, self.access.keys.name(key));
        let Some(taken) = limits.take(key, name.as_deref(), charge, Instant::now()) else { return Ok(()) };
        let (state, wait) = match taken {
            Ok(state) => (state, None),
            Err((state, wait)) => (state, Some(wait)),
        };
        RequestContext::current().set_rate(state.headers());
        let Some(wait) = wait else { return Ok(()) };
        self.host.metrics().reject(Rejected::KeyRate);
        let seconds = wait.as_secs() as u32 + 1;
        let RateLimit { requests, tokens } = state.limit;
        let why = format!(
            "the key's rate is {requests} requests and {tokens} tokens per minute; try again in {seconds} s"
        );
        Err(ApiError { retry_after: Some(seconds), ..ApiError::too_many(why) })
    }

    pub(super) fn salt(&self, key: u64, text: Option<&str>) -> u64 {
        match (key, text) {
            (0, None) => 0,
            both => self.random.hash_one(both),
        }
    }

    pub(super) fn random_u64(&self) -> u64 {
        self.random.hash_one(self.ids.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn new_id(&self) -> String {
        format!("{:016x}", self.random_u64())
    }

    /// Ends sessions and pins whose time is over.
    pub(super) fn expire_sessions(&self) {
        let expired = self.sessions.expire().into_iter().chain(self.pins.expire(Instant::now()));
        expired.for_each(|id| self.host.end_session(id));
    }

    /// Has the K/V of marked prefixes kept when the request ends.
    pub(super) fn pin(&self, request: &mut kvasir_engine::Request, marked: &[MarkedPrefix]) {
        for MarkedPrefix { len, ttl } in marked {
            let tokens = request.prompt.get(..*len as usize).unwrap_or(&request.prompt);
            let session = SessionId(self.random.hash_one((request.params.salt, tokens)));
            let ended = self.pins.renew(session, request.params.key, *ttl, Instant::now());
            ended.into_iter().for_each(|id| self.host.end_session(id));
            request.params.pins.push(Pin { session, len: *len });
        }
    }

    pub(super) fn new_session(&self) -> SessionId {
        loop {
            let id = SessionId(self.random_u64());
            if !self.sessions.contains(id) {
                return id;
            }
        }
    }

    /// Rejects a text prompt that cannot fit the context, unless it is to be truncated.
    pub(super) fn check_bytes(&self, param: &str, prompt: &Prompt, truncates: bool) -> Result<(), ApiError> {
        match prompt {
            Prompt::Text(text) if !truncates => self.model.check_bytes(param, text),
            Prompt::Sequence(parts) => {
                parts.iter().try_for_each(|part| self.check_bytes(param, part, truncates))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn ids(&self, prompt: &Prompt, begins: bool) -> Result<Vec<Token>, ApiError> {
        match prompt {
            Prompt::Text(text) => self.model.encode(text, begins),
            Prompt::Ids(ids) => Ok(ids.clone()),
            Prompt::Sequence(parts) => {
                let parts = parts.iter().enumerate().map(|(i, part)| self.ids(part, begins && i == 0));
                Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
            }
        }
    }

    /// Begins a turn in the session named by a chat request, if any.
    pub(super) fn begin_chat_turn(&self, key: u64, reader: &Reader) -> Result<Option<SessionBody>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(None) };
        require_single_answer(reader)?;
        if reader.flag("continue_final_message", false)? {
            return Err(reader.error("continue_final_message", "cannot be combined with `session`"));
        }
        self.expire_sessions();
        self.sessions.check_memory(key)?;
        let own = reader.list("messages", usize::MAX)?.unwrap_or_default();
        let (turn, earlier) = self.sessions.begin(name, key, |session| {
            let earlier = session.messages().map(<[Value]>::to_vec);
            earlier.ok_or_else(|| reader.error("session", "holds a text, to which completions append"))
        })?;
        let mut fields = reader.fields().clone();
        fields.insert("messages".into(), earlier.iter().chain(own).cloned().collect());
        Ok(Some((fields, earlier.len(), turn)))
    }

    /// Begins a turn in the session named by a completion request, if any; returns its tokens so
    /// far.
    pub(super) fn begin_text_turn(
        &self,
        key: u64,
        reader: &Reader,
    ) -> Result<Option<(Turn, Vec<Token>)>, ApiError> {
        let Some(name) = reader.text("session")? else { return Ok(None) };
        require_single_answer(reader)?;
        if reader.flag("echo", false)? {
            return Err(reader.error("echo", "cannot be combined with `session`"));
        }
        self.expire_sessions();
        let begun = self.sessions.begin(name, key, |session| match session.content {
            SessionContent::Messages(_) => {
                Err(reader.error("session", "holds messages, to which chats append"))
            }
            SessionContent::Text | SessionContent::Empty => Ok(session.tokens.to_vec()),
        })?;
        Ok(Some(begun))
    }
}

/// A chat body with the session's messages prepended, their number, and the turn.
type SessionBody = (Map<String, Value>, usize, Turn);

/// Sessions append a single answer, so `n` must be 1.
fn require_single_answer(reader: &Reader) -> Result<(), ApiError> {
    match reader.integer("n", i64::MIN..=i64::MAX)? {
        Some(n) if n != 1 => Err(reader.error("n", "must be 1 in a session: fork it for several answers")),
        _ => Ok(()),
    }
}

/// Unix time in seconds.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
