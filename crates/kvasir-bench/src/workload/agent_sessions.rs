//! Long agent sessions: many turns on a growing context, with concurrent sub-agents.
//!
//! 1. A session starts with the tool definitions (shared by all sessions) and its task.
//! 2. Each turn appends the answer and a tool result, and sends the whole context again.
//! 3. Some sessions start sub-agents after one of their turns. These have contexts of their own behind
//!    the shared tool definitions; the session continues when all of them are done.
//! 4. A context that is full, or whose request failed, is compacted to its beginning and a summary.
//!
//! Exercises prefix caching over long contexts. Deterministic in the seed, whatever the completion
//! order. The figures of a profile are guarded by the tests below.

use crate::workload::rng::WorkloadRng;
use crate::workload::tool_loop::{ThinkTime, ToolLoop, passage, text};
use crate::workload::{Job, SECOND, SeededParams, Workload};
use kvasir_engine::Summary;
use std::collections::HashMap;

/// Shape of the sessions. Lengths of results and answers are those of [`SeededParams`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgentProfile {
    /// Its name in titles.
    pub name: &'static str,
    /// Median turns of a session, without those of its sub-agents.
    pub turns: u32,
    /// Tokens of the tool definitions.
    pub tools: u32,
    /// Median tokens of the task.
    pub task: u32,
    /// Share of sessions with sub-agents.
    pub sub_agents: f64,
    /// Default of [`SeededParams::prompt_tokens`]: median tokens of a tool result.
    pub result: u32,
    /// Default of [`SeededParams::output_tokens`].
    pub answer: u32,
    /// Time between an answer and the agent's next request.
    pub(super) think_time: ThinkTime,
}

impl AgentProfile {
    /// Coding agents: median session of 43 turns, median request of 142,000 prompt tokens and 444 answer
    /// tokens, sub-agents in 44 % of the sessions.
    pub const CODING: Self = Self {
        name: "coding agents",
        turns: 43,
        tools: 16_000,
        task: 4000,
        sub_agents: 0.44,
        result: 3060,
        answer: 444,
        think_time: ThinkTime::ToolCall,
    };
    /// Agents that read far more than they write: 131 prompt tokens per answer token over a median of 33
    /// turns.
    pub const READING: Self = Self {
        name: "reading agents",
        turns: 33,
        tools: 8000,
        task: 2000,
        sub_agents: 0.0,
        result: 770,
        answer: 300,
        think_time: ThinkTime::ToolCall,
    };
    /// Agents with a user in the loop: most requests follow the last at once, some after minutes.
    pub const INTERACTIVE: Self = Self {
        name: "interactive agents",
        turns: 12,
        tools: 3000,
        task: 1000,
        sub_agents: 0.0,
        result: 400,
        answer: 120,
        think_time: ThinkTime::Interactive,
    };
}

/// Log standard deviation of the turns of a session.
const TURNS_SPREAD: f64 = 0.5;
/// Most turns of a session.
const MOST_TURNS: u32 = 1000;
/// Sub-agents of a session that has any, and turns of each.
const SUB_AGENTS: (u32, u32) = (1, 4);
const SUB_TURNS: (u32, u32) = (3, 12);
/// Parts of a context that survive compaction: tool definitions and task.
const BEGINNING: usize = 2;
/// Tokens of the summary that replaces a compacted context.
const SUMMARY: u32 = 2000;

/// Sessions of agents. See the [module](self).
#[derive(Debug)]
pub struct AgentSessions {
    params: SeededParams,
    profile: AgentProfile,
    rng: WorkloadRng,
    /// Number of tags allocated so far.
    scheduled: u64,
    sessions: u64,
    now: f64,
    live: HashMap<u64, Thread>,
    /// Sessions that wait for their sub-agents, with the number of those.
    joins: HashMap<u64, (Thread, usize)>,
}

/// A conversation of a session or of a sub-agent.
#[derive(Clone, Debug)]
struct Thread {
    session: u64,
    turns: ToolLoop,
    role: Role,
}

#[derive(Clone, Debug)]
enum Role {
    /// Starts its sub-agents after the request with the tag `after`.
    Session {
        after: u64,
        sub_agents: Vec<Thread>,
    },
    SubAgent,
}

impl AgentSessions {
    /// Creates the workload; `params.seed` determines all requests.
    pub fn new(params: SeededParams, profile: AgentProfile) -> Self {
        let rng = WorkloadRng::new(params.seed);
        let (live, joins) = (HashMap::new(), HashMap::new());
        Self { params, profile, rng, scheduled: 0, sessions: 0, now: 0.0, live, joins }
    }

    /// Mean number of requests of a session, sub-agents included.
    fn mean_requests(&self) -> f64 {
        let turns = f64::from(self.profile.turns) * (TURNS_SPREAD * TURNS_SPREAD / 2.0).exp();
        let mean = |(low, high): (u32, u32)| f64::from(low + high) / 2.0;
        turns + self.profile.sub_agents * mean(SUB_AGENTS) * mean(SUB_TURNS)
    }

    /// A conversation of up to `turns` requests, as far as the workload has any left.
    fn thread(&mut self, number: u64, task: u32, turns: u32, role: Role) -> Thread {
        let room = self.params.max_model_len;
        let tools = self.profile.tools.min(room / 4);
        let task = self.rng.length(task, 0.4).min(room / 4);
        let parts = vec![passage(text(&self.params, 0), tools), passage(text(&self.params, number), task)];
        let tags = self.scheduled..self.params.requests.min(self.scheduled + u64::from(turns));
        self.scheduled = tags.end;
        let rng = WorkloadRng::new(self.rng.bits());
        Thread { session: self.sessions, turns: ToolLoop::new(rng, tags, parts), role }
    }

    fn begin_session(&mut self) -> Thread {
        let gap = SECOND * self.mean_requests() / self.params.rate;
        self.now += self.rng.gamma(self.params.burstiness, gap);
        let AgentProfile { turns, task, sub_agents, .. } = self.profile;
        let texts = 1 + (self.sessions << 8);
        let turns = self.rng.length(turns, TURNS_SPREAD).min(MOST_TURNS);
        let mut session = self.thread(texts, task, turns, Role::SubAgent);
        let mut started = Vec::new();
        if self.rng.unit() < sub_agents {
            for i in 0..self.rng.between(SUB_AGENTS.0, SUB_AGENTS.1) {
                let turns = self.rng.between(SUB_TURNS.0, SUB_TURNS.1);
                let thread = self.thread(texts + 1 + u64::from(i), task / 4, turns, Role::SubAgent);
                started.extend(Some(thread).filter(|thread| !thread.turns.tags.is_empty()));
            }
        }
        let after = session.turns.tags.start + u64::from(self.rng.between(0, turns - 1));
        session.role = Role::Session { after, sub_agents: started };
        self.sessions += 1;
        session
    }

    /// The next request of a conversation, or `None` if it has no tags left.
    fn job(&mut self, mut thread: Thread, at: u64) -> Option<Job> {
        let job = thread.turns.next(&self.params, thread.session, at)?;
        self.live.insert(job.tag, thread);
        Some(job)
    }

    /// Appends the answer and the next tool result, or compacts the context.
    fn grow(&self, thread: &mut Thread, summary: &Summary) {
        let room = self.params.max_model_len;
        if !thread.turns.append(&self.params, summary, (room / 4).max(1)) {
            let compacted = text(&self.params, !summary.tag ^ 1 << 62);
            thread.turns.restart(BEGINNING, Some(passage(compacted, SUMMARY.min((room / 8).max(1)))));
        }
    }

    /// Adds the thread's next request, after its think time.
    fn schedule_next(&mut self, mut thread: Thread, now: u64, more: &mut Vec<Job>) {
        let at = thread.turns.resumes_at(now, self.profile.think_time);
        more.extend(self.job(thread, at));
    }
}

impl Workload for AgentSessions {
    fn title(&self) -> String {
        let SeededParams { requests, rate, burstiness, seed, .. } = self.params;
        let name = self.profile.name;
        format!("{requests} turns of {name}, {rate} per second, burstiness {burstiness}, seed {seed}")
    }

    fn total(&self) -> u64 {
        self.params.requests
    }

    fn next(&mut self) -> Option<Job> {
        if self.scheduled == self.params.requests {
            return None;
        }
        let session = self.begin_session();
        self.job(session, self.now as u64)
    }

    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<Job>) {
        let Some(mut thread) = self.live.remove(&summary.tag) else { return };
        self.grow(&mut thread, summary);
        match &mut thread.role {
            Role::Session { after, sub_agents } if *after == summary.tag && !sub_agents.is_empty() => {
                let started = std::mem::take(sub_agents);
                self.joins.insert(thread.session, (thread, started.len()));
                started.into_iter().for_each(|sub_agent| self.schedule_next(sub_agent, now, more));
            }
            Role::SubAgent if thread.turns.tags.is_empty() => {
                let Some((session, running)) = self.joins.remove(&thread.session) else { return };
                match running {
                    1 => self.schedule_next(session, now, more),
                    _ => drop(self.joins.insert(thread.session, (session, running - 1))),
                }
            }
            _ => self.schedule_next(thread, now, more),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_engine::Finish;
    use std::collections::HashSet;

    /// A request that was drawn.
    struct Drawn {
        prompt: u32,
        outputs: u32,
        session: u64,
        is_main: bool,
    }

    fn drawn(profile: AgentProfile, requests: u64, max_model_len: u32) -> Vec<Drawn> {
        let params = SeededParams {
            requests,
            rate: 8.0,
            burstiness: 1.0,
            prompt_tokens: profile.result,
            output_tokens: profile.answer,
            max_model_len,
            repetition: 0.0,
            seed: 3,
        };
        let mut sessions = AgentSessions::new(params, profile);
        let mut jobs = Vec::new();
        let mut all = Vec::new();
        loop {
            let Some(job) = jobs.pop().or_else(|| sessions.next()) else { return all };
            let thread = &sessions.live[&job.tag];
            let prompt = job.prompt.len() as u32;
            assert!(prompt + job.max_tokens <= max_model_len, "{prompt}");
            let is_main = matches!(thread.role, Role::Session { .. });
            all.push(Drawn { prompt, outputs: job.max_tokens, session: thread.session, is_main });
            let empty = Summary::empty(job.tag, Finish::Eos);
            let summary = Summary { prompt, outputs: job.max_tokens, ..empty };
            sessions.ended(&summary, 0, &mut jobs);
        }
    }

    fn median(mut values: Vec<u32>) -> f64 {
        values.sort_unstable();
        f64::from(values[values.len() / 2])
    }

    fn turns(drawn: &[Drawn]) -> Vec<u32> {
        let mut turns = HashMap::<u64, u32>::new();
        drawn.iter().filter(|one| one.is_main).for_each(|one| *turns.entry(one.session).or_default() += 1);
        turns.into_values().collect()
    }

    fn is_about(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 0.05
    }

    #[test]
    fn coding_agents_have_the_published_medians() {
        let drawn = drawn(AgentProfile::CODING, 100_000, 2_000_000);
        assert_eq!(drawn.len(), 100_000);
        let of =
            |figure: fn(&Drawn) -> u32| median(drawn.iter().filter(|one| one.is_main).map(figure).collect());
        let (prompt, outputs, turns) = (of(|one| one.prompt), of(|one| one.outputs), turns(&drawn));
        let helped: HashSet<_> = drawn.iter().filter(|one| !one.is_main).map(|one| one.session).collect();
        let helped = helped.len() as f64 / turns.len() as f64;
        let turns = median(turns);
        assert!(is_about(prompt, 142e3) && is_about(outputs, 444.0), "{prompt} {outputs}");
        assert!(is_about(turns, 43.0) && is_about(helped, 0.44), "{turns} {helped}");
    }

    #[test]
    fn reading_agents_have_the_published_ratio() {
        let drawn = drawn(AgentProfile::READING, 100_000, 2_000_000);
        let sum = |figure: fn(&Drawn) -> u32| drawn.iter().map(|one| f64::from(figure(one))).sum::<f64>();
        let ratio = sum(|one| one.prompt) / sum(|one| one.outputs);
        let turns = median(turns(&drawn));
        assert!(is_about(ratio, 131.0) && is_about(turns, 33.0), "{ratio} {turns}");
    }

    #[test]
    fn contexts_are_compacted_where_they_are_full() {
        for room in [64, 8192, 131_072] {
            assert_eq!(drawn(AgentProfile::CODING, 3000, room).len(), 3000);
        }
    }
}
