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
use crate::workload::tool_loop::{ThinkTime, ToolLoop, passage, text};
use crate::workload::{Job, SECOND, SeededParams, Workload};
use kvasir_engine::Summary;
use std::collections::HashMap;

/// Agents: each task forks several branches from a long shared prefix; each branch loops over tool
/// calls.
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
    turns: ToolLoop,
}

/// Branches per task (range) and, below, calls per branch; the arrival rate uses their means.
const BRANCHES: (u32, u32) = (3, 8);
const CALLS: (u32, u32) = (2, 6);
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
            let parts = vec![
                passage(text(&self.params, 0), tools),
                passage(text(&self.params, 1 + (task << 8)), trunk),
                passage(text(&self.params, 2 + (task << 8) + u64::from(branch)), own),
            ];
            let calls = u64::from(self.rng.between(CALLS.0, CALLS.1));
            let tags = self.scheduled..self.params.requests.min(self.scheduled + calls);
            let rng = WorkloadRng::new(self.rng.bits());
            self.scheduled = tags.end;
            if !tags.is_empty() {
                self.waiting.push(Branch { task, turns: ToolLoop::new(rng, tags, parts) });
            }
        }
        self.waiting.reverse();
    }

    /// The next request of a branch, or `None` if it has no tags left.
    fn job(&mut self, mut branch: Branch, at: u64) -> Option<Job> {
        let job = branch.turns.next(&self.params, branch.task, at)?;
        self.live.insert(job.tag, branch);
        Some(job)
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
        if !branch.turns.append(&self.params, summary, u32::MAX) {
            branch.turns.restart(BEGINNING, None);
        }
        let at = branch.turns.resumes_at(now, ThinkTime::ToolCall);
        more.extend(self.job(branch, at));
    }
}
