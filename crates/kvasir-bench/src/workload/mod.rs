//! Workload generators and scenario files: prompts, answers and arrival times of requests.
//!
//! The same workloads drive the simulator, the offline benchmark and the HTTP load generator.
//! Prompts are made of passages of synthetic texts and of earlier answers, so that prefix caches
//! see realistic sharing.
//!
//! Equal seeds give equal workloads, whatever the completion order; guarded by `tests/sim.rs`.

pub(crate) mod agent_sessions;
pub(crate) mod agents;
pub(crate) mod chat;
pub(crate) mod offline;
pub(crate) mod poisson;
pub(crate) mod rng;
pub(crate) mod scenario;
pub(crate) mod steady;
pub(crate) mod text;
pub(crate) mod tool_loop;
pub(crate) mod twister;

pub use crate::workload::agent_sessions::{AgentProfile, AgentSessions};
pub use crate::workload::agents::Agents;
pub use crate::workload::chat::Chat;
pub use crate::workload::offline::Offline;
pub use crate::workload::offline::lists as offline_lists;
pub use crate::workload::poisson::Poisson;
pub use crate::workload::rng::WorkloadRng;
pub use crate::workload::scenario::Scenario;
pub use crate::workload::steady::Steady;
pub use crate::workload::text::{Answer, EOS, Passage, ScriptedModel};

use kvasir_engine::Summary;
use kvasir_kv::Token;

/// Arrival of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At this time in nanoseconds.
    Time(u64),
    /// Before this step, counted from 0; for scenario files.
    Step(u64),
}

/// Prompt of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Passages and earlier answers, concatenated.
    Parts(Vec<Part>),
    /// Explicit token ids.
    Tokens(Vec<Token>),
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A passage of a synthetic text.
    Text(Passage),
    /// The first tokens of an earlier answer.
    Said(Answer, u32),
}

impl Prompt {
    /// Length in tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Whether the prompt has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Materializes the token ids.
    pub fn tokens(self) -> Vec<Token> {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Parts(parts) => {
                let mut out = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
                for part in parts {
                    match part {
                        Part::Text(passage) => out.extend(passage.tokens()),
                        Part::Said(answer, n) => out.extend((0..n).map(|i| answer.token(i))),
                    }
                }
                out
            }
        }
    }
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Self::Text(passage) => (passage.to - passage.from) as usize,
            Self::Said(_, n) => *n as usize,
        }
    }
}

/// A request to submit.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Arrival time or step.
    pub at: At,
    /// Prompt.
    pub prompt: Prompt,
    /// The scripted answer, used by devices that do not compute a model.
    pub answer: Answer,
    /// Maximum number of output tokens.
    pub max_tokens: u32,
    /// Scheduling priority; higher runs first under `--order priority`.
    pub priority: i32,
    /// Fairness key (tenant) under `--order fair`.
    pub key: u64,
    /// Session id, for routing by session affinity.
    pub session: Option<u64>,
    /// Output tokens after which the client disconnects.
    pub abort_after: Option<u32>,
    /// The workload's id for the request, reported back in [`Workload::ended`].
    pub tag: u64,
}

impl Job {
    /// An independent request, without disconnect. Requests with an even `tag` share one client key,
    /// so that `--order fair` has a heavy client to throttle.
    pub fn new(at: At, prompt: Prompt, answer: Answer, max_tokens: u32, tag: u64) -> Self {
        Self { at, prompt, answer, max_tokens, priority: 0, key: 0, session: None, abort_after: None, tag }
            .of_owner(if tag.is_multiple_of(2) { 0 } else { tag })
    }

    /// The request as part of a conversation.
    pub fn of_session(self, session: u64) -> Self {
        Self { session: Some(session), ..self }
    }

    /// The request under the key and the priority of a client: there are 64 keys, and the priorities
    /// 0 to 2.
    pub fn of_owner(self, owner: u64) -> Self {
        Self { priority: (owner % 3) as i32, key: owner % 64, ..self }
    }
}

/// A source of requests.
///
/// Requests independent of any answer come from [`Workload::next`] in order of time. Follow-up
/// requests come from [`Workload::ended`].
pub trait Workload {
    /// Name and parameters, for reports.
    fn title(&self) -> String;
    /// Number of requests in total.
    fn total(&self) -> u64;
    /// The next request that does not depend on an answer, or `None` if there are no more.
    fn next(&mut self) -> Option<Job>;
    /// Reports a completed request; follow-up requests are pushed to `more`.
    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<Job>);
    /// Display name of a request, if it has one.
    fn name(&self, tag: u64) -> Option<&str> {
        let _ = tag;
        None
    }
}

/// Parameters common to the seeded workloads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeededParams {
    /// Number of requests.
    pub requests: u64,
    /// Mean arrival rate, in requests per second.
    pub rate: f64,
    /// Gamma shape of the arrival gaps: 1 is Poisson, less is burstier.
    pub burstiness: f64,
    /// Median length of a user message, in tokens.
    pub prompt_tokens: u32,
    /// Median length of an answer, in tokens.
    pub output_tokens: u32,
    /// Maximum context length, prompt and answer together.
    pub max_model_len: u32,
    /// Share of an answer that repeats its earlier passages.
    pub repetition: f64,
    /// Random seed.
    pub seed: u64,
}

impl SeededParams {
    /// An answer, as [`Answer::new`].
    fn answer(&self, number: u64, length: u32) -> Answer {
        Answer::new(number, length).repeating(self.repetition)
    }
}

const SECOND: f64 = 1e9;
