//! Open-loop workload of independent requests with gamma-distributed (Poisson) arrivals.

use crate::workload::dice::Dice;
use crate::workload::text::{Answer, Passage};
use crate::workload::{At, Job, Part, Prompt, SECOND, SeededParams, Workload};
use kvasir_engine::Summary;

/// Independent requests with no shared prefix, at random times.
#[derive(Debug)]
pub struct Poisson {
    knobs: SeededParams,
    dice: Dice,
    made: u64,
    now: f64,
}

impl Poisson {
    /// Creates the workload; `knobs.seed` determines all requests.
    pub fn new(knobs: SeededParams) -> Self {
        Self { dice: Dice::new(knobs.seed), knobs, made: 0, now: 0.0 }
    }
}

impl Workload for Poisson {
    fn title(&self) -> String {
        let SeededParams { requests, rate, burstiness, seed, .. } = self.knobs;
        format!("{requests} independent requests, {rate} per second, burstiness {burstiness}, seed {seed}")
    }

    fn total(&self) -> u64 {
        self.knobs.requests
    }

    fn next(&mut self) -> Option<Job> {
        let SeededParams { requests, rate, burstiness, max_model_len, .. } = self.knobs;
        if self.made >= requests {
            return None;
        }
        let tag = self.made;
        self.made += 1;
        self.now += self.dice.gamma(burstiness, SECOND / rate);
        let prompt =
            self.dice.length(self.knobs.prompt_tokens, 0.8).min(max_model_len.saturating_sub(2).max(1));
        let answer =
            self.dice.length(self.knobs.output_tokens, 0.7).min(max_model_len.saturating_sub(prompt).max(1));
        let text = Passage { text: self.knobs.seed.wrapping_add(tag), from: 0, to: prompt };
        let prompt = Prompt::Parts(vec![Part::Text(text)]);
        Some(Job::new(At::Time(self.now as u64), prompt, Answer::new(tag, 0), answer, tag))
    }

    fn ended(&mut self, _: &Summary, _: u64, _: &mut Vec<Job>) {}
}
