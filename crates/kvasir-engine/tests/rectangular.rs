//! Randomized test of the `rectangular` policy against a static-shape device: every step has a
//! supported shape, the volume limit holds, and each completion equals that of its request run
//! alone.
//!
//! `KVASIR_WORKLOADS=100000 cargo test --release -p kvasir-engine --test rectangular` runs more
//! seeds.

#![allow(clippy::unwrap_used)] // a test

use kvasir_engine::rectangular::Rules;
use kvasir_engine::{
    Core, Engine, EventOutput, Exit, Finish, Limits, Order, Params, Rectangular, RectangularConfig, Request,
    Turn,
};
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::blocks::BlockConfig;
use kvasir_kv::{Cache, Paged, PlanKind, Radix, Token};
use kvasir_sim::{StaticShape, Toy};
use kvasir_testkit::{Random, env_number};
use std::collections::BTreeMap;

/// The toy device behind a static-shape check.
struct ShapeChecked {
    toy: Toy,
    shape: StaticShape,
    /// Counts: rows with redirected writes, rows with left padding, steps with several rows, all
    /// steps.
    seen: [u64; 4],
}

impl Executor for ShapeChecked {
    type Pending = <Toy as Executor>::Pending;

    fn abilities(&self) -> Abilities {
        Abilities { plans: &[PlanKind::Contiguous, PlanKind::Ragged], ..self.toy.abilities() }
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.toy.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<Self::Pending, Refused> {
        if let Err(why) = self.shape.check(&step) {
            return Err(Refused { step, error: StepError::Lost(why) });
        }
        let rows = &step.plan.rows;
        self.seen[0] += rows.iter().filter(|row| row.redirected > 0).count() as u64;
        self.seen[1] += rows.iter().filter(|row| row.left_pad_blocks > 0).count() as u64;
        self.seen[2] += u64::from(rows.len() > 1);
        self.seen[3] += 1;
        self.toy.submit(step)
    }

    fn wait(&mut self, pending: Self::Pending) -> (Box<Step>, Result<(), StepError>) {
        self.toy.wait(pending)
    }
}

#[derive(Debug)]
struct Setup {
    config: RectangularConfig,
    block: u32,
    length: u32,
    radix: bool,
    sharing: bool,
    overlap: bool,
    blocks: u32,
    aborts: bool,
}

impl Setup {
    fn random(random: &mut Random) -> Self {
        let block = random.pick(&[1, 2, 4, 8]);
        let chunk_size = block * random.between(1, 4);
        let length = random.between(24, 72).next_multiple_of(block);
        let max_batch = random.between(1, 6);
        let config = RectangularConfig {
            chunk_size,
            max_batch,
            max_batch_tkv: u64::from(length + random.between(0, length * (max_batch - 1))),
            interleave: random.chance(60),
            rules: if random.chance(50) { Rules::Document } else { Rules::Later },
            pausing: random.chance(40),
            long_output_first: random.chance(50),
        };
        let most = max_batch * length / block;
        let blocks = if random.chance(40) { random.between(length / block, most) } else { most + 2 };
        let (radix, sharing) = (random.chance(30), random.chance(70));
        Self {
            config,
            block,
            length,
            radix,
            sharing,
            overlap: random.chance(50),
            blocks,
            aborts: random.chance(30),
        }
    }

    fn engine(&self) -> Engine<ShapeChecked> {
        let blocks = BlockConfig {
            block_size: self.block,
            blocks: self.blocks,
            max_sequences: 64,
            sharing: self.sharing,
            dummy: true,
            ..BlockConfig::default()
        };
        let cache: Box<dyn Cache> = if self.radix {
            Box::new(Radix::new(blocks).unwrap())
        } else {
            Box::new(Paged::new(blocks).unwrap())
        };
        let limits = Limits {
            max_num_seqs: 32,
            max_num_batched_tokens: 64,
            max_model_len: self.length,
            prefix_cache: self.sharing,
            ..Limits::default()
        };
        let core = Core::new(limits, Order::Fcfs, Box::new(Rectangular::new(self.config)), cache);
        let shape = StaticShape {
            block: self.block,
            chunk: self.config.chunk_size,
            max_rows: self.config.max_batch,
            max_volume: self.config.max_batch_tkv,
            max_model_len: self.length,
        };
        let mut now = 0;
        let clock = move || {
            now += 500;
            now
        };
        Engine::new(core, ShapeChecked { toy: Toy::new(), shape, seen: [0; 4] }, clock).overlap(self.overlap)
    }

    /// Whether the volume test alone bounds the volume, so that nothing is ever paused. A row that
    /// waits for its token in flight falls behind the others, which the test does not model;
    /// rotation bounds the volume then.
    fn never_pauses(&self, planned: &[PlannedRequest]) -> bool {
        let falls_behind = self.overlap && planned.iter().any(|one| one.request.params.serial);
        !self.config.pausing
            && !falls_behind
            && (self.config.rules == Rules::Document || self.config.interleave)
    }
}

struct PlannedRequest {
    request: Request,
    at: u32,
    abort_at: Option<u32>,
}

fn requests(random: &mut Random, setup: &Setup) -> Vec<PlannedRequest> {
    let trunk: Vec<Token> = (0..setup.length).map(|_| 100 + random.between(0, 2)).collect();
    let request = |random: &mut Random, tag: u64| {
        let shared = if random.chance(60) { random.between(0, setup.length / 2) } else { 0 };
        let mut prompt = trunk[..shared as usize].to_vec();
        prompt.extend((0..random.between(1, setup.length / 2 - 1)).map(|_| 100 + random.between(0, 2)));
        let params = Params {
            max_tokens: random.between(1, 40),
            ignore_eos: random.chance(50),
            eos: vec![Toy::EOS],
            serial: random.chance(10),
            ..Params::default()
        };
        let request = Request { tag, prompt, params };
        let abort_at = (setup.aborts && random.chance(40)).then(|| random.between(0, 60));
        PlannedRequest { request, at: random.between(0, 40), abort_at }
    };
    (0..u64::from(random.between(1, 9))).map(|tag| request(random, tag)).collect()
}

/// Runs one workload; returns the device's counts and the number of pauses.
fn run(seed: u64) -> Result<([u64; 4], u64), String> {
    let mut random = Random::new(seed);
    let setup = Setup::random(&mut random);
    let planned = requests(&mut random, &setup);
    drive(&setup, &planned).map_err(|why| format!("{why}\nseed {seed}: {setup:?}"))
}

fn drive(setup: &Setup, planned: &[PlannedRequest]) -> Result<([u64; 4], u64), String> {
    let mut engine = setup.engine();
    let mut ids = BTreeMap::new();
    let mut received: BTreeMap<u64, (Vec<Token>, Option<Finish>)> = BTreeMap::new();
    let mut pauses = 0;
    for turn in 0..20_000 {
        for one in planned.iter().filter(|one| one.at == turn) {
            let now = engine.now();
            if let Ok(id) = engine.core_mut().add(one.request.clone(), now) {
                ids.insert(one.request.tag, id);
            }
        }
        for one in planned.iter().filter(|one| one.abort_at == Some(turn)) {
            let now = engine.now();
            ids.get(&one.request.tag).map(|id| engine.core_mut().abort(*id, now));
        }
        let done = match engine.step() {
            Ok(done) => done,
            Err(Exit::DeviceLost(why)) => return Err(format!("turn {turn}: the device refuses: {why}")),
            Err(exit) => return Err(format!("turn {turn}: {exit}")),
        };
        if let Some(broken) = engine.executor().toy.violations().first() {
            return Err(format!("turn {turn}: {broken}"));
        }
        engine.core().check_invariants().map_err(|why| format!("turn {turn}: {why}"))?;
        pauses = engine.core().record().rectangle.pause_events.max(pauses);
        for EventOutput { event, tokens, .. } in engine.core_mut().outbox().iter() {
            let one = received.entry(event.tag).or_default();
            one.0.extend_from_slice(tokens);
            one.1 = event.finish;
        }
        engine.core_mut().outbox().clear();
        if done == Turn::Idle && planned.iter().all(|one| one.at <= turn) {
            check_completions(setup, &engine, planned, &received)?;
            if setup.never_pauses(planned) && pauses > 0 {
                return Err(format!("{pauses} pauses although every newcomer was tested"));
            }
            return Ok((engine.executor().seen, pauses));
        }
    }
    Err(format!("requests did not finish: {:?}", engine.core().record()))
}

/// Compares every completion with that of its request run alone, and the KV pool with its baseline.
fn check_completions(
    setup: &Setup,
    engine: &Engine<ShapeChecked>,
    planned: &[PlannedRequest],
    received: &BTreeMap<u64, (Vec<Token>, Option<Finish>)>,
) -> Result<(), String> {
    for one in planned {
        let params = &one.request.params;
        let alone = Toy::alone(&one.request.prompt, params.max_tokens, params.ignore_eos);
        let Some((got, finish)) = received.get(&one.request.tag) else {
            return Err(format!("request {} receives nothing", one.request.tag));
        };
        let right = match finish {
            Some(Finish::Eos | Finish::MaxTokens) => *got == alone,
            Some(Finish::ModelLength) => {
                alone.starts_with(got) && one.request.prompt.len() + got.len() == setup.length as usize
            }
            Some(Finish::Aborted) => alone.starts_with(got) && one.abort_at.is_some(),
            _ => false,
        };
        if !right {
            return Err(format!("request {}: {got:?} {finish:?}, alone {alone:?}", one.request.tag));
        }
    }
    let usage = engine.core().cache().usage();
    if usage.available() == engine.core().cache().shape().capacity && usage.held + usage.leased == 0 {
        Ok(())
    } else {
        Err(format!("the pool does not return to its baseline: {usage:?}"))
    }
}

#[test]
fn steps_are_rectangles_within_the_volume_and_completions_are_exact() {
    let count = env_number("KVASIR_WORKLOADS", 4000);
    let first = env_number("KVASIR_FIRST", 0);
    let (mut seen, mut pauses) = ([0; 4], 0);
    let mut wrong = Vec::new();
    for seed in first..first + count {
        match run(seed) {
            Ok((saw, paused)) => {
                seen.iter_mut().zip(saw).for_each(|(sum, n)| *sum += n);
                pauses += paused;
            }
            Err(why) => wrong.push(why),
        }
    }
    println!("{count} workloads: redirected, padded, wide, all steps {seen:?}, {pauses} pauses");
    assert!(wrong.is_empty(), "{} of {count} are wrong, first:\n{}", wrong.len(), wrong[0]);
    assert!(pauses > 0 && seen.iter().all(|n| *n > 0), "{seen:?} and {pauses} pauses: too little happened");
}
