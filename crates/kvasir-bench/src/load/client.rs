//! HTTP client of the load generator: keep-alive connection pool, request bodies and timed
//! streaming.

use crate::load::Target;
use crate::load::events::{Event, take_events};
use crate::load::http::{Body, Connection, Head};
use crate::load::prompt::{AnswerTexts, IDS, Route, fields};
use crate::load::report::{Count, Ended};
use crate::workload::Job;
use kvasir_kv::Token;
use serde_json::{Map, Value, json};
use std::{cell::RefCell, io, time::Duration};
use tokio::time::{Instant, timeout};

/// Maximum bytes kept of an error response body.
const LONGEST_ERROR: usize = 16 << 10;

/// A client for one server, with a pool of keep-alive connections.
pub struct HttpClient {
    target: Target,
    model: String,
    context: Option<u32>,
    /// Exclusive upper bound of token ids in prompts.
    ids: Token,
    timeout: Duration,
    idle: RefCell<Vec<Connection>>,
}

impl HttpClient {
    /// Queries `/v1/models` for the model name, context length and vocabulary size.
    pub(super) async fn meet(target: Target, timeout: Duration) -> io::Result<Self> {
        let model = target.model.clone().unwrap_or_default();
        let idle = RefCell::default();
        let mut talker = Self { target, model, context: None, ids: IDS, timeout, idle };
        let (status, text) = talker.get("/v1/models").await?;
        let list: Value = serde_json::from_slice(&text).unwrap_or_default();
        let mut models = list["data"].as_array().into_iter().flatten();
        let named = talker.target.model.as_deref();
        let model = models.find(|model| named.is_none_or(|name| model["id"] == name));
        let fact = |name: &str| u32::try_from(model?[name].as_u64()?).ok();
        talker.context = fact("max_model_len");
        talker.ids = fact("vocab_size").map_or(IDS, |size| size.clamp(1, IDS));
        if named.is_none() {
            let name = model.and_then(|model| model["id"].as_str());
            talker.model = name.map(str::to_owned).ok_or_else(|| {
                io::Error::other(format!(
                    "GET /v1/models gave {status} and no model; name one with --model-name"
                ))
            })?;
        }
        Ok(talker)
    }

    /// Status and body of one `GET` request; of a long body the first [`LONGEST_ERROR`] bytes or some more.
    pub(super) async fn fetch(target: Target, path: &str, limit: Duration) -> io::Result<(u16, Vec<u8>)> {
        let idle = RefCell::default();
        let client = Self { target, model: String::new(), context: None, ids: IDS, timeout: limit, idle };
        timeout(limit, client.get(path)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Maximum context length in tokens, if the server reports it.
    pub fn context(&self) -> Option<u32> {
        self.context
    }

    /// Server description for the report.
    pub(super) fn describe(&self) -> Value {
        let Target { address, route, .. } = &self.target;
        json!({"url": address.url(), "route": route.path(), "model": self.model, "context": self.context})
    }

    /// Serializes the request body of a job.
    pub(super) fn body(&self, job: &Job, answers: &AnswerTexts, ignore_eos: bool) -> Vec<u8> {
        let mut body = Map::new();
        body.insert("model".into(), self.model.as_str().into());
        let prompt = fields(self.target.route, &job.prompt, answers, self.ids);
        body.extend(prompt.into_iter().map(|(k, v)| (k.to_owned(), v)));
        body.insert("max_tokens".into(), job.max_tokens.into());
        body.insert("temperature".into(), 0.into());
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
        if ignore_eos {
            body.insert("ignore_eos".into(), true.into());
        }
        body.extend(self.target.extra.clone());
        Value::Object(body).to_string().into_bytes()
    }

    fn head(&self, method: &str, path: &str, length: usize) -> String {
        let Target { address, key, .. } = &self.target;
        let key = key.as_ref().map_or_else(String::new, |key| format!("Authorization: Bearer {key}\r\n"));
        format!(
            "{method} {}{path} HTTP/1.1\r\nHost: {}\r\n{key}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n",
            address.path, address.authority
        )
    }

    async fn get(&self, path: &str) -> io::Result<(u16, Vec<u8>)> {
        let mut connection = self.open().await?;
        let head = connection.request(self.head("GET", path, 0).as_bytes()).await?;
        let text = rest(&mut connection, head).await?;
        Ok((head.status, text))
    }

    /// Sends one request and records every event as it arrives. Failures are returned in
    /// `Ended::fault`.
    pub(super) async fn complete(
        &self,
        body: &[u8],
        run: Instant,
        due: Instant,
        count: &RefCell<Count>,
    ) -> Ended {
        let sent = Instant::now();
        let mut ended = Ended { queued: sent.saturating_duration_since(due), ..Ended::default() };
        count.borrow_mut().began();
        let went = timeout(self.timeout, self.stream(body, run, sent, count, &mut ended)).await;
        ended.total = sent.elapsed();
        match went {
            Ok(Ok(())) => {}
            Ok(Err(error)) => ended.fault = Some(("connection".into(), error.to_string())),
            Err(_) => ended.fault = Some(("timeout".into(), format!("longer than {:?}", self.timeout))),
        }
        if ended.fault.is_none() && ended.ttft.is_none() {
            ended.fault = Some(("empty".into(), "the answer has no text".into()));
        }
        ended
    }

    async fn open(&self) -> io::Result<Connection> {
        Connection::open(&self.target.address, self.target.roots.as_ref()).await
    }

    async fn connection(&self) -> io::Result<Connection> {
        let kept = self.idle.borrow_mut().pop();
        match kept {
            Some(connection) => Ok(connection),
            None => self.open().await,
        }
    }

    async fn stream(
        &self,
        body: &[u8],
        run: Instant,
        sent: Instant,
        count: &RefCell<Count>,
        ended: &mut Ended,
    ) -> io::Result<()> {
        let mut request = self.head("POST", self.target.route.path(), body.len()).into_bytes();
        request.extend_from_slice(body);
        let (mut connection, head) = self.begin(&request).await?;
        if head.status != 200 {
            let text = rest(&mut connection, head).await?;
            let text = String::from_utf8_lossy(&text).chars().take(300).collect();
            ended.fault = Some((head.status.to_string(), text));
            return Ok(());
        }
        let (mut framing, mut text) = (Body::new(head), Vec::new());
        let keep_text = self.target.route != Route::Ids;
        let (mut events, mut counted, mut last) = (0, None, None);
        while connection.more(&mut framing, &mut text).await? {
            let now = Instant::now();
            let mut count = count.borrow_mut();
            take_events(&mut text, |event| match event {
                Event::Text(text) => {
                    events += 1;
                    match last.replace(now) {
                        None => ended.ttft = Some(now - sent),
                        Some(before) => count.gap(now - before),
                    }
                    count.event(now - run);
                    if keep_text {
                        ended.text.push_str(&text);
                    }
                }
                Event::Usage { prompt, output, cached } => {
                    (ended.prompt, ended.cached) = (prompt, cached);
                    counted = Some(output);
                }
                Event::Failed(why) => ended.fault = Some(("stream".into(), why)),
                Event::Nothing => {}
            });
        }
        ended.outputs = counted.unwrap_or(events);
        if head.keeps && framing.is_over() {
            self.idle.borrow_mut().push(connection);
        }
        Ok(())
    }

    /// Sends over a pooled connection. If that fails (closed by the server), retries once over a
    /// new one.
    async fn begin(&self, request: &[u8]) -> io::Result<(Connection, Head)> {
        let mut connection = self.connection().await?;
        match connection.request(request).await {
            Ok(head) => Ok((connection, head)),
            Err(_) => {
                let mut connection = self.open().await?;
                let head = connection.request(request).await?;
                Ok((connection, head))
            }
        }
    }
}

/// Reads a short body, up to `LONGEST_ERROR` bytes.
async fn rest(connection: &mut Connection, head: Head) -> io::Result<Vec<u8>> {
    let (mut framing, mut text) = (Body::new(head), Vec::new());
    while text.len() < LONGEST_ERROR && connection.more(&mut framing, &mut text).await? {}
    Ok(text)
}
