//! Agentic workload: parallel branches over a shared prompt prefix, with tool calls between turns.
//!
//! 1. A task starts with the tool definitions (shared by all tasks) and a long task prompt (shared
//!    by its branches).
//! 2. Three to eight branches start at once; each alternates model turns and tool results.
//! 3. A branch whose context is full, or whose request failed, restarts from its initial prompt.
//!
//! Exercises prefix caching and shared-prefix (cascade) attention. Deterministic in the seed,
//! whatever the completion order.

use crate::workload::rng::WorkloadRng;
use crate::workload::text::{Answer, Passage};
use crate::workload::{At, Job, Part, Prompt, SECOND, SeededParams, Workload};
use kvasir_engine::{Finish, Summary};
use std::{collections::HashMap, ops::Range};

/// Agents: each task forks several branches from a long shared prefix; each branch loops over tool
/// calls.
///
/// Every branch has its own random generator and tag range, so the requests do not depend on
/// completion order.
#[derive(Debug)]
pub struct Agents {
    params: SeededParams,
    rng: WorkloadRng,
    /// Number of tags allocated to branches so far.
    scheduled: u64,
    tasks: u64,
    now: f64,
    /// Branches of the newest task whose first request was not issued yet.
    waiting: Vec<Branch>,
    live: HashMap<u64, Branch>,
}

#[derive(Clone, Debug)]
struct Branch {
    task: u64,
    rng: WorkloadRng,
    /// Tags of the remaining requests.
    tags: Range<u64>,
    parts: Vec<Part>,
    length: u32,
    answer: Answer,
}

/// Branches per task (range) and, below, calls per branch; the arrival rate uses their means.
const BRANCHES: (u32, u32) = (3, 8);
const CALLS: (u32, u32) = (2, 6);
/// Mean duration of a tool call, in seconds.
pub(super) const TOOL: f64 = 0.8;
/// Median task prompt length, in multiples of the median tool result.
///
/// Tool definitions are half as long. Both are capped so that a quarter of a small context is left
/// for the branches.
const TRUNK: u32 = 10;
/// Number of initial prompt parts: tool definitions, task prompt, branch prompt.
const BEGINNING: usize = 3;

impl Agents {
    /// Creates the workload; `params.seed` determines all requests.
    pub fn new(params: SeededParams) -> Self {
        let rng = WorkloadRng::new(params.seed);
        Self { rng, params, scheduled: 0, tasks: 0, now: 0.0, waiting: Vec::new(), live: HashMap::new() }
    }

    fn text(&self, number: u64) -> u64 {
        self.params.seed.wrapping_mul(1_000_003).wrapping_add(number)
    }

    /// Creates a task: shared tool definitions, its task prompt, and one private prompt per branch.
    fn begin_task(&mut self) {
        let per_task = f64::from(BRANCHES.0 + BRANCHES.1) * f64::from(CALLS.0 + CALLS.1) / 4.0;
        self.now += self.rng.gamma(self.params.burstiness, SECOND * per_task / self.params.rate);
        let task = self.tasks;
        self.tasks += 1;
        let room = self.params.max_model_len;
        let tools = (TRUNK * self.params.prompt_tokens / 2).min(room / 4);
        let trunk = self.rng.length(TRUNK * self.params.prompt_tokens, 0.4).min(room / 2);
        for branch in 0..self.rng.between(BRANCHES.0, BRANCHES.1) {
            let own = self.rng.between(8, 32).min((room / 8).max(1));
            let text = |number, to| Part::Text(Passage { text: number, from: 0, to });
            let parts = vec![
                text(self.text(0), tools),
                text(self.text(1 + (task << 8)), trunk),
                text(self.text(2 + (task << 8) + u64::from(branch)), own),
            ];
            let calls = u64::from(self.rng.between(CALLS.0, CALLS.1));
            let tags = self.scheduled..self.params.requests.min(self.scheduled + calls);
            let rng = WorkloadRng::new(self.rng.bits());
            self.scheduled = tags.end;
            if !tags.is_empty() {
                let length = tools + trunk + own;
                self.waiting.push(Branch { task, rng, tags, parts, length, answer: Answer(0) });
            }
        }
        self.waiting.reverse();
    }

    /// The next request of a branch, or `None` if it has no tags left.
    fn job(&mut self, mut branch: Branch, at: u64) -> Option<Job> {
        let tag = branch.tags.next()?;
        let room = self.params.max_model_len.saturating_sub(branch.length).max(1);
        let outputs = branch.rng.length(self.params.output_tokens, 0.5).min(room).min(Answer::LONGEST);
        branch.answer = Answer::new(tag, outputs);
        let prompt = Prompt::Parts(branch.parts.clone());
        let mut job = Job::new(At::Time(at), prompt, branch.answer, outputs, tag);
        job.key = branch.task % 64;
        self.live.insert(tag, branch);
        Some(job)
    }
}

impl Branch {
    /// Truncates the conversation to the initial prompt.
    fn begin(&mut self) {
        self.parts.truncate(BEGINNING);
        self.length = self.parts.iter().map(Part::len).sum::<usize>() as u32;
    }
}

impl Workload for Agents {
    fn title(&self) -> String {
        let SeededParams { requests, rate, burstiness, seed, .. } = self.params;
        format!("{requests} turns of agents, {rate} per second, burstiness {burstiness}, seed {seed}")
    }

    fn total(&self) -> u64 {
        self.params.requests
    }

    fn next(&mut self) -> Option<Job> {
        if self.waiting.is_empty() {
            if self.scheduled == self.params.requests {
                return None;
            }
            self.begin_task();
        }
        let branch = self.waiting.pop()?;
        self.job(branch, self.now as u64)
    }

    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<Job>) {
        let Some(mut branch) = self.live.remove(&summary.tag) else { return };
        let result = branch.rng.length(self.params.prompt_tokens, 0.9);
        let answered = matches!(summary.finish, Finish::Eos | Finish::MaxTokens);
        // The server's chat template may add tokens to the prompt.
        let length = branch.length.max(summary.prompt) + summary.outputs + result;
        if answered && length < self.params.max_model_len {
            let text = self.text(!summary.tag);
            branch.parts.push(Part::Said(branch.answer, summary.outputs));
            branch.parts.push(Part::Text(Passage { text, from: 0, to: result }));
            branch.length = length;
        } else {
            branch.begin();
        }
        let at = now + (branch.rng.exponential(TOOL) * SECOND) as u64;
        more.extend(self.job(branch, at));
    }
}
