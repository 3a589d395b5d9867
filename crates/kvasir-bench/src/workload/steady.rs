//! Fixed-shape workload: exact prompt and output lengths, with an optional shared prefix.

use crate::workload::rng::WorkloadRng;
use crate::workload::text::Passage;
use crate::workload::{At, Job, Part, Prompt, SECOND, SeededParams, Workload};
use kvasir_engine::Summary;

/// Requests with equal prompt and output lengths, for throughput measurements at one shape.
#[derive(Debug)]
pub struct Steady {
    params: SeededParams,
    shared: u32,
    rng: WorkloadRng,
    made: u64,
    now: f64,
}

impl Steady {
    /// The first `shared` tokens of every prompt are identical.
    pub fn new(params: SeededParams, shared: u32) -> Self {
        Self {
            rng: WorkloadRng::new(params.seed),
            shared: shared.min(params.prompt_tokens),
            params,
            made: 0,
            now: 0.0,
        }
    }
}

impl Workload for Steady {
    fn title(&self) -> String {
        let SeededParams { requests, prompt_tokens, output_tokens, .. } = self.params;
        format!(
            "{requests} requests of {prompt_tokens} tokens, {} of them shared, answered with {output_tokens}",
            self.shared
        )
    }

    fn total(&self) -> u64 {
        self.params.requests
    }

    fn next(&mut self) -> Option<Job> {
        let SeededParams { requests, rate, burstiness, prompt_tokens, output_tokens, seed, .. } = self.params;
        if self.made >= requests {
            return None;
        }
        let tag = self.made;
        self.made += 1;
        self.now += self.rng.gamma(burstiness, SECOND / rate);
        let part = |text, from, to| Part::Text(Passage { text, from, to });
        let own = part(seed.wrapping_add(1 + tag), self.shared, prompt_tokens);
        let parts = match self.shared {
            0 => vec![own],
            shared => vec![part(!seed, 0, shared), own],
        };
        let prompt = Prompt::Parts(parts);
        Some(Job::new(At::Time(self.now as u64), prompt, self.params.answer(tag, 0), output_tokens, tag))
    }

    fn ended(&mut self, _: &Summary, _: u64, _: &mut Vec<Job>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_prompts_have_one_size_and_share_the_prefix() {
        let params = SeededParams {
            requests: 3,
            rate: f64::INFINITY,
            burstiness: 1.0,
            prompt_tokens: 40,
            output_tokens: 7,
            max_model_len: 100,
            repetition: 0.0,
            seed: 5,
        };
        let mut steady = Steady::new(params, 30);
        let jobs: Vec<Job> = std::iter::from_fn(|| steady.next()).collect();
        assert!(jobs.iter().all(|job| job.max_tokens == 7 && job.at == At::Time(0)));
        let prompts: Vec<_> = jobs.into_iter().map(|job| job.prompt.tokens()).collect();
        assert!(prompts.iter().all(|prompt| prompt.len() == 40));
        assert_eq!(prompts[0][..30], prompts[1][..30]);
        assert_ne!(prompts[0][30..], prompts[1][30..]);
    }
}
