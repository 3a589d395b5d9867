//! Random workloads for `main.rs`: draws a setup and requests from a seed, drives the engine, and
//! compares completions with those of each request run alone.
#![allow(clippy::unwrap_used, clippy::panic)] // a harness of tests
use crate::{drafter::Oracle, flaky::Flaky, reasons::Reasons};
use kvasir_engine::rectangular::Rules;
use kvasir_engine::*;
use kvasir_kv::{Cache, CacheConfig, CacheKind, GroupId, PoolUsage, StateConfig, Token, WindowConfig, build};
use kvasir_sim::{Faults, Toy, ToyShape};
use kvasir_testkit::Random;
use std::collections::BTreeMap;

/// All parameters of one random workload; printed when it fails.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) cache: &'static str,
    pub(crate) block: u32,
    pub(crate) slots: u32,
    pub(crate) sharing: bool,
    pub(crate) policy: String,
    pub(crate) order: Order,
    pub(crate) overlap: bool,
    pub(crate) depth: u32,
    pub(crate) drafts: &'static str,
    pub(crate) seqs: u32,
    pub(crate) budget: u32,
    pub(crate) faults: Faults,
    pub(crate) flaky: u32,
    pub(crate) aborts: bool,
    pub(crate) states: Option<StateConfig>,
    pub(crate) windows: Vec<u32>,
    /// A pool per window; empty if the windows join the full group.
    pub(crate) window_pools: Vec<WindowConfig>,
}

/// Coverage counters of the workloads, so that a test that exercises nothing fails.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) completed: u64,
    pub(crate) preemptions: u64,
    pub(crate) hits: u64,
    pub(crate) accepted: u64,
    pub(crate) aborted: u64,
    pub(crate) failed: u64,
    pub(crate) capacity: u64,
    pub(crate) refused: u64,
    pub(crate) lost: u64,
    pub(crate) shifted: u64,
    pub(crate) recurrent: GroupCoverage,
    pub(crate) windowed: GroupCoverage,
}

/// Coverage counters of requests over caches with recurrent states, or with window groups.
#[derive(Debug, Default)]
pub(crate) struct GroupCoverage {
    pub(crate) completed: u64,
    pub(crate) preemptions: u64,
    pub(crate) hits: u64,
    pub(crate) accepted: u64,
    pub(crate) failed: u64,
    pub(crate) shifted: u64,
}

impl Coverage {
    /// The counters of the layer groups that this setup has.
    fn groups(&mut self, setup: &Setup) -> Vec<&mut GroupCoverage> {
        let recurrent = setup.states.is_some().then_some(&mut self.recurrent);
        let windowed = (!setup.window_pools.is_empty()).then_some(&mut self.windowed);
        recurrent.into_iter().chain(windowed).collect()
    }
}

/// A request of the workload, with the turns at which it is added, aborted and stopped.
struct PlannedRequest {
    request: Request,
    siblings: u32,
    at_turn: u32,
    abort_at: Option<u32>,
    stop_at: Option<(u32, u32)>,
}

impl Setup {
    pub(crate) fn random(seed: u64) -> (Self, Random) {
        let mut random = Random::new(seed);
        let cache = random.pick(CACHES);
        let policy = random.pick(POLICIES);
        let block = match cache {
            "paged" | "radix" => random.pick(&[1, 2, 3, 4, 8, 16]),
            _ => 1,
        };
        let tight = random.chance(50);
        let blocks = if tight { random.between(24, 48).div_ceil(block) } else { 600u32.div_ceil(block) };
        let faulty = random.chance(25);
        let rare = |random: &mut Random| if random.chance(50) { random.between(0, 60) } else { 0 };
        let setup = Self {
            seed,
            cache,
            block,
            slots: blocks * block,
            sharing: random.chance(70),
            policy: policy.to_owned(),
            order: random.pick(&[Order::Fcfs, Order::Priority, Order::Fair]),
            overlap: random.chance(60),
            depth: random.between(1, 3),
            drafts: random.pick(&["off", "off", "chain", "tree", "suffix", "ngram"]),
            seqs: random.pick(&[1, 2, 3, 5, 8]),
            budget: if policy == "rectangular" { 400 } else { random.pick(&[8, 12, 25, 70, 400]) },
            faults: if faulty {
                Faults {
                    seed,
                    refused: rare(&mut random),
                    failed: rare(&mut random),
                    out_of_memory: rare(&mut random),
                    late: rare(&mut random),
                    lost: if random.chance(10) { 20 } else { 0 },
                }
            } else {
                Faults::default()
            },
            flaky: if faulty && random.chance(40) { random.between(1, 15) } else { 0 },
            aborts: random.chance(30),
            states: None,
            windows: Vec::new(),
            window_pools: Vec::new(),
        };
        (setup.with_random_groups(), random)
    }

    /// Gives half of the models a recurrent state, and half of them sliding windows.
    fn with_random_groups(self) -> Self {
        let mut random = Random::new(self.seed ^ 55);
        let windows = random.pick(&[&[][..], &[], &[3], &[1, 8], &[20]]).to_vec();
        let states = random.chance(50).then(|| StateConfig {
            live: random.between(1, 6),
            checkpoints: random.pick(&[0, 1, 2, 4, 9, 60]),
            tail_rows: random.between(1, 6),
            interval: random.pick(&[0, 0, 8, 32]),
        });
        // Models with a recurrent state refuse draft trees.
        let drafts = if states.is_some() && self.drafts == "tree" { "chain" } else { self.drafts };
        let longest_draft = random.between(1, 6);
        let pools = windows.iter().map(|&window| self.window_pool(window, longest_draft)).collect();
        // The rectangular policy and caches of one sequence do not support window groups.
        let must_join = kind_named(self.cache).holds_one_sequence() || self.policy == "rectangular";
        let window_pools = if must_join || random.chance(30) { Vec::new() } else { pools };
        Self { windows, window_pools, states, drafts, ..self }
    }

    /// A pool for the windows of all running sequences and three steps in flight.
    fn window_pool(&self, window: u32, longest_draft: u32) -> WindowConfig {
        let config = WindowConfig { window, capacity: 0, longest_draft };
        let step_rows = self.budget + self.seqs * (longest_draft + 1);
        let capacity = self.seqs * config.slots_per_sequence(self.block) + 3 * step_rows;
        WindowConfig { capacity: capacity.next_multiple_of(self.block), ..config }
    }

    pub(crate) fn shape(&self) -> ToyShape {
        ToyShape { windows: self.windows.clone(), state: self.states.is_some() }
    }

    fn cache(&self) -> Box<dyn Cache> {
        let kind = kind_named(self.cache);
        let default = CacheConfig::new(self.slots);
        let config = CacheConfig {
            block_size: self.block,
            max_sequences: if kind == CacheKind::Cells { 64 } else { default.max_sequences },
            sharing: self.sharing,
            dummy: self.policy == "rectangular",
            windows: self.window_pools.clone(),
            states: self.states,
            ..default
        };
        build(kind, &config).unwrap()
    }

    fn policy(&self, random: &mut Random) -> Box<dyn Policy> {
        match self.policy.as_str() {
            "whole" => Box::new(PrefillFirst::new(Chunking::Off, 0.0)),
            "cut" => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
            "capped" => Box::new(PrefillFirst::new(Chunking::On { cap: Some(random.between(1, 9)) }, 0.0)),
            "delayed" => Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.5)),
            "chunked" => Box::new(Chunked::new(random.between(1, 30), Mixing::Off)),
            "mixed" => Box::new(Chunked::new(random.between(1, 30), Mixing::On { target: None })),
            "target" => {
                let target = match random.between(0, 1) {
                    0 => StepTarget::Time(1500),
                    _ => StepTarget::Percent(350),
                };
                Box::new(Chunked::new(random.between(1, 90), Mixing::On { target: Some(target) }))
            }
            "rectangular" => Box::new(Rectangular::new(RectangularConfig {
                chunk_size: self.block * random.between(1, 3),
                max_batch: random.between(1, 6),
                max_batch_tkv: random.pick(&[600, 2000]),
                interleave: random.chance(50),
                rules: random.pick(&[Rules::Document, Rules::Later]),
                pausing: random.chance(30),
                long_output_first: random.chance(30),
            })),
            other => panic!("no policy {other}"),
        }
    }
}

pub(crate) const CACHES: &[&str] = &["paged", "radix", "cells", "contiguous", "tree"];
pub(crate) const POLICIES: &[&str] =
    &["whole", "cut", "capped", "delayed", "chunked", "mixed", "target", "rectangular"];

fn requests(random: &mut Random, setup: &Setup) -> Vec<PlannedRequest> {
    let trunk: Vec<Token> = (0..40).map(|_| 100 + random.between(0, 3)).collect();
    (0..random.between(1, 8))
        .map(|i| {
            let shared = if random.chance(60) { random.between(0, 16) } else { 0 };
            let own = random.between(1, 14);
            let mut prompt = trunk[..shared as usize].to_vec();
            prompt.extend((0..own).map(|_| 100 + random.between(0, 3)));
            let params = Params {
                max_tokens: if random.chance(10) { random.between(0, 50) } else { random.between(0, 14) },
                ignore_eos: random.chance(20),
                eos: vec![Toy::EOS],
                priority: random.between(0, 2) as i32,
                key: random.bits() % 3,
                salt: random.bits() % 2,
                serial: random.chance(10),
                ..Params::default()
            };
            let shifts = Random::new(setup.seed ^ u64::from(i) << 32).pick(&[None, None, Some(0), Some(9)]);
            let mut marked = Random::new(setup.seed ^ u64::from(i) << 40);
            let marks = (0..marked.between(0, 3)).map(|_| marked.between(0, prompt.len() as u32)).collect();
            let params = Params { context_shift: shifts, marks, ..params };
            let at = |random: &mut Random| random.between(0, 40);
            PlannedRequest {
                request: Request { tag: u64::from(i) * 10, prompt, params },
                siblings: if random.chance(15) { random.between(2, 3) } else { 1 },
                at_turn: random.between(0, 12),
                abort_at: (setup.aborts && random.chance(40)).then(|| at(random)),
                stop_at: (setup.aborts && random.chance(20)).then(|| (at(random), random.between(0, 6))),
            }
        })
        .collect()
}

/// Runs one random workload; the error describes the first violation.
pub(crate) fn run(seed: u64, seen: &mut Coverage) -> Result<(), String> {
    let (setup, mut random) = Setup::random(seed);
    drive(&setup, &mut random, seen).map_err(|why| format!("{why}\n{setup:?}"))
}

fn engine(setup: &Setup, random: &mut Random) -> Engine<Toy> {
    let limits = Limits {
        max_num_seqs: setup.seqs,
        max_num_batched_tokens: setup.budget,
        max_model_len: if random.chance(20) { random.between(20, 40) } else { 400 },
        prefix_cache: setup.sharing,
        watermark: if random.chance(20) { random.between(0, 200) } else { 0 },
        ..Limits::default()
    };
    let mut cache = setup.cache();
    if setup.flaky > 0 {
        let (mut random, percent) = (Random::new(setup.seed ^ 77), setup.flaky);
        cache = Box::new(Flaky::new(cache, move |_| random.chance(percent)));
    }
    let trees = setup.drafts == "tree";
    let drafting = setup.drafts != "off" && (!trees || cache.tree().is_ok());
    let core = Core::new(limits, setup.order, setup.policy(random), cache);
    let mut now = 0;
    let clock = move || {
        now += 500;
        now
    };
    let device = Toy::with_faults(setup.faults).with_depth(setup.depth).with_shape(setup.shape());
    let mut engine = Engine::new(core, device, clock);
    engine = engine.overlap(setup.overlap);
    if matches!(setup.drafts, "suffix" | "ngram") {
        let width = random.between(1, 6);
        let drafter: Box<dyn Drafter> = match setup.drafts {
            "suffix" => Box::new(SuffixDrafter::new(width)),
            _ => Box::new(NgramDrafter::new(random.between(1, 3) as usize, width)),
        };
        engine = engine.draft(drafter).unwrap();
        engine = engine.draft_width(random.pick(&[DraftWidth::Adaptive, DraftWidth::Fixed]));
    } else if drafting {
        let (width, accuracy) = (random.between(1, 5), random.between(0, 100));
        let (random, shape) = (Random::new(setup.seed ^ 99), setup.shape());
        let oracle = Oracle { random, width, trees, accuracy, shape };
        engine = engine.draft(Box::new(oracle)).unwrap();
    }
    engine
}

#[derive(Default)]
struct Received {
    tokens: Vec<Token>,
    finish: Option<Finish>,
}

/// Runs the engine until idle, checking invariants, device violations and events after every turn.
fn drive(setup: &Setup, random: &mut Random, seen: &mut Coverage) -> Result<(), String> {
    let reasons = Reasons::default();
    let mut engine = engine(setup, random).observe(Box::new(reasons.clone()));
    let planned = requests(random, setup);
    let mut received: BTreeMap<u64, Received> = BTreeMap::new();
    let mut ids: BTreeMap<u64, RequestId> = BTreeMap::new();
    let mut lost = false;
    for turn in 0..3000 {
        for one in planned.iter().filter(|one| one.at_turn == turn) {
            let now = engine.now();
            if let Ok(added) = engine.core_mut().add_siblings(one.request.clone(), one.siblings, now) {
                ids.extend((one.request.tag..).zip(added));
            }
        }
        for one in &planned {
            let (Some(id), now) = (ids.get(&one.request.tag).copied(), engine.now()) else { continue };
            if one.abort_at == Some(turn) {
                engine.core_mut().abort(id, now);
            }
            if let Some((at, keep)) = one.stop_at
                && at == turn
                && engine.core().sequence(id).is_some_and(|s| s.outputs().len() >= keep as usize)
            {
                engine.core_mut().stop_at(id, keep, now);
            }
        }
        let turn_done = match engine.step() {
            Ok(done) => done,
            Err(Exit::DeviceLost(_)) => {
                lost = true;
                Turn::Idle
            }
            Err(exit) => return Err(format!("turn {turn}: {exit}")),
        };
        // Between steps the memory of free slots may go at any time.
        engine.release_free_memory();
        if let Some(broken) = engine.executor().violations().first() {
            return Err(format!("turn {turn}: {broken}"));
        }
        if turn_done == Turn::Deferred {
            reasons.ask(engine.core(), None);
        }
        if let Some(missing) = reasons.missing() {
            return Err(format!("turn {turn}: {missing}"));
        }
        engine.core().check_invariants().map_err(|why| format!("turn {turn}: {why}"))?;
        collect_events(setup, &mut engine, &mut received, seen)?;
        let all_here = planned.iter().all(|one| one.at_turn <= turn);
        if lost || (all_here && turn_done == Turn::Idle) {
            let accepted = engine.core().draft_stats().totals().0;
            seen.accepted += accepted;
            seen.groups(setup).into_iter().for_each(|group| group.accepted += accepted);
            seen.lost += u64::from(lost);
            return check_completions(setup, &engine, &planned, &received, lost);
        }
    }
    let (waiting, running) = engine.core().counts();
    let record = engine.core().record();
    Err(format!("requests did not finish: {waiting} wait, {running} run, {record:?}"))
}

/// Collects events; fails on a gap, a repetition or an event after the end.
fn collect_events(
    setup: &Setup,
    engine: &mut Engine<Toy>,
    received: &mut BTreeMap<u64, Received>,
    seen: &mut Coverage,
) -> Result<(), String> {
    let outbox = engine.core_mut().outbox();
    for EventOutput { event, tokens, .. } in outbox.iter() {
        let one = received.entry(event.tag).or_default();
        if one.finish.is_some() {
            return Err(format!("request {} receives an event after its end: {event:?}", event.tag));
        }
        if event.first as usize != one.tokens.len() {
            return Err(format!(
                "request {} receives token {} after {}",
                event.tag,
                event.first,
                one.tokens.len()
            ));
        }
        one.tokens.extend_from_slice(tokens);
        one.finish = event.finish;
    }
    for ended in &outbox.ended {
        seen.preemptions += u64::from(ended.preemptions);
        seen.hits += u64::from(ended.cached > 0);
        seen.shifted += u64::from(ended.dropped > 0);
        match ended.finish {
            Finish::Eos | Finish::MaxTokens => seen.completed += 1,
            Finish::Aborted => seen.aborted += 1,
            Finish::Failed(_) => seen.failed += 1,
            Finish::Capacity => seen.capacity += 1,
            Finish::Refused(_) => seen.refused += 1,
            _ => {}
        }
        for group in seen.groups(setup) {
            group.preemptions += u64::from(ended.preemptions);
            group.hits += u64::from(ended.cached > 0);
            group.shifted += u64::from(ended.dropped > 0);
            group.completed += u64::from(matches!(ended.finish, Finish::Eos | Finish::MaxTokens));
            group.failed += u64::from(matches!(ended.finish, Finish::Failed(_)));
        }
    }
    outbox.clear();
    Ok(())
}

/// Compares every completion with that of its request run alone, and the KV pool with its baseline.
fn check_completions(
    setup: &Setup,
    engine: &Engine<Toy>,
    planned: &[PlannedRequest],
    received: &BTreeMap<u64, Received>,
    lost: bool,
) -> Result<(), String> {
    for one in planned {
        let params = &one.request.params;
        let (prompt, most) = (&one.request.prompt, params.max_tokens);
        let alone = match params.context_shift {
            None => setup.shape().alone(prompt, most, params.ignore_eos),
            Some(keep) => {
                let cache = engine.core().cache();
                let context = engine.core().limits().max_model_len.min(cache.shape().capacity);
                setup.shape().shifting(prompt, most, params.ignore_eos, keep, context).0
            }
        };
        for tag in one.request.tag..one.request.tag + u64::from(one.siblings) {
            let Some(got) = received.get(&tag) else {
                if lost || one.siblings > 1 {
                    continue; // never added, or refused with its leader
                }
                return Err(format!("request {tag} receives nothing"));
            };
            let whole = match got.finish {
                None => return Err(format!("request {tag} never ends")),
                Some(Finish::Eos | Finish::MaxTokens) => true,
                Some(Finish::StopText) => false,
                Some(Finish::Refused(_) | Finish::Aborted | Finish::ModelLength | Finish::Capacity) => false,
                Some(Finish::Failed(Fault::Internal)) => {
                    return Err(format!("request {tag} failed by a defect"));
                }
                Some(Finish::Failed(_)) if setup.faults == Faults::default() => {
                    return Err(format!("request {tag} failed without a fault"));
                }
                Some(Finish::Failed(_)) => false,
                other => return Err(format!("request {tag} ends with {other:?}")),
            };
            let len = one.request.prompt.len() + got.tokens.len();
            let fits = len.div_ceil(setup.block as usize) * setup.block as usize <= setup.slots as usize;
            if got.finish == Some(Finish::Capacity) && fits && setup.flaky == 0 {
                return Err(format!("request {tag} ends for want of slots, with {len} tokens"));
            }
            let right = if whole { got.tokens == alone } else { alone.starts_with(&got.tokens) };
            if !right {
                return Err(format!("request {tag}: {:?}, {:?}, alone {alone:?}", got.tokens, got.finish));
            }
        }
    }
    if lost {
        return Ok(());
    }
    let cache = engine.core().cache();
    let (usage, states) = (cache.usage(), states_usage(cache));
    let windows = (1..).map(GroupId).zip(&setup.window_pools);
    let window_usage = windows.map(|(group, pool)| (cache.usage_of(group), pool));
    let is_baseline = usage.free + usage.evictable == cache.shape().capacity
        && { window_usage }.all(|(usage, pool)| usage.free + usage.evictable == pool.capacity)
        && (usage.held, usage.leased) == (0, 0)
        && states.free == setup.states.map_or(0, |states| states.live);
    if is_baseline {
        Ok(())
    } else {
        Err(format!("the pools do not return to their baselines: {usage:?}, {states:?}"))
    }
}

/// The cache of this name.
pub(crate) fn kind_named(name: &str) -> CacheKind {
    CacheKind::ALL.iter().copied().find(|kind| kind.name() == name).unwrap()
}

/// Usage of the live states; all zero without states.
pub(crate) fn states_usage(cache: &dyn Cache) -> PoolUsage {
    cache.shape().groups.states().map_or_else(PoolUsage::default, |group| cache.usage_of(group))
}
