//! Test helpers: requests with a common prefix, and their runs on an executor that records logits.
#![allow(dead_code, clippy::unwrap_used, clippy::panic)] // every test file uses its own part

pub(crate) mod oracle;
mod recorded_logits;

use kvasir_engine::{
    Chunked, Chunking, Core, Engine, EventOutput, Finish, Mixing, Params, Policy, PrefillFirst, Rectangular,
    RectangularConfig, Request, RequestId, Turn,
};
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::Token;
use kvasir_program::Program;
use kvasir_sample::Sampling;
use kvasir_testkit::steps::prompt;
use recorded_logits::RecordedLogits;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Output of a request: tokens, and logits of each sampled position.
pub(crate) type RequestOutput = (Vec<Token>, BTreeMap<u32, Vec<u32>>);

/// Outputs by request tag.
pub(crate) type Outputs = BTreeMap<u64, RequestOutput>;

/// Wraps an executor and records the logits of each position of each request.
pub(crate) struct RecordingExecutor<E> {
    pub(crate) inner: E,
    logits: RecordedLogits,
    /// Requests that shared a step with others.
    batched: BTreeSet<u64>,
}

impl<E> RecordingExecutor<E> {
    pub(crate) fn new(inner: E, program: &Program) -> Self {
        Self { inner, logits: RecordedLogits::new(program.vocab), batched: BTreeSet::new() }
    }
}

impl<E: Executor> Executor for RecordingExecutor<E> {
    type Pending = E::Pending;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, mut step: Box<Step>) -> Result<E::Pending, Refused> {
        step.batch.logits = true;
        self.inner.submit(step)
    }

    fn wait(&mut self, pending: E::Pending) -> (Box<Step>, Result<(), StepError>) {
        let (step, result) = self.inner.wait(pending);
        assert_eq!(result, Ok(()));
        assert_eq!(step.output.draft_error, None);
        self.logits.record(&step);
        if step.batch.rows.len() > 1 {
            self.batched.extend(step.batch.rows.iter().map(|row| row.request));
        }
        (step, result)
    }
}

/// Coverage of runs, so that a vacuous test fails.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) hits: u32,
    /// Tokens found in the prefix cache.
    pub(crate) cached: u32,
    pub(crate) preemptions: u32,
    pub(crate) accepted: u32,
    pub(crate) rejected: u32,
    pub(crate) batched: usize,
}

/// Requests that arrive one by one in a run.
pub(crate) struct Arrivals<'a> {
    pub(crate) requests: &'a [Request],
    /// Number of siblings of each request.
    pub(crate) siblings: u32,
    /// Turns from one arrival to the next.
    pub(crate) interval: u32,
    /// The run fails after this many turns.
    pub(crate) max_turns: u32,
    /// Context of error messages.
    pub(crate) context: &'a dyn Debug,
}

impl Arrivals<'_> {
    /// Runs the requests to their ends. Calls `after_step` in each turn, with the ids by tag.
    pub(crate) fn run<E: Executor>(
        &self,
        engine: &mut Engine<RecordingExecutor<E>>,
        coverage: &mut Coverage,
        mut after_step: impl FnMut(&mut Core, u32, &BTreeMap<u64, RequestId>),
    ) -> Outputs {
        let (mut outputs, mut ids) = (Outputs::new(), BTreeMap::<u64, RequestId>::new());
        let mut waiting = self.requests.iter();
        for turn in 0.. {
            if turn % self.interval == 0
                && let Some(request) = waiting.next()
            {
                let added = engine.core_mut().add_siblings(request.clone(), self.siblings, 0).unwrap();
                ids.extend((request.tag..).zip(added));
            }
            let done = engine.step().unwrap();
            after_step(engine.core_mut(), turn, &ids);
            let outbox = engine.core_mut().outbox();
            for EventOutput { event, tokens, .. } in outbox.iter() {
                outputs.entry(event.tag).or_default().0.extend_from_slice(tokens);
            }
            for ended in outbox.ended.drain(..) {
                assert_eq!(ended.finish, Finish::MaxTokens, "{:?}", self.context);
                coverage.hits += u32::from(ended.cached > 0);
                coverage.cached += ended.cached;
                coverage.preemptions += ended.preemptions;
                coverage.accepted += ended.accepted;
                coverage.rejected += ended.drafted - ended.accepted;
            }
            outbox.clear();
            if done == Turn::Idle && waiting.len() == 0 {
                break;
            }
            assert!(turn < self.max_turns, "requests did not finish");
        }
        coverage.batched += engine.executor().batched.len();
        for (tag, (_, logits)) in &mut outputs {
            *logits = engine.executor().logits.of(ids[tag].0);
        }
        outputs
    }
}

/// Runs each request, and each of its `n` siblings, by itself.
pub(crate) fn run_each(requests: &[Request], n: u64, mut run: impl FnMut(&[Request]) -> Outputs) -> Outputs {
    let mut outputs = Outputs::new();
    for request in requests {
        for i in 0..n {
            let mut sibling = request.clone();
            sibling.tag += i;
            sibling.params.sampling.seed += i;
            outputs.append(&mut run(&[sibling]));
        }
    }
    outputs
}

/// Compares tokens and logits. `outputs` may have logits of further positions: those of drafts
/// beyond the end of an output.
pub(crate) fn compare(context: &str, expected: &Outputs, outputs: &Outputs) {
    assert!(outputs.keys().eq(expected.keys()), "{context}");
    for (tag, (tokens, logits)) in expected {
        assert_eq!(tokens, &outputs[tag].0, "{context}: tokens of request {tag}");
        for (position, bits) in logits {
            assert!(outputs[tag].1.get(position) == Some(bits), "{context}: logits of {tag} at {position}");
        }
    }
}

/// The request number `n`, which samples `max_tokens` tokens. Its tag leaves room for siblings.
pub(crate) fn request(
    program: &Program,
    n: u64,
    prompt: Vec<Token>,
    max_tokens: u32,
    temperature: f32,
) -> Request {
    let sampling = Sampling { temperature, seed: n + 7, ..Sampling::default() };
    let salt = program.prefix_salt(prompt.len() as u32 + max_tokens);
    let params = Params { max_tokens, ignore_eos: true, sampling, salt, ..Params::default() };
    Request { tag: n * 10, prompt, params }
}

/// Requests with various temperatures, of which four have the prefix `shared`.
pub(crate) fn requests(program: &Program, shared: &[Token], max_tokens: [u32; 6]) -> Vec<Request> {
    let after_shared = |tail: usize, salt: usize| [shared, &prompt(tail, salt)].concat();
    let prompts = [
        (after_shared(5, 2), 0.0),
        (prompt(23, 3), 0.9),
        (after_shared(9, 4), 0.0),
        (after_shared(5, 2), 0.8),
        (prompt(3, 5), 0.0),
        (after_shared(1, 6), 1.2),
    ];
    let all = (0..).zip(prompts).zip(max_tokens);
    all.map(|((n, (prompt, temperature)), max)| request(program, n, prompt, max, temperature)).collect()
}

/// A policy by the name that a setup gives it.
pub(crate) fn policy(name: &str) -> Box<dyn Policy> {
    match name {
        "whole" => Box::new(PrefillFirst::new(Chunking::Off, 0.0)),
        "prefill-first" => Box::new(PrefillFirst::new(Chunking::On { cap: Some(17) }, 0.0)),
        "chunked" => Box::new(Chunked::new(13, Mixing::Off)),
        "mixed" => Box::new(Chunked::new(19, Mixing::On { target: None })),
        "tokens" => Box::new(Chunked::new(1, Mixing::Off)),
        "rectangular" => Box::new(Rectangular::new(RectangularConfig {
            chunk_size: 16,
            max_batch: 4,
            ..RectangularConfig::default()
        })),
        other => panic!("no policy {other}"),
    }
}
