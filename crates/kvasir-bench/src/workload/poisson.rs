//! Open-loop workload of independent requests with gamma-distributed (Poisson) arrivals.

use crate::workload::rng::WorkloadRng;
use crate::workload::text::Passage;
use crate::workload::{At, Job, Part, Prompt, SECOND, SeededParams, Workload};
use kvasir_engine::Summary;

/// Independent requests with no shared prefix, at random times.
#[derive(Debug)]
pub struct Poisson {
    params: SeededParams,
    rng: WorkloadRng,
    made: u64,
    now: f64,
}

impl Poisson {
    /// Creates the workload; `params.seed` determines all requests.
    pub fn new(params: SeededParams) -> Self {
        Self { rng: WorkloadRng::new(params.seed), params, made: 0, now: 0.0 }
    }
}

impl Workload for Poisson {
    fn title(&self) -> String {
        let SeededParams { requests, rate, burstiness, seed, .. } = self.params;
        format!("{requests} independent requests, {rate} per second, burstiness {burstiness}, seed {seed}")
    }

    fn total(&self) -> u64 {
        self.params.requests
    }

    fn next(&mut self) -> Option<Job> {
        let SeededParams { requests, rate, burstiness, max_model_len, .. } = self.params;
        if self.made >= requests {
            return None;
        }
        let tag = self.made;
        self.made += 1;
        self.now += self.rng.gamma(burstiness, SECOND / rate);
        let prompt =
            self.rng.length(self.params.prompt_tokens, 0.8).min(max_model_len.saturating_sub(2).max(1));
        let answer =
            self.rng.length(self.params.output_tokens, 0.7).min(max_model_len.saturating_sub(prompt).max(1));
        let text = Passage { text: self.params.seed.wrapping_add(tag), from: 0, to: prompt };
        let prompt = Prompt::Parts(vec![Part::Text(text)]);
        Some(Job::new(At::Time(self.now as u64), prompt, self.params.answer(tag, 0), answer, tag))
    }

    fn ended(&mut self, _: &Summary, _: u64, _: &mut Vec<Job>) {}
}
