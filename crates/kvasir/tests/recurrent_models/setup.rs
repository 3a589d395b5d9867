//! `Setup`: the cache, policy, drafts and preemption under which a test runs its requests. Records
//! the logits of every sampled position.

use crate::backend::{Backend, DRAFTS};
use crate::recorded_logits::RecordedLogits;
use kvasir::{AnyExecutor, AnyPending};
use kvasir_engine::{
    Chunked, Chunking, Core, Drafter, Engine, EventOutput, Finish, Limits, Mixing, NgramDrafter, Order,
    Policy, PrefillFirst, Proposal, Rectangular, RectangularConfig, Request, RequestId, Sequence, Turn,
};
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::{CacheConfig, CacheKind, StateConfig, Token, build};
use kvasir_testkit::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Slots per block.
pub(crate) const BLOCK: u32 = 8;

/// Wraps an executor and records the logits of each position of each request.
struct RecordingExecutor {
    inner: AnyExecutor,
    logits: RecordedLogits,
    /// Requests that shared a step with others.
    batched: BTreeSet<u64>,
}

impl Executor for RecordingExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, mut step: Box<Step>) -> Result<AnyPending, Refused> {
        step.batch.logits = true;
        self.inner.submit(step)
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
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

/// Source of drafts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drafts {
    None,
    Ngram,
    Oracle,
    Mtp,
}

/// A drafter that proposes the expected outputs, with one in five draft tokens wrong.
struct Oracle {
    /// Expected outputs by request tag.
    outputs: BTreeMap<u64, Vec<Token>>,
    random: Random,
}

impl Drafter for Oracle {
    fn width(&self) -> u32 {
        DRAFTS
    }

    fn proposes_trees(&self) -> bool {
        false
    }

    fn propose(&mut self, sequence: &Sequence, proposal: &mut Proposal) {
        let rest = &self.outputs[&sequence.tag()][sequence.outputs().len()..];
        for token in rest.iter().take(self.random.between(0, DRAFTS) as usize) {
            proposal.tokens.push(if self.random.one_in(5) { (token + 1) % 500 } else { *token });
        }
    }
}

/// The engine and the load of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) cache: CacheKind,
    pub(crate) policy: &'static str,
    pub(crate) slots: u32,
    pub(crate) checkpoints: u32,
    pub(crate) overlap: bool,
    pub(crate) drafts: Drafts,
    /// Whether every seventh turn preempts a running request.
    pub(crate) preempts: bool,
}

/// One request at a time, whole prompts, no drafts.
pub(crate) const ALONE: Setup = Setup {
    cache: CacheKind::Contiguous,
    policy: "whole",
    slots: 400,
    checkpoints: 0,
    overlap: false,
    drafts: Drafts::None,
    preempts: false,
};

/// Coverage of a run, so that a vacuous test fails.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) hits: u32,
    pub(crate) preemptions: u32,
    pub(crate) accepted: u32,
    pub(crate) rejected: u32,
    pub(crate) batched: usize,
}

/// Output of a request: tokens, and logits of each sampled position.
pub(crate) type RequestOutput = (Vec<Token>, BTreeMap<u32, Vec<u32>>);

impl Setup {
    fn policy(&self) -> Box<dyn Policy> {
        match self.policy {
            "whole" => Box::new(PrefillFirst::new(Chunking::Off, 0.0)),
            "prefill-first" => Box::new(PrefillFirst::new(Chunking::On { cap: Some(17) }, 0.0)),
            "chunked" => Box::new(Chunked::new(13, Mixing::Off)),
            "mixed" => Box::new(Chunked::new(19, Mixing::On { target: None })),
            "tokens" => Box::new(Chunked::new(1, Mixing::Off)),
            "rectangular" => Box::new(Rectangular::new(RectangularConfig {
                chunk_size: 2 * BLOCK,
                max_batch: 4,
                ..RectangularConfig::default()
            })),
            other => panic!("no policy {other}"),
        }
    }

    /// Builds the engine. `Drafts::Oracle` proposes `outputs`.
    fn engine(&self, model: &Backend, outputs: &BTreeMap<u64, RequestOutput>) -> Engine<RecordingExecutor> {
        let is_rectangular = self.policy == "rectangular";
        let max_num_seqs = if self.cache.holds_one_sequence() { 1 } else { 5 };
        let states = StateConfig {
            live: max_num_seqs,
            checkpoints: self.checkpoints,
            tail_rows: DRAFTS,
            interval: 4 * BLOCK,
        };
        let config = CacheConfig {
            block_size: if self.cache.is_block_based() { BLOCK } else { 1 },
            max_sequences: 16,
            sharing: true,
            dummy: is_rectangular,
            states: Some(states),
            ..CacheConfig::new(self.slots)
        };
        let limits = Limits {
            max_num_seqs,
            max_num_batched_tokens: if is_rectangular || self.policy == "whole" { 400 } else { 24 },
            max_model_len: 200,
            prefix_cache: self.cache.is_block_based(),
            ..Limits::default()
        };
        let cache = build(self.cache, &config).unwrap();
        let slots = cache.shape().capacity + BLOCK;
        let inner = model.executor(slots, states, self.drafts == Drafts::Mtp);
        let inner = if self.overlap { inner.on_thread().unwrap() } else { inner };
        let logits = RecordedLogits::new(model.program().vocab);
        let executor = RecordingExecutor { inner, logits, batched: BTreeSet::new() };
        let core = Core::new(limits, Order::Fcfs, self.policy(), cache);
        let engine = Engine::new(core, executor, || 0).overlap(self.overlap);
        match self.drafts {
            Drafts::None => engine,
            Drafts::Ngram => engine.draft(Box::new(NgramDrafter::new(1, DRAFTS))).unwrap(),
            Drafts::Oracle => {
                let outputs = outputs.iter().map(|(tag, (tokens, _))| (*tag, tokens.clone())).collect();
                engine.draft(Box::new(Oracle { outputs, random: Random::new(3) })).unwrap()
            }
            Drafts::Mtp => engine.draft_in_executor(DRAFTS, DRAFTS, false).unwrap(),
        }
    }

    /// Runs requests that arrive one by one, each as `n` siblings; returns outputs by tag.
    /// `Drafts::Oracle` proposes the outputs `expected`.
    pub(crate) fn run(
        &self,
        model: &Backend,
        requests: &[Request],
        n: u32,
        expected: &BTreeMap<u64, RequestOutput>,
        coverage: &mut Coverage,
    ) -> BTreeMap<u64, RequestOutput> {
        let mut engine = self.engine(model, expected);
        let (mut outputs_by_tag, mut ids) =
            (BTreeMap::<u64, RequestOutput>::new(), BTreeMap::<u64, RequestId>::new());
        let mut waiting = requests.iter();
        for turn in 0.. {
            if turn % 3 == 0
                && let Some(request) = waiting.next()
            {
                let added = engine.core_mut().add_siblings(request.clone(), n, 0).unwrap();
                ids.extend((request.tag..).zip(added));
            }
            let done = engine.step().unwrap();
            if self.preempts && turn % 7 == 5 {
                ids.values().rev().any(|id| engine.core_mut().preempt(*id));
            }
            engine.core().cache().check().unwrap();
            let outbox = engine.core_mut().outbox();
            for EventOutput { event, tokens, .. } in outbox.iter() {
                outputs_by_tag.entry(event.tag).or_default().0.extend_from_slice(tokens);
            }
            for ended in outbox.ended.drain(..) {
                assert_eq!(ended.finish, Finish::MaxTokens, "{self:?}");
                coverage.hits += u32::from(ended.cached > 0);
                coverage.preemptions += ended.preemptions;
                coverage.accepted += ended.accepted;
                coverage.rejected += ended.drafted - ended.accepted;
            }
            outbox.clear();
            if done == Turn::Idle && waiting.len() == 0 {
                break;
            }
            assert!(turn < 4000, "requests did not finish");
        }
        coverage.batched += engine.executor().batched.len();
        for (tag, (_, logits)) in &mut outputs_by_tag {
            *logits = engine.executor().logits.of(ids[tag].0);
        }
        outputs_by_tag
    }
}
