//! Test server: requests enter at the router without sockets, unless a test listens on one.

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Request, header},
    response::Response,
};
use futures_util::StreamExt;
use kvasir_chat::ChatModel;
use kvasir_engine::{Chunked, Core, Engine, Limits, Mixing, Order, SuffixDrafter};
use kvasir_exec::Executor;
use kvasir_formats::TextFiles;
use kvasir_kv::{CacheConfig, CacheKind, build};
use kvasir_sample::Sampling;
use kvasir_serve::{
    StepFeed,
    host::{AdmissionLimits, Host, KvExports},
    http::{
        AccessControl, ApiKey, App, ClientRules, Keys, LimitListener, Live, Loading, RankConfig, SlotFiles,
        serve, start_probes,
    },
    metrics::Names,
    model::{Card, Facts, Model},
    report::Reports,
};
use kvasir_sim::Toy;
use serde_json::Value;
use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    net::SocketAddr,
    path::Path,
    pin::pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};
use tokio::{runtime::Runtime, task::JoinSet};
use tower_service::Service;

const LONGEST: u32 = 1000;

/// An executor that can run on the engine's thread.
pub(crate) trait Device: Executor<Pending: Send> + Send + 'static {}

impl<E: Executor<Pending: Send> + Send + 'static> Device for E {}

pub(crate) struct Server {
    app: Arc<App>,
    router: Router,
    runtime: Runtime,
}

impl Server {
    /// A server with a cache of this kind and size, and these API keys.
    pub(crate) fn start(kind: CacheKind, slots: u32, keys: &[&str]) -> Self {
        Self::on(Toy::new(), kind, slots, keys)
    }

    /// A server on this device.
    pub(crate) fn on(device: impl Device, kind: CacheKind, slots: u32, keys: &[&str]) -> Self {
        Self::watched(device, kind, slots, keys, Duration::from_secs(3600))
    }

    /// A server that counts as stalled when a step takes longer than `step_timeout`.
    pub(crate) fn watched(
        device: impl Device,
        kind: CacheKind,
        slots: u32,
        keys: &[&str],
        step_timeout: Duration,
    ) -> Self {
        let key = |secret: &&str| ApiKey { name: None, secret: secret.to_string(), is_admin: false };
        let keys = Keys::new(keys.iter().map(key).collect());
        Self::behind(device, kind, slots, AccessControl { keys, ..AccessControl::default() }, step_timeout)
    }

    /// A server with these access rules.
    pub(crate) fn behind(
        device: impl Device,
        kind: CacheKind,
        slots: u32,
        access: AccessControl,
        step_timeout: Duration,
    ) -> Self {
        Self::built(device, kind, slots, access, step_timeout, model(LONGEST.min(slots), None), None)
    }

    /// A server of 512 slots, whose model this changes.
    pub(crate) fn serving(change: impl FnOnce(Model) -> Model) -> Self {
        let (hour, model) = (Duration::from_secs(3600), change(model(512, None)));
        Self::built(Toy::new(), CacheKind::Radix, 512, AccessControl::default(), hour, model, None)
    }

    /// A server with room for the K/V of 1024 tokens and with these keys, which saves slots in
    /// `directory`.
    pub(crate) fn saving_slots(directory: &Path, kind: CacheKind, keys: Vec<ApiKey>) -> Self {
        let access = AccessControl { keys: Keys::new(keys), ..AccessControl::default() };
        let (hour, model) = (Duration::from_secs(3600), model(LONGEST, None));
        Self::built(Toy::new(), kind, 1024, access, hour, model, Some(directory))
    }

    /// A server with this drafter of speculative decoding.
    pub(crate) fn drafting(drafter: &'static str, slots: u32) -> Self {
        let (hour, model) = (Duration::from_secs(3600), model(LONGEST.min(slots), Some(drafter)));
        Self::built(Toy::new(), CacheKind::Radix, slots, AccessControl::default(), hour, model, None)
    }

    fn built(
        device: impl Device,
        kind: CacheKind,
        slots: u32,
        access: AccessControl,
        step_timeout: Duration,
        model: Model,
        slot_directory: Option<&Path>,
    ) -> Self {
        let blocks = kind.is_block_based();
        let limits = Limits { max_model_len: LONGEST, prefix_cache: blocks, ..Limits::default() };
        let cache = build(kind, &CacheConfig::new(slots)).unwrap();
        let policy = Box::new(Chunked::new(256, Mixing::Off));
        let (feed, observer) = StepFeed::new();
        let core = Core::new(limits, Order::Fcfs, policy, cache);
        let engine = Engine::new(core, device, || 0).observe(observer);
        let mut engine = match model.facts.drafter {
            Some("suffix") => engine.draft(Box::new(SuffixDrafter::new(8))).unwrap(),
            _ => engine,
        };
        let slot_files = slot_directory
            .map(|directory| SlotFiles::new(directory.to_owned(), 7, KvExports::of(&mut engine).unwrap()));
        let reports = Reports::start(None, None).unwrap();
        let host = Host::start(engine, AdmissionLimits::default(), reports, step_timeout).unwrap();
        let ranks = RankConfig { max_num_seqs: limits.max_num_seqs, ..RankConfig::default() };
        let live = Live { feed, ranks, setup: Value::Null };
        let rules = ClientRules { slot_files, ..ClientRules::default() };
        let app = App::new(Arc::new(model), host, access, live, Names::Own, rules);
        Self { router: app.router(), app, runtime: Runtime::new().unwrap() }
    }

    /// Serves on a socket with this connection limit.
    pub(crate) fn listen(&self, places: usize) -> SocketAddr {
        let listener = self.listener(places);
        let address = listener.address().unwrap();
        self.runtime.spawn(serve(self.app.clone(), listener, pending(), pending()));
        address
    }

    /// Serves probes on a socket with this connection limit.
    pub(crate) fn listen_for_probes(&self, places: usize) -> SocketAddr {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let probes = start_probes(address, places, Duration::from_secs(30)).unwrap();
        let address = probes.address();
        self.runtime.block_on(probes.serve_app(self.app.clone()));
        address
    }

    /// Listens in the state in which the model loads, until `finish_loading`.
    pub(crate) fn listen_loading(&self) -> (SocketAddr, Loading) {
        let listener = self.listener(4);
        let address = listener.address().unwrap();
        let _inside = self.runtime.enter();
        (address, Loading::start(listener))
    }

    /// Serves on a socket of `listen_loading`.
    pub(crate) fn finish_loading(&self, loading: Loading) {
        let listener = self.runtime.block_on(loading.finish()).unwrap();
        self.runtime.spawn(serve(self.app.clone(), listener, pending(), pending()));
    }

    fn listener(&self, places: usize) -> LimitListener {
        let _inside = self.runtime.enter();
        LimitListener::open(([127, 0, 0, 1], 0).into(), places, None).unwrap()
    }

    /// Concurrent clients that disconnect after a number of response pieces; with 0, before any.
    pub(crate) fn leave(&self, path: &str, asks: Vec<(Value, usize)>) {
        let mut clients = JoinSet::new();
        for (body, pieces) in asks {
            let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
            let response = self.router.clone().call(request.body(Body::from(body.to_string())).unwrap());
            clients.spawn_on(leave_after(response, pieces), self.runtime.handle());
        }
        self.runtime.block_on(clients.join_all());
    }

    /// Status and headers of the response to a request without a body.
    pub(crate) fn head(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, HeaderMap) {
        let request = Request::builder().method(method).uri(path);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let response = self.router.clone().call(request.body(Body::empty()).unwrap());
        let Ok(answer) = self.runtime.block_on(response);
        (answer.status().as_u16(), answer.headers().clone())
    }

    fn request(&self, method: &str, path: &str, key: &str, body: &str) -> (u16, String) {
        let mut request = Request::builder().method(method).uri(path);
        if !key.is_empty() {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let mut router = self.router.clone();
        self.runtime.block_on(async move {
            let answer = router.call(request).await.unwrap();
            let status = answer.status().as_u16();
            let bytes = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
            (status, String::from_utf8(bytes.to_vec()).unwrap())
        })
    }

    pub(crate) fn send(&self, method: &str, path: &str, key: &str, body: &str) -> (u16, Value) {
        let (status, text) = self.request(method, path, key, body);
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.send("POST", path, "", &body.to_string())
    }

    /// Status of the response to a body with these headers.
    pub(crate) fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> u16 {
        self.response(path, headers, body).status().as_u16()
    }

    /// Fields of a body that the response names as ignored.
    pub(crate) fn ignored(&self, path: &str, body: &Value) -> Option<String> {
        self.header(path, body, "x-kvasir-ignored").1
    }

    /// Status of the response to a body, and one of its headers.
    pub(crate) fn header(&self, path: &str, body: &Value, name: &str) -> (u16, Option<String>) {
        let response = self.response(path, &[("content-type", "application/json")], body);
        let value = response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
        (response.status().as_u16(), value)
    }

    fn response(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response {
        let request =
            headers.iter().fold(Request::post(path), |request, (name, value)| request.header(*name, *value));
        let response = self.router.clone().call(request.body(Body::from(body.to_string())).unwrap());
        let Ok(response) = self.runtime.block_on(response);
        response
    }

    /// The lines of an NDJSON response.
    pub(crate) fn lines(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, text) = self.request("POST", path, "", &body.to_string());
        assert_eq!(status, 200, "{text}");
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, text) = self.request("POST", path, "", &body.to_string());
        assert_eq!(status, 200, "{text}");
        Self::parsed(&text)
    }

    /// The events of a stream that is read only after all of its answers have ended.
    pub(crate) fn late_events(&self, path: &str, body: &Value) -> Vec<Value> {
        let response = self.response(path, &[(header::CONTENT_TYPE.as_str(), "application/json")], body);
        assert_eq!(response.status(), 200);
        while self.app.host_open() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let bytes = self.runtime.block_on(to_bytes(response.into_body(), usize::MAX)).unwrap();
        Self::parsed(std::str::from_utf8(&bytes).unwrap())
    }

    fn parsed(text: &str) -> Vec<Value> {
        let lines = text.lines().filter_map(|line| line.strip_prefix("data: "));
        lines.filter(|line| *line != "[DONE]").map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}

/// A model with the Qwen tokenizer, this context length and this drafter.
pub(crate) fn model(max_len: u32, drafter: Option<&'static str>) -> Model {
    let facts = Facts {
        vocab: 500,
        max_len,
        max_new_tokens: None,
        context_shift: false,
        uses_marks: false,
        hidden: None,
        encoder: None,
        eos: vec![Toy::EOS],
        sampling: Sampling::default(),
        seed: None,
        card: Card::default(),
        drafter,
        prefix_salt: Box::new(|_| 0),
    };
    with_facts(facts)
}

/// A model with the Qwen tokenizer and these facts.
pub(crate) fn with_facts(facts: Facts) -> Model {
    let words = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvasir-formats/tests/data/tokenizers/qwen");
    let files = TextFiles::open(&words).unwrap();
    let tokenizer = Arc::new(files.tokenizer().unwrap());
    let chat = ChatModel::new(&files, tokenizer, facts.vocabulary()).unwrap();
    Model::new("tiny".into(), chat, facts)
}

/// Reads `pieces` pieces of a response and drops the rest. With 0, not even the head is awaited.
async fn leave_after(response: impl Future<Output = Result<Response, Infallible>>, pieces: usize) {
    let mut response = pin!(response);
    if pieces == 0 {
        let once = poll_fn(|context| {
            let _ = response.as_mut().poll(context);
            Poll::Ready(())
        });
        return once.await;
    }
    let Ok(answer) = response.await;
    assert_eq!(answer.status(), 200);
    let mut events = answer.into_body().into_data_stream();
    let mut left = pieces;
    while left > 0 && events.next().await.is_some() {
        left -= 1;
    }
}
