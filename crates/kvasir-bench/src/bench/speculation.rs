//! `kvasir bench spec`: decoding with drafts beside decoding without, on the same output.
//!
//! The output is given: a constraint allows one token at each position, so that random weights can
//! write any text. All computation is real; only the choice of the token is not. Runs with and
//! without drafts take turns, and the ratio is that of their medians.

use crate::bench::median;
use kvasir_engine::{Engine, Params, Request};
use kvasir_exec::Executor;
use kvasir_kv::Token;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower, mix};
use serde::Serialize;
use std::sync::Arc;
use std::time::Instant;

/// What is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// The prompt holds a text, the output repeats it with three edits.
    Rewrite,
    /// The output continues the prompt's text.
    Continue,
    /// Random tokens.
    Random,
}

/// A benchmark of speculative decoding.
#[derive(Clone, Debug)]
pub struct SpeculationBench {
    /// What is written.
    pub task: Task,
    /// The text, as token ids.
    pub text: Vec<Token>,
    /// Tokens that each stream generates, at most.
    pub tokens: usize,
    /// Sequences that decode together; each starts elsewhere in the text.
    pub streams: usize,
    /// Counted repetitions of each.
    pub reps: usize,
}

/// Throughput with and without drafts.
#[derive(Clone, Debug, Serialize)]
pub struct SpeculationReport {
    /// Generated tokens per second without drafts: each repetition.
    pub without: Vec<f64>,
    /// The same with drafts.
    pub with: Vec<f64>,
    /// Median with drafts over median without.
    pub ratio: f64,
    /// Drafts verified in the last repetition.
    pub drafted: u64,
    /// Drafts accepted in it.
    pub accepted: u64,
    /// Tokens per step and sequence in it.
    pub tokens_per_step: f64,
}

/// Allows exactly one output.
#[derive(Debug)]
struct Dictated {
    output: Vec<Token>,
    vocab: usize,
}

#[derive(Debug)]
struct DictatedState {
    dictated: Arc<Dictated>,
    mask: Vec<u32>,
}

#[derive(Debug)]
struct Dictation(Arc<Dictated>);

impl Constraint for Dictation {
    fn follow(&self) -> Box<dyn Follower> {
        let mask = vec![0; self.0.vocab.div_ceil(32)];
        Box::new(DictatedState { dictated: Arc::clone(&self.0), mask })
    }
}

impl Follower for DictatedState {
    fn allowed(&mut self, output: &[u32]) -> Allowed<'_> {
        let Some(next) = self.dictated.output.get(output.len()) else { return Allowed::Any };
        self.mask.fill(0);
        self.mask[*next as usize / 32] |= 1 << (next % 32);
        Allowed::Only(&self.mask)
    }

    fn expect(&mut self, _: &[u32]) {}
}

impl SpeculationBench {
    /// Prompt and output of one stream.
    fn job(&self, stream: usize, vocab: usize) -> (Vec<Token>, Vec<Token>) {
        let id = |token: Token| token % vocab as Token;
        let at = stream * 37;
        let text = |range: std::ops::Range<usize>| -> Vec<Token> {
            range.map(|i| id(self.text[(at + i) % self.text.len().max(1)])).collect()
        };
        match self.task {
            Task::Rewrite => {
                let file = text(0..self.tokens);
                let mut output = file.clone();
                // Three edits: some tokens replaced, some left out, some put in.
                let (a, b, c) = (self.tokens / 4, self.tokens / 2, self.tokens * 3 / 4);
                for (n, token) in output.iter_mut().skip(a).take(4).enumerate() {
                    *token = id(*token + 11 + n as Token);
                }
                output.splice(c..c, [5, 9, 13, 21].map(id));
                output.drain(b..(b + 5).min(output.len()));
                output.truncate(self.tokens);
                (file, output)
            }
            Task::Continue => (text(0..self.tokens), text(self.tokens..2 * self.tokens)),
            Task::Random => {
                let random = |seed: usize| -> Vec<Token> {
                    let one = |i| (mix((seed << 32 | i) as u64) % vocab as u64) as Token;
                    (0..self.tokens).map(one).collect()
                };
                (random(2 * stream), random(2 * stream + 1))
            }
        }
    }

    /// Generates all outputs; returns tokens per second once every prompt has been read.
    fn generate<E: Executor>(
        &self,
        engine: &mut Engine<E>,
        vocab: usize,
        keys: &mut u64,
    ) -> Result<f64, String> {
        for stream in 0..self.streams {
            let (prompt, output) = self.job(stream, vocab);
            let max_tokens = output.len() as u32;
            let dictated = Dictation(Arc::new(Dictated { output, vocab }));
            let constraint = Constrained(Some(Arc::new(dictated)));
            // A key of its own: a drafter must not look into outputs of earlier repetitions.
            *keys += 1;
            let key = *keys;
            let params = Params { max_tokens, ignore_eos: true, constraint, key, ..Params::default() };
            let request = Request { tag: stream as u64, prompt, params };
            engine.add_request(request).map_err(|refusal| refusal.to_string())?;
        }
        let (mut started, mut before, mut ended) = (None, 0, 0);
        let mut tokens = 0;
        while ended < self.streams {
            engine.step().map_err(|exit| exit.to_string())?;
            let outbox = engine.core_mut().outbox();
            ended += outbox.ended.len();
            tokens += outbox.tokens.len();
            outbox.clear();
            if started.is_none() && engine.core().running().all(|sequence| !sequence.is_prefilling()) {
                (started, before) = (Some(Instant::now()), tokens);
            }
        }
        let seconds = started.map_or(0.0, |started: Instant| started.elapsed().as_secs_f64());
        Ok((tokens - before) as f64 / seconds.max(1e-9))
    }

    /// KV slots that an engine needs.
    pub fn slots(&self) -> u32 {
        (self.streams * (2 * self.tokens + 64)).next_multiple_of(16) as u32
    }

    /// Alternates runs with and without drafts: one warm-up of each, then `reps` of each. The engines are
    /// kept for all repetitions, so that the drafter's estimates are those of a running server.
    pub fn run<E: Executor>(
        &self,
        mut plain: Engine<E>,
        mut drafting: Engine<E>,
        vocab: usize,
    ) -> Result<SpeculationReport, String> {
        if self.text.is_empty() && self.task != Task::Random {
            return Err("the text has no token".into());
        }
        let (mut without, mut with) = (Vec::new(), Vec::new());
        let mut before = drafting.core().draft_stats().clone();
        let mut keys = 0;
        for _ in 0..=self.reps {
            before = drafting.core().draft_stats().clone();
            without.push(self.generate(&mut plain, vocab, &mut keys)?);
            with.push(self.generate(&mut drafting, vocab, &mut keys)?);
        }
        without.remove(0);
        with.remove(0);
        let stats = drafting.core().draft_stats().since(&before);
        let accepted = stats.totals().0;
        let tokens = self.streams * self.job(0, vocab).1.len();
        Ok(SpeculationReport {
            ratio: median(with.iter().copied()) / median(without.iter().copied()),
            without,
            with,
            drafted: stats.tokens,
            accepted,
            tokens_per_step: tokens as f64 / (tokens as f64 - accepted as f64).max(1.0),
        })
    }
}
