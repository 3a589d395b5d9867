//! `kvasir bench serve`: an HTTP load generator for any server with OpenAI's streaming API.
//!
//! Times are taken when bytes arrive. An event is a chunk that contains text. Inter-token latency
//! (ITL) is the gap between the events of one answer; events that arrive in one read have a gap of
//! zero. Token counts come from the server's usage object, or from events where it sends none.
//!
//! The driver is single threaded: it sends due requests up to the concurrency limit, and feeds
//! completions back to the workload, which may add follow-up requests.

pub(crate) mod client;
pub(crate) mod events;
pub(crate) mod http;
pub(crate) mod prompt;
pub(crate) mod report;
pub(crate) mod tls;

pub use crate::load::client::HttpClient;
pub use crate::load::http::Address;
pub use crate::load::prompt::Route;
pub use crate::load::report::{Goal, Report};
pub use crate::load::tls::TrustedRoots;

use crate::load::prompt::AnswerTexts;
use crate::load::report::Count;
use crate::load::report::Ended;
use crate::workload::{At, Job, Workload};
use kvasir_engine::{Finish, Summary};
use serde_json::{Map, Value};
use std::{cell::RefCell, collections::BTreeMap, io, rc::Rc, time::Duration};
use tokio::{
    sync::mpsc,
    task::LocalSet,
    time::{Instant, sleep_until},
};

/// The server under load and the request parameters.
#[derive(Clone, Debug)]
pub struct Target {
    /// Server address.
    pub address: Address,
    /// Trusted root certificates, required for `https`.
    pub roots: Option<TrustedRoots>,
    /// API route.
    pub route: Route,
    /// Model name; by default the first one of `/v1/models`.
    pub model: Option<String>,
    /// API key, sent as a bearer token.
    pub key: Option<String>,
    /// Extra fields merged into every request body; they override the benchmark's own.
    pub extra: Map<String, Value>,
}

/// Load level and success criteria.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pressure {
    /// Maximum concurrent requests. Further due requests queue in the client.
    pub concurrency: usize,
    /// Service-level objective that an answer must meet to count as goodput.
    pub goal: Goal,
    /// Whether answers continue past EOS up to `max_tokens`.
    pub ignore_eos: bool,
}

/// Connects to `target` and reads its model list. `timeout` also bounds every later answer.
pub fn meet(target: Target, timeout: Duration) -> io::Result<HttpClient> {
    runtime()?.block_on(HttpClient::meet(target, timeout))
}

/// Sends one `GET` request; returns the status and the body, of which a long one may be cut.
pub fn get(target: Target, path: &str, limit: Duration) -> io::Result<(u16, Vec<u8>)> {
    runtime()?.block_on(HttpClient::fetch(target, path, limit))
}

/// Runs `workload` against the server to its end. `progress` receives the number of ended requests.
pub fn measure(
    talker: HttpClient,
    pressure: Pressure,
    workload: &mut dyn Workload,
    progress: &mut dyn FnMut(u64),
) -> io::Result<Report> {
    let driver = Driver::new(talker, pressure, workload);
    Ok(LocalSet::new().block_on(&runtime()?, driver.drive(progress)))
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

struct Driver<'a> {
    talker: Rc<HttpClient>,
    pressure: Pressure,
    workload: &'a mut dyn Workload,
    started: Instant,
    /// The workload's next request that does not depend on an earlier answer.
    ahead: Option<Job>,
    /// Follow-up requests, ordered by due time and then by creation.
    coming: BTreeMap<(u64, u64), Job>,
    order: u64,
    under_way: usize,
    count: Rc<RefCell<Count>>,
    answers: AnswerTexts,
}

impl<'a> Driver<'a> {
    fn new(talker: HttpClient, pressure: Pressure, workload: &'a mut dyn Workload) -> Self {
        Self {
            ahead: workload.next(),
            talker: Rc::new(talker),
            pressure,
            workload,
            started: Instant::now(),
            coming: BTreeMap::new(),
            order: 0,
            under_way: 0,
            count: Rc::default(),
            answers: AnswerTexts::default(),
        }
    }

    async fn drive(mut self, progress: &mut dyn FnMut(u64)) -> Report {
        let (tell, mut hear) = mpsc::unbounded_channel();
        let mut ended = 0;
        loop {
            let due = self.send_due(&tell);
            if self.under_way == 0 && due.is_none() {
                break;
            }
            tokio::select! {
                done = hear.recv(), if self.under_way > 0 => {
                    if let Some((job, done)) = done {
                        self.take(&job, done);
                        ended += 1;
                        progress(ended);
                    }
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
        }
        let title = self.workload.title();
        let server = self.talker.describe();
        let count = self.count.borrow();
        count.report(title, server, self.pressure, self.started.elapsed())
    }

    /// Sends all due requests within the concurrency limit.
    ///
    /// Returns the next due time, or `None` if the limit is reached or nothing is left.
    fn send_due(&mut self, tell: &mpsc::UnboundedSender<(Job, Ended)>) -> Option<Instant> {
        while self.under_way < self.pressure.concurrency {
            let at = self.next_time()?;
            let due = self.started + Duration::from_nanos(at);
            if due > Instant::now() {
                return Some(due);
            }
            let Some(job) = self.next_job(at) else { break };
            self.under_way += 1;
            let body = self.talker.body(&job, &self.answers, self.pressure.ignore_eos);
            let (talker, count, tell) = (self.talker.clone(), self.count.clone(), tell.clone());
            let started = self.started;
            tokio::task::spawn_local(async move {
                let done = talker.complete(&body, started, due, &count).await;
                // The driver outlives every task that it spawned, so this send cannot fail.
                let _ = tell.send((job, done));
            });
        }
        None
    }

    fn next_time(&self) -> Option<u64> {
        let ahead = self.ahead.as_ref().map(|job| time(job.at));
        let follow = self.coming.keys().next().map(|(at, _)| *at);
        ahead.into_iter().chain(follow).min()
    }

    fn next_job(&mut self, at: u64) -> Option<Job> {
        match self.coming.first_entry() {
            Some(entry) if entry.key().0 <= at => Some(entry.remove()),
            _ => {
                let job = self.ahead.take();
                self.ahead = self.workload.next();
                job
            }
        }
    }

    fn take(&mut self, job: &Job, done: Ended) {
        self.under_way -= 1;
        self.count.borrow_mut().ended(&done);
        self.answers.keep(job.answer, done.text);
        let finish = if done.fault.is_none() { Finish::MaxTokens } else { Finish::Aborted };
        let summary = Summary {
            prompt: done.prompt as u32,
            outputs: done.outputs as u32,
            cached: done.cached as u32,
            ..Summary::empty(job.tag, finish)
        };
        let mut more = Vec::new();
        let now = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.workload.ended(&summary, now, &mut more);
        for job in more {
            self.order += 1;
            self.coming.insert((time(job.at), self.order), job);
        }
    }
}

/// A remote server's steps are not visible, so requests scheduled by step are due at once.
fn time(at: At) -> u64 {
    match at {
        At::Time(at) => at,
        At::Step(_) => 0,
    }
}
