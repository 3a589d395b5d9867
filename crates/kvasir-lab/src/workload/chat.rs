use super::{Answer, At, Dice, Job, Knobs, Part, Passage, Prompt, SECOND, Workload};
use kvasir_engine::{Finish, Summary};
use std::collections::HashMap;

/// People who talk: several turns each, on one of a few system prompts, with time to read between the turns.
#[derive(Debug)]
pub struct Chat {
    knobs: Knobs,
    dice: Dice,
    /// Requests handed out or promised by talks that have begun.
    made: u64,
    talks: u64,
    now: f64,
    /// Talks by the tag of the request that is out.
    live: HashMap<u64, Talk>,
}

#[derive(Debug)]
struct Talk {
    number: u64,
    parts: Vec<Part>,
    length: u32,
    turns_left: u32,
    answer: Answer,
}

/// System prompts: their number, and their lengths in multiples of this.
const SYSTEM_PROMPTS: u64 = 8;
const SYSTEM_TOKENS: u32 = 180;
/// Turns of one talk on average.
const TURNS: f64 = 5.0;
/// Mean seconds of reading an answer and writing again.
const THINKING: f64 = 12.0;

impl Chat {
    /// From a seed.
    pub fn new(knobs: Knobs) -> Self {
        Self { dice: Dice::new(knobs.seed), knobs, made: 0, talks: 0, now: 0.0, live: HashMap::new() }
    }

    fn user_turn(&mut self, talk: &mut Talk) {
        let words = self.dice.length(self.knobs.prompt_tokens, 0.7);
        let from = talk.length;
        let text = self.knobs.seed.wrapping_mul(31).wrapping_add(1000 + talk.number);
        talk.parts.push(Part::Text(Passage { text, from, to: from + words }));
        talk.length += words;
    }

    /// The request of the turn that is next; none if it would be longer than the model takes.
    fn job(&mut self, mut talk: Talk, at: u64) -> Option<Job> {
        let wanted = self.dice.length(self.knobs.output_tokens, 0.6);
        let room = self.knobs.max_model_len.checked_sub(talk.length + 1)?;
        let tag = self.made;
        let outputs = wanted.min(room.max(1)).min(Answer::LONGEST);
        talk.answer = Answer::new(tag, outputs);
        self.made += 1;
        let prompt = Prompt::Parts(talk.parts.clone());
        let mut job = Job::new(At::Time(at), prompt, talk.answer, outputs, tag);
        job.key = talk.number % 64;
        self.live.insert(tag, talk);
        Some(job)
    }
}

impl Workload for Chat {
    fn title(&self) -> String {
        let Knobs { requests, rate, burstiness, seed, .. } = self.knobs;
        format!("{requests} turns of chats, {rate} per second, burstiness {burstiness}, seed {seed}")
    }

    fn total(&self) -> u64 {
        self.knobs.requests
    }

    fn next(&mut self) -> Option<Job> {
        if self.made >= self.knobs.requests {
            return None;
        }
        self.now += self.dice.gamma(self.knobs.burstiness, SECOND * TURNS / self.knobs.rate);
        // The first system prompts are the popular ones.
        let system = (self.dice.unit().powi(2) * SYSTEM_PROMPTS as f64) as u64;
        let length = SYSTEM_TOKENS * (1 + system as u32);
        let turns_left = 1 + self.dice.exponential(TURNS - 0.5) as u32;
        let parts = vec![Part::Text(Passage { text: !system, from: 0, to: length })];
        let number = self.talks;
        self.talks += 1;
        let mut talk = Talk { number, parts, length, turns_left, answer: Answer(0) };
        self.user_turn(&mut talk);
        let at = self.now as u64;
        match self.job(talk, at) {
            Some(job) => Some(job),
            // A first turn that does not fit is refused, and counted.
            None => {
                let tag = self.made;
                self.made += 1;
                let text = Passage { text: number, from: 0, to: self.knobs.max_model_len };
                let prompt = Prompt::Parts(vec![Part::Text(text)]);
                Some(Job::new(At::Time(at), prompt, Answer::new(tag, 0), 1, tag))
            }
        }
    }

    fn ended(&mut self, summary: &Summary, now: u64, more: &mut Vec<Job>) {
        let Some(mut talk) = self.live.remove(&summary.tag) else { return };
        let answered = matches!(summary.finish, Finish::Eos | Finish::MaxTokens);
        talk.turns_left = talk.turns_left.saturating_sub(1);
        if !answered || talk.turns_left == 0 || self.made >= self.knobs.requests {
            return;
        }
        talk.parts.push(Part::Said(talk.answer, summary.outputs));
        // A server's template adds to what is asked.
        talk.length = talk.length.max(summary.prompt) + summary.outputs;
        self.user_turn(&mut talk);
        let at = now + (self.dice.exponential(THINKING) * SECOND) as u64;
        more.extend(self.job(talk, at));
    }
}
