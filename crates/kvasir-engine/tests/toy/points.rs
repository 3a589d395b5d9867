//! Exhaustive fault injection: one small workload, rerun once per fault at every point where that
//! fault can occur.
//!
//! 1. A fault-free run counts how often each site is passed.
//! 2. For each site, passage and fault there is one run. Faults: abort, preempt or stop text
//!    between any two calls of the core; a step refused, out of memory, failed, lost or late; a
//!    cache that claims to be full.
//! 3. Each run must end with correct completions for unaffected requests and an empty KV pool.
#![allow(clippy::unwrap_used, clippy::panic)] // a harness of tests

use crate::flaky::{Flaky, Operation};
use crate::workload::{kind_named, states_usage};
use kvasir_engine::*;
use kvasir_exec::{Executor, Step, StepError};
use kvasir_kv::{CacheConfig, StateConfig, Token, build};
use kvasir_sim::{Toy, ToyShape};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// The configuration of one enumeration; printed when a run fails.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    cache: &'static str,
    policy: &'static str,
    overlap: bool,
    drafts: &'static str,
    /// Whether the model has a recurrent state.
    is_recurrent: bool,
}

const CACHES: [&str; 6] = ["paged", "radix", "radix/1", "cells", "contiguous", "tree"];
const POLICIES: [&str; 4] = ["whole", "chunked", "mixed", "rectangular"];
const DRAFTS: [&str; 3] = ["off", "chain", "tree"];

/// All combinations, or one per cache and policy.
pub(crate) fn setups(all: bool) -> Vec<Setup> {
    let mut setups = Vec::new();
    for (i, cache) in CACHES.into_iter().enumerate() {
        for (j, policy) in POLICIES.into_iter().enumerate() {
            for (k, drafts) in DRAFTS.into_iter().enumerate() {
                for overlap in [true, false] {
                    let chosen = k == (i + j) % 3 && overlap == ((i + j) % 4 != 3);
                    if (all || chosen) && (cache != "contiguous" || drafts != "tree") {
                        let setup = Setup { cache, policy, overlap, drafts, is_recurrent: false };
                        setups.push(setup.clone());
                        if drafts != "tree" {
                            setups.push(Setup { is_recurrent: true, ..setup });
                        }
                    }
                }
            }
        }
    }
    setups
}

impl Setup {
    fn shape(&self) -> ToyShape {
        ToyShape { windows: Vec::new(), state: self.is_recurrent }
    }
}

/// Fewer live states and checkpoints than the workload needs.
const STATES: StateConfig = StateConfig { live: 2, checkpoints: 3, tail_rows: 2, interval: 4 };

/// Fault sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Site {
    /// Between two calls of the core.
    Between,
    Submit,
    Wait,
    Take(Operation),
}

impl Site {
    const ALL: [Self; 6] = [
        Self::Between,
        Self::Submit,
        Self::Wait,
        Self::Take(Operation::Sequence),
        Self::Take(Operation::Claim),
        Self::Take(Operation::Preallocate),
    ];

    fn place(self) -> usize {
        Self::ALL.iter().position(|site| *site == self).unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Nothing,
    Abort(u64),
    Preempt(u64),
    StopText(u64),
    Refused,
    OutOfMemory,
    /// The step fails, with or without having written its K/V.
    Failed(bool),
    Lost,
    Late,
    NoSlots,
}

/// The fault to inject, and how often each site was passed.
#[derive(Debug)]
struct Script {
    site: Site,
    at: u32,
    failure: Failure,
    passed: [AtomicU32; 6],
}

impl Script {
    fn new(site: Site, at: u32, failure: Failure) -> Arc<Self> {
        Arc::new(Self { site, at, failure, passed: Default::default() })
    }

    /// Counts a passage of `site`; returns the fault to inject now.
    fn pass(&self, site: Site) -> Failure {
        let n = self.passed[site.place()].fetch_add(1, Ordering::Relaxed);
        if site == self.site && n == self.at { self.failure } else { Failure::Nothing }
    }

    fn passed(&self, site: Site) -> u32 {
        self.passed[site.place()].load(Ordering::Relaxed)
    }
}

fn requests() -> Vec<Request> {
    let trunk = [101, 102, 103, 104, 105, 106];
    let request = |tag: u64, own: &[Token], max_tokens| Request {
        tag,
        prompt: trunk[..6 - tag as usize].iter().chain(own).copied().collect(),
        params: Params { max_tokens, ignore_eos: true, ..Params::default() },
    };
    vec![request(0, &[7], 5), request(1, &[8, 9, 8], 4), request(2, &[], 6)]
}

const TAGS: [u64; 3] = [0, 1, 2];

/// Runs the workload once per fault and site passage; returns the number of runs.
pub(crate) fn every_point(setup: &Setup) -> Result<u32, String> {
    let calm = Script::new(Site::Between, u32::MAX, Failure::Nothing);
    run(setup, &calm)?;
    let mut runs = 1;
    for site in Site::ALL {
        let failures: Vec<Failure> = match site {
            Site::Between => TAGS
                .into_iter()
                .flat_map(|tag| [Failure::Abort(tag), Failure::Preempt(tag), Failure::StopText(tag)])
                .collect(),
            Site::Submit => vec![Failure::Refused, Failure::OutOfMemory],
            Site::Wait => vec![Failure::Failed(true), Failure::Failed(false), Failure::Lost, Failure::Late],
            Site::Take(_) => vec![Failure::NoSlots],
        };
        for at in 0..calm.passed(site) {
            for &failure in &failures {
                let script = Script::new(site, at, failure);
                run(setup, &script).map_err(|why| format!("{failure:?} at {site:?} {at}: {why}"))?;
                runs += 1;
            }
        }
    }
    Ok(runs)
}

#[derive(Default)]
struct Received {
    tokens: Vec<Token>,
    finish: Option<Finish>,
}

struct Run<'a> {
    setup: &'a Setup,
    script: Arc<Script>,
    core: Core,
    toy: Toy,
    pending: VecDeque<u64>,
    ids: Vec<RequestId>,
    received: BTreeMap<u64, Received>,
    /// Tags of requests in a failed step.
    hit: BTreeSet<u64>,
    now: u64,
    lost: bool,
}

fn run(setup: &Setup, script: &Arc<Script>) -> Result<(), String> {
    let mut run = Run::new(setup, Arc::clone(script));
    for request in requests() {
        run.ids.push(run.core.add(request, 0).map_err(|refusal| refusal.to_string())?);
    }
    for _ in 0..400 {
        let ran = run.turn();
        if let Some(broken) = run.toy.violations().first() {
            return Err(broken.clone());
        }
        run.core.check_invariants()?;
        run.collect_events()?;
        if run.lost || (!ran && run.core.is_idle()) {
            return run.check_completions();
        }
    }
    Err(format!("requests did not finish: {:?}", run.core.record()))
}

impl<'a> Run<'a> {
    fn new(setup: &'a Setup, script: Arc<Script>) -> Self {
        let block_size = if setup.cache == "radix/1" { 1 } else { 2 };
        let kind = kind_named(setup.cache.trim_end_matches("/1"));
        // Two of the three requests fit at a time, so that one waits or is preempted.
        let config = CacheConfig {
            block_size: if kind.is_block_based() { block_size } else { 1 },
            dummy: setup.policy == "rectangular",
            states: setup.is_recurrent.then_some(STATES),
            ..CacheConfig::new(24)
        };
        let inner = build(kind, &config).unwrap();
        let policy: Box<dyn Policy> = match setup.policy {
            "whole" => Box::new(PrefillFirst::new(Chunking::Off, 0.0)),
            "chunked" => Box::new(Chunked::new(5, Mixing::Off)),
            "mixed" => Box::new(Chunked::new(5, Mixing::On { target: None })),
            _ => Box::new(Rectangular::new(RectangularConfig {
                chunk_size: block_size * 2,
                max_batch: 2,
                max_batch_tkv: 400,
                ..Default::default()
            })),
        };
        let planned = Arc::clone(&script);
        let refuses = move |taking| planned.pass(Site::Take(taking)) == Failure::NoSlots;
        let cache = Box::new(Flaky::new(inner, refuses));
        let limits =
            Limits { max_num_seqs: 3, max_num_batched_tokens: 16, max_model_len: 64, ..Limits::default() };
        let mut core = Core::new(limits, Order::Fcfs, policy, cache);
        if setup.drafts != "off" {
            core.set_spec_steps(2);
        }
        Self {
            setup,
            script,
            core,
            toy: Toy::new().with_depth(4).with_shape(setup.shape()),
            pending: VecDeque::new(),
            ids: Vec::new(),
            received: BTreeMap::new(),
            hit: BTreeSet::new(),
            now: 0,
            lost: false,
        }
    }

    /// A fault site between two calls of the core.
    fn between(&mut self) {
        self.now += 1;
        let id = |tag: u64| self.ids[tag as usize];
        match self.script.pass(Site::Between) {
            Failure::Abort(tag) => {
                self.core.abort(id(tag), self.now);
            }
            Failure::Preempt(tag) => {
                self.core.preempt(id(tag));
            }
            Failure::StopText(tag)
                if self.core.sequence(id(tag)).is_some_and(|sequence| !sequence.outputs().is_empty()) =>
            {
                self.core.stop_at(id(tag), 1, self.now);
            }
            _ => {}
        }
    }

    /// One turn of the step loop; true if a step was scheduled or completed.
    fn turn(&mut self) -> bool {
        self.between();
        let step = self.core.schedule(self.now);
        for (row, spec) in self.core.take_binds() {
            self.toy.bind(row, spec);
        }
        self.between();
        let made = step.is_some();
        if let Some(step) = step {
            self.submit(step);
        }
        self.between();
        let mut ran = made;
        while !self.lost && self.pending.len() > usize::from(self.setup.overlap && made) {
            let failure = self.script.pass(Site::Wait);
            if failure == Failure::Late && made {
                break;
            }
            self.complete(failure);
            ran = true;
        }
        self.between();
        ran
    }

    fn submit(&mut self, step: Box<Step>) {
        if self.core.cache().check_fresh(&step.plan).is_err() {
            // A request named by the plan has ended since it was made.
            self.core.cancel(&step);
            return self.core.recycle(step);
        }
        let error = match self.script.pass(Site::Submit) {
            Failure::Refused => StepError::Failed("refused".into()),
            Failure::OutOfMemory => StepError::OutOfMemory("out of memory".into()),
            _ => return self.pending.push_back(self.toy.submit(step).unwrap()),
        };
        self.note_hit(&step);
        self.core.reject(&step, &error, self.now);
        self.core.recycle(step);
    }

    fn complete(&mut self, failure: Failure) {
        match failure {
            Failure::Failed(wrote) => self.toy.fail_next(wrote),
            Failure::Lost => self.toy.lose_next(),
            _ => {}
        }
        let Some(pending) = self.pending.pop_front() else { return };
        let (step, result) = self.toy.wait(pending);
        self.between();
        if result.is_err() {
            self.note_hit(&step);
        }
        self.core.postprocess(&step, &result, self.now);
        self.draft(&step);
        self.core.recycle(step);
        if let Err(StepError::Lost(_)) = result {
            self.lost = true;
            self.core.fail_all(Fault::DeviceLost, self.now);
        }
    }

    fn note_hit(&mut self, step: &Step) {
        let ids = step.batch.rows.iter().map(|row| RequestId(row.request));
        let tags = ids.filter_map(|id| self.ids.iter().position(|other| *other == id));
        self.hit.extend(tags.map(|tag| tag as u64));
        // A step may also carry row moves of sequences without a row in it.
        if !step.plan.moves.is_empty() {
            self.hit.extend(TAGS);
        }
    }

    /// Proposes one correct and one wrong draft.
    fn draft(&mut self, step: &Step) {
        if self.setup.drafts == "off" {
            return;
        }
        for row in &step.batch.rows {
            let id = RequestId(row.request);
            let Some(sequence) = self.core.sequence(id).filter(|one| one.in_flight() == 0) else { continue };
            let had = sequence.outputs().len();
            let next = self.setup.shape().alone(sequence.prompt(), had as u32 + 1, true)[had];
            match self.setup.drafts {
                "tree" => self.core.set_drafts(id, &drafts(&[7, next], &[0, 0])),
                _ => self.core.set_drafts(id, &drafts(&[next, 7], &[])),
            }
        }
    }

    fn collect_events(&mut self) -> Result<(), String> {
        for EventOutput { event, tokens, .. } in self.core.outbox().iter() {
            let one = self.received.entry(event.tag).or_default();
            if one.finish.is_some() || event.first as usize != one.tokens.len() {
                return Err(format!("request {} has received {:?}, then {event:?}", event.tag, one.tokens));
            }
            one.tokens.extend_from_slice(tokens);
            one.finish = event.finish;
        }
        self.core.outbox().clear();
        Ok(())
    }

    /// Checks that each request ended as the injected fault permits, and that the KV pool is back
    /// at its baseline.
    fn check_completions(&self) -> Result<(), String> {
        for request in requests() {
            let tag = request.tag;
            let alone = self.setup.shape().alone(&request.prompt, request.params.max_tokens, true);
            let Some(Received { tokens, finish: Some(finish) }) = self.received.get(&tag) else {
                return Err(format!("request {tag} never ends"));
            };
            let may_end = match finish {
                Finish::MaxTokens if *tokens == alone => continue,
                Finish::Aborted => self.script.failure == Failure::Abort(tag),
                Finish::StopText => {
                    self.script.failure == Failure::StopText(tag) && tokens.len() <= alone.len()
                }
                Finish::Failed(Fault::DeviceLost) => self.lost,
                Finish::Failed(Fault::Step | Fault::OutOfMemory) => self.hit.contains(&tag),
                // A request that runs alone and is refused slots appears to own the whole pool.
                Finish::Capacity => self.script.failure == Failure::NoSlots,
                _ => false,
            };
            if !may_end || !alone.starts_with(tokens) {
                return Err(format!("request {tag} receives {tokens:?}, {finish:?}; alone {alone:?}"));
            }
        }
        let cache = self.core.cache();
        let (usage, states) = (cache.usage(), states_usage(cache));
        let is_baseline = usage.held + states.held == 0
            && (self.lost || usage.available() == cache.shape().capacity && states.leased == 0);
        let what = "the pools do not return to their baselines";
        if is_baseline { Ok(()) } else { Err(format!("{what}: {usage:?}, {states:?}")) }
    }
}

fn drafts(tokens: &[Token], parents: &[i32]) -> Proposal {
    Proposal { tokens: tokens.to_vec(), parents: parents.to_vec(), ..Proposal::default() }
}
