//! [`ToolLoop`]: the conversation of an agent, which alternates answers and tool results.
//!
//! It has a random generator and a tag range of its own, so that its requests do not depend on the
//! completion order of a workload.

use crate::workload::rng::WorkloadRng;
use crate::workload::text::{Answer, Passage};
use crate::workload::{At, Job, Part, Prompt, SECOND, SeededParams};
use kvasir_engine::{Finish, Summary};
use std::ops::Range;

/// Mean duration of a tool call, in seconds.
const TOOL: f64 = 0.8;
/// Mean and standard deviation of the logarithm of [`ThinkTime::Interactive`] in seconds.
const INTERACTIVE_LOG: (f64, f64) = (-4.406, 4.078);
/// Longest [`ThinkTime::Interactive`], in seconds.
const MAX_THINK_TIME: f64 = 600.0;
/// Log standard deviation of the length of a tool result.
const RESULT_SPREAD: f64 = 0.9;

/// Think time of an agent: the time between an answer and its next request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ThinkTime {
    /// A tool call of exponential duration.
    ToolCall,
    /// Log-normal through two quantiles that the authors of vLLM's router have published: 86 % of
    /// an agent's requests follow its last within 1 s, 95 % within 10 s. At most ten minutes.
    Interactive,
}

/// An agent's conversation.
#[derive(Clone, Debug)]
pub(super) struct ToolLoop {
    rng: WorkloadRng,
    /// Session id of its requests: the first of its tags.
    session: u64,
    /// Tags of the remaining requests.
    pub(super) tags: Range<u64>,
    parts: Vec<Part>,
    length: u32,
    answer: Answer,
}

/// Number of one of a workload's texts.
pub(super) fn text(params: &SeededParams, number: u64) -> u64 {
    params.seed.wrapping_mul(1_000_003).wrapping_add(number)
}

/// The beginning of a text.
pub(super) fn passage(text: u64, to: u32) -> Part {
    Part::Text(Passage { text, from: 0, to })
}

impl ToolLoop {
    /// A conversation that begins with these parts.
    pub(super) fn new(rng: WorkloadRng, tags: Range<u64>, parts: Vec<Part>) -> Self {
        let mut new = Self { rng, session: tags.start, tags, parts, length: 0, answer: Answer(0) };
        new.measure();
        new
    }

    fn measure(&mut self) {
        self.length = self.parts.iter().map(Part::len).sum::<usize>() as u32;
    }

    /// The next request, or `None` if no tags are left. `owner` is whose API key it uses.
    pub(super) fn next(&mut self, params: &SeededParams, owner: u64, at: u64) -> Option<Job> {
        let tag = self.tags.next()?;
        let room = params.max_model_len.saturating_sub(self.length).max(1);
        let outputs = self.rng.length(params.output_tokens, 0.5).min(room).min(Answer::LONGEST);
        self.answer = params.answer(tag, outputs);
        let prompt = Prompt::Parts(self.parts.clone());
        let job = Job::new(At::Time(at), prompt, self.answer, outputs, tag);
        Some(job.of_owner(owner).of_session(self.session))
    }

    /// Appends the answer and a tool result of at most `longest` tokens. False if the request failed
    /// or the context is full: nothing is appended then.
    pub(super) fn append(&mut self, params: &SeededParams, summary: &Summary, longest: u32) -> bool {
        let result = self.rng.length(params.prompt_tokens, RESULT_SPREAD).min(longest);
        let answered = matches!(summary.finish, Finish::Eos | Finish::MaxTokens);
        // The server's chat template may add tokens to the prompt.
        let length = self.length.max(summary.prompt) + summary.outputs + result;
        if !answered || length >= params.max_model_len {
            return false;
        }
        self.parts.push(Part::Said(self.answer, summary.outputs));
        self.parts.push(passage(text(params, !summary.tag), result));
        self.length = length;
        true
    }

    /// Truncates the conversation to its first `parts` parts, followed by `more`.
    pub(super) fn restart(&mut self, parts: usize, more: Option<Part>) {
        self.parts.truncate(parts);
        self.parts.extend(more);
        self.measure();
    }

    /// Arrival time of the request that follows an answer which ends at `now`.
    pub(super) fn resumes_at(&mut self, now: u64, think_time: ThinkTime) -> u64 {
        let pause = match think_time {
            ThinkTime::ToolCall => self.rng.exponential(TOOL),
            ThinkTime::Interactive => {
                (INTERACTIVE_LOG.0 + INTERACTIVE_LOG.1 * self.rng.normal()).exp().min(MAX_THINK_TIME)
            }
        };
        now + (pause * SECOND) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interactive_think_times_have_the_published_quantiles() {
        let mut turns = ToolLoop::new(WorkloadRng::new(5), 0..1, Vec::new());
        let mut pauses: Vec<u64> =
            (0..100_000).map(|_| turns.resumes_at(0, ThinkTime::Interactive)).collect();
        pauses.sort_unstable();
        let within = |seconds: f64| {
            pauses.partition_point(|&pause| pause as f64 <= seconds * SECOND) as f64 / pauses.len() as f64
        };
        assert!((within(1.0) - 0.86).abs() < 0.005, "{}", within(1.0));
        assert!((within(10.0) - 0.95).abs() < 0.005, "{}", within(10.0));
        assert_eq!(within(MAX_THINK_TIME), 1.0);
    }
}
