//! Multi-turn chat workload: conversations on a few popular system prompts, with thinking time
//! between turns.
//!
//! Exercises prefix caching across turns and across users. Deterministic in the seed, whatever the
//! completion order.

use crate::workload::rng::WorkloadRng;
use crate::workload::text::{Answer, Passage};
use crate::workload::{At, Job, Part, Prompt, SECOND, SeededParams, Workload};
use kvasir_engine::{Finish, Summary};
use std::{collections::HashMap, ops::Range};

/// Users with multi-turn conversations on one of a few system prompts.
///
/// Every user has a private random generator and tag range, so the requests do not depend on
/// completion order.
#[derive(Debug)]
pub struct Chat {
    params: SeededParams,
    rng: WorkloadRng,
    /// Number of tags allocated to users so far.
    scheduled: u64,
    people: u64,
    now: f64,
    /// Users with a request in flight, by tag.
    live: HashMap<u64, Person>,
}

#[derive(Debug)]
struct Person {
    number: u64,
    rng: WorkloadRng,
    /// Tags of the remaining requests.
    tags: Range<u64>,
    system: Passage,
    /// Prompt of the current conversation.
    parts: Vec<Part>,
    length: u32,
    talks: u64,
    answer: Answer,
}

/// Number of system prompts; lengths are multiples of `SYSTEM_TOKENS`.
const SYSTEM_PROMPTS: u64 = 8;
const SYSTEM_TOKENS: u32 = 180;
/// Mean number of turns per user.
const TURNS: f64 = 5.0;
/// Mean seconds between an answer and the next turn.
const THINKING: f64 = 12.0;

impl Chat {
    /// Creates the workload; `params.seed` determines all requests.
    pub fn new(params: SeededParams) -> Self {
        Self {
            rng: WorkloadRng::new(params.seed),
            params,
            scheduled: 0,
            people: 0,
            now: 0.0,
            live: HashMap::new(),
        }
    }

    /// The next request of a user, or `None` if no tags are left.
    fn job(&mut self, mut person: Person, at: u64) -> Option<Job> {
        let tag = person.tags.next()?;
        let SeededParams { max_model_len, prompt_tokens, output_tokens, .. } = self.params;
        let words = person.rng.length(prompt_tokens, 0.7);
        if person.length.saturating_add(words) >= max_model_len {
            person.begin();
        }
        let seed = self.params.seed.wrapping_mul(31);
        let text = seed.wrapping_add(1000 + (person.number << 20) + person.talks);
        let from = person.length;
        // A first turn that exceeds the context is refused by the engine and counted.
        let to = from.saturating_add(words);
        person.parts.push(Part::Text(Passage { text, from, to }));
        person.length = to;
        let room = max_model_len.saturating_sub(to).max(1);
        let outputs = person.rng.length(output_tokens, 0.6).min(room).min(Answer::LONGEST);
        person.answer = self.params.answer(tag, outputs);
        let prompt = Prompt::Parts(person.parts.clone());
        let job = Job::new(At::Time(at), prompt, person.answer, outputs, tag);
        let job = job.of_owner(person.number).of_session(person.number);
        self.live.insert(tag, person);
        Some(job)
    }
}

impl Person {
    /// Starts a new conversation.
    fn begin(&mut self) {
        self.parts = vec![Part::Text(self.system)];
        self.length = self.system.to;
        self.talks += 1;
    }
}

impl Workload for Chat {
    fn title(&self) -> String {
        let SeededParams { requests, rate, burstiness, seed, .. } = self.params;
        format!("{requests} turns of chats, {rate} per second, burstiness {burstiness}, seed {seed}")
    }

    fn total(&self) -> u64 {
        self.params.requests
    }

    fn next(&mut self) -> Option<Job> {
        let left = self.params.requests - self.scheduled;
        if left == 0 {
            return None;
        }
        self.now += self.rng.gamma(self.params.burstiness, SECOND * TURNS / self.params.rate);
        // Quadratic skew: low-numbered system prompts are more popular.
        let system = (self.rng.unit().powi(2) * SYSTEM_PROMPTS as f64) as u64;
        let system = Passage { text: !system, from: 0, to: SYSTEM_TOKENS * (1 + system as u32) };
        let turns = left.min(1 + self.rng.exponential(TURNS - 0.5) as u64);
        let tags = self.scheduled..self.scheduled + turns;
        let rng = WorkloadRng::new(self.rng.bits());
        let number = self.people;
        self.people += 1;
        self.scheduled = tags.end;
        let mut person =
            Person { number, rng, tags, system, parts: Vec::new(), length: 0, talks: 0, answer: Answer(0) };
        person.begin();
        self.job(person, self.now as u64)
    }

    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<Job>) {
        let Some(mut person) = self.live.remove(&summary.tag) else { return };
        if matches!(summary.finish, Finish::Eos | Finish::MaxTokens) {
            person.parts.push(Part::Said(person.answer, summary.outputs));
            // The server's chat template may add tokens to the prompt.
            person.length = person.length.max(summary.prompt) + summary.outputs;
        } else {
            person.begin();
        }
        let at = now + (person.rng.exponential(THINKING) * SECOND) as u64;
        more.extend(self.job(person, at));
    }
}
