//! Who asks what, and when: workloads made from a seed, and scenarios written down.

mod agents;
mod chat;
mod dice;
mod offline;
mod poisson;
mod scenario;
mod steady;
mod text;
mod twister;

pub use agents::Agents;
pub use chat::Chat;
pub use dice::Dice;
pub use offline::Offline;
pub(crate) use offline::lists as offline_lists;
pub use poisson::Poisson;
pub use scenario::Scenario;
pub use steady::Steady;
pub use text::{Answer, EOS, Passage, Speaker};

use kvasir_engine::Summary;
use kvasir_kv::Token;

/// When a request comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// At this nanosecond.
    Time(u64),
    /// Before this step, counted from 0.
    Step(u64),
}

/// Where a request's prompt comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Passages of texts, and answers, one after another.
    Parts(Vec<Part>),
    /// These tokens.
    Tokens(Vec<Token>),
}

/// A part of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A passage of a text.
    Text(Passage),
    /// The first tokens of an answer.
    Said(Answer, u32),
}

impl Prompt {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Parts(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tokens.
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

/// One request to come.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// When.
    pub at: At,
    /// What it asks.
    pub prompt: Prompt,
    /// What it is answered.
    pub answer: Answer,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// Higher goes first under `--order priority`.
    pub priority: i32,
    /// Whose turn it takes under `--order fair`.
    pub key: u64,
    /// Its client leaves after so many tokens of the answer.
    pub abort_after: Option<u32>,
    /// The workload's own number for it: what [`Workload::ended`] is told.
    pub tag: u64,
}

impl Job {
    /// A request with nothing special about it.
    pub fn new(at: At, prompt: Prompt, answer: Answer, max_tokens: u32, tag: u64) -> Self {
        Self { at, prompt, answer, max_tokens, priority: 0, key: 0, abort_after: None, tag }
    }
}

/// A source of requests. Those that do not depend on an answer come from [`Workload::next`] in rising order of time; what
/// follows an answer comes from [`Workload::ended`].
pub trait Workload {
    /// Its name and parameters, for people.
    fn title(&self) -> String;
    /// How many requests there will be, if that is known.
    fn total(&self) -> u64;
    /// The next request that waits for nobody's answer.
    fn next(&mut self) -> Option<Job>;
    /// A request has ended; what follows is pushed to `more`.
    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<Job>);
    /// The name of a request, where it has one.
    fn name(&self, tag: u64) -> Option<&str> {
        let _ = tag;
        None
    }
}

/// What the seeded workloads have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Knobs {
    /// How many requests.
    pub requests: u64,
    /// Requests per second.
    pub rate: f64,
    /// Shape of the gaps between arrivals: 1 is Poisson, less is burstier.
    pub burstiness: f64,
    /// Median length of what a user writes.
    pub prompt_tokens: u32,
    /// Median length of an answer.
    pub output_tokens: u32,
    /// Longest prompt and answer together.
    pub max_model_len: u32,
    /// Seed.
    pub seed: u64,
}

const SECOND: f64 = 1e9;
