//! Fair shares of client keys under `Order::Fair`: the first chunk of a key within its entitlement
//! waits for at most two steps, whatever load another key causes.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_exec::{OutputRow, Step};
use kvasir_kv::{CacheConfig, CacheKind, Span, Token, build};
use std::collections::VecDeque;

const HEAVY: u64 = 1;
const LIGHT: u64 = 2;
/// Most steps scheduled before a key's first chunk.
const BOUND: usize = 2;

fn policies() -> [Box<dyn Policy>; 5] {
    let mixed = |target| Box::new(Chunked::new(512, Mixing::On { target }));
    [
        Box::new(Chunked::new(512, Mixing::Off)),
        mixed(None),
        mixed(Some(StepTarget::Percent(400))),
        mixed(Some(StepTarget::Time(1))),
        Box::new(PrefillFirst::new(Chunking::On { cap: None }, 0.0)),
    ]
}

/// A core with up to `overlap` steps in flight, whose device samples token 30.
struct Device {
    core: Core,
    in_flight: VecDeque<Box<Step>>,
    overlap: usize,
    preempted: Vec<RequestId>,
    /// Request and number of tokens of each row of the last step.
    rows: Vec<(u64, usize)>,
}

impl Device {
    fn new(order: Order, policy: Box<dyn Policy>, seqs: u32, slots: u32, overlap: usize) -> Self {
        let limits = Limits {
            max_num_seqs: seqs,
            max_num_batched_tokens: 1024,
            max_model_len: 1 << 15,
            ..Limits::default()
        };
        let config = CacheConfig { block_size: 16, sharing: true, ..CacheConfig::new(slots) };
        let mut core = Core::new(limits, order, policy, build(CacheKind::Radix, &config).unwrap());
        core.set_costs(Costs { step_ns: 1_000_000, row_ns: 1000, token_ns: 10_000, ..Costs::default() });
        Self { core, in_flight: VecDeque::new(), overlap, preempted: Vec::new(), rows: Vec::new() }
    }

    fn add(&mut self, key: u64, prompt: u32, max_tokens: u32, n: u32) -> RequestId {
        // Prompts of live requests begin with different tokens, so they share no prefix.
        let first = 100 + self.core.running().count() as u32 + self.core.waiting().count() as u32;
        self.add_prompt(key, (0..prompt).map(|i| first * 7 + i).collect(), max_tokens, n)
    }

    fn add_prompt(&mut self, key: u64, prompt: Vec<Token>, max_tokens: u32, n: u32) -> RequestId {
        let params = Params { max_tokens, key, salt: key, ..Params::default() };
        self.core.add_siblings(Request { tag: key, prompt, params }, n, 0).unwrap()[0]
    }

    fn fill(&mut self, key: u64, prompt: u32, max_tokens: u32, n: u32) {
        self.add(key, prompt, max_tokens, n);
    }

    /// Schedules a step, and completes the oldest if too many are in flight. Returns the ids in it.
    fn step(&mut self) -> Vec<u64> {
        let step = self.core.schedule(0);
        self.core.take_binds().for_each(drop);
        self.core.check_invariants().unwrap();
        self.preempted.extend(&self.core.record().preempted);
        let rows = step.iter().flat_map(|step| &step.batch.rows);
        self.rows = rows.map(|row| (row.request, row.tokens.len as usize)).collect();
        let is_stalled = step.is_none();
        self.in_flight.extend(step);
        while self.in_flight.len() > self.overlap || is_stalled && !self.in_flight.is_empty() {
            let mut step = self.in_flight.pop_front().unwrap();
            for row in &step.batch.rows {
                let start = step.output.tokens.len();
                let count = (row.tokens.len - row.sample_from) as usize;
                step.output.tokens.extend(std::iter::repeat_n(30, count));
                step.output.rows.push(OutputRow { tokens: Span::new(start, count) });
            }
            self.core.postprocess(&step, &Ok(()), 0);
            self.core.recycle(step);
        }
        self.core.outbox().clear();
        self.rows.iter().map(|(request, _)| *request).collect()
    }

    /// Tokens of a request in the last step.
    fn fed(&self, id: RequestId) -> usize {
        self.rows.iter().filter(|(request, _)| *request == id.0).map(|(_, tokens)| tokens).sum()
    }

    /// Steps scheduled before the first one with this request.
    fn steps_ahead(&mut self, id: RequestId) -> usize {
        (0..100).find(|_| self.step().contains(&id.0)).unwrap_or(100)
    }

    fn running(&self, key: u64) -> usize {
        self.core.running().filter(|sequence| sequence.params().key == key).count()
    }
}

/// Every policy, with and without overlap.
fn each(seqs: u32, slots: u32, test: impl Fn(Device, &str)) {
    for overlap in [0, 1] {
        for (i, policy) in policies().into_iter().enumerate() {
            let name = format!("policy {i} ({}), {overlap} steps overlap", policy.name());
            test(Device::new(Order::Fair, policy, seqs, slots, overlap), &name);
        }
    }
}

#[test]
fn newcomer_starts_beside_two_hundred_long_answers() {
    // The scarce resource is sequences, then slots.
    for (seqs, slots) in [(64, 1 << 18), (256, 1 << 14)] {
        each(seqs, slots, |mut device, name| {
            (0..200).for_each(|_| device.fill(HEAVY, 40, 1500, 1));
            (0..60).for_each(|_| drop(device.step()));
            assert!(device.core.counts().0 > 0, "{name}: no request waits");
            let light = device.add(LIGHT, 40, 200, 1);
            assert!(device.steps_ahead(light) <= BOUND, "{name}, {seqs} sequences");
            // It is not preempted, and decodes in at least every second step.
            let tokens = (0..40).filter(|_| device.step().contains(&light.0)).count();
            assert!(tokens >= 19, "{name}: {tokens} of 40 steps");
            assert!(!device.preempted.contains(&light), "{name}");
        });
    }
}

#[test]
fn newcomer_starts_beside_many_parallel_samples() {
    each(256, 1 << 18, |mut device, name| {
        (0..8).for_each(|_| device.fill(HEAVY, 100, 1000, 128));
        (0..100).for_each(|_| drop(device.step()));
        assert_eq!(device.running(HEAVY), 256, "{name}");
        let light = device.add(LIGHT, 40, 200, 1);
        assert!(device.steps_ahead(light) <= BOUND, "{name}");
        assert_eq!((device.running(HEAVY), device.running(LIGHT)), (255, 1), "{name}");
    });
}

#[test]
fn newcomers_prompt_runs_beside_a_long_one() {
    each(16, 1 << 18, |mut device, name| {
        let heavy = device.add(HEAVY, 30_000, 10, 1);
        (0..3).for_each(|_| drop(device.step()));
        let light = device.add(LIGHT, 100, 10, 1);
        assert!(device.steps_ahead(light) <= BOUND, "{name}");
        assert!(device.core.sequence(heavy).unwrap().is_prefilling(), "{name}");
    });
}

#[test]
fn prompts_of_one_key_do_not_stop_decodes_of_another() {
    each(64, 1 << 18, |mut device, name| {
        let light = device.add(LIGHT, 40, 400, 1);
        (0..3).for_each(|_| drop(device.step()));
        let tokens = (0..60).filter(|_| {
            device.add(HEAVY, 600, 1, 1);
            device.step().contains(&light.0)
        });
        let tokens = tokens.count();
        assert!(tokens >= 29, "{name}: {tokens} of 60 steps");
    });
}

#[test]
fn keys_share_sequences_equally_and_all_requests_complete() {
    each(12, 1 << 14, |mut device, name| {
        for key in 1..=3 {
            (0..10).for_each(|_| device.fill(key, 30, 400, 1));
            (0..30).for_each(|_| drop(device.step()));
        }
        assert_eq!([1, 2, 3].map(|key| device.running(key)), [4; 3], "{name}");
        for _ in 0..2000 {
            device.step();
        }
        assert!(device.core.is_idle(), "{name}");
        assert!(device.preempted.len() <= 8, "{name}: {:?}", device.preempted);
    });
}

#[test]
fn request_beyond_its_keys_entitlement_preempts_none() {
    each(64, 1 << 12, |mut device, name| {
        let small = device.add(HEAVY, 40, 1400, 1);
        device.step();
        // Two keys: the entitlement of each is half of the slots.
        let large = device.add(LIGHT, 3000, 1000, 1);
        (0..40).for_each(|_| drop(device.step()));
        let status = |id: RequestId| device.core.sequence(id).map(|sequence| sequence.status());
        assert_eq!(status(small), Some(Status::Running), "{name}");
        assert_eq!(device.preempted, [], "{name}: {:?}", status(large));
    });
}

/// An unsplit prompt that exceeds the rest of its key's share leaves the step to other keys.
#[test]
fn unsplit_prompts_stay_within_the_share_of_their_key() {
    for chunking in [Chunking::Off, Chunking::First] {
        let policy = Box::new(PrefillFirst::new(chunking, 0.0));
        let mut device = Device::new(Order::Fair, policy, 64, 1 << 18, 0);
        // The light key has more requests running, so those of the heavy key come first.
        (0..10).for_each(|_| device.fill(LIGHT, 40, 400, 1));
        (0..3).for_each(|_| drop(device.step()));
        let heavy = [(); 3].map(|()| device.add(HEAVY, 400, 4, 1));
        let light = device.add(LIGHT, 400, 4, 1);
        let ids = (0..9).map(|_| device.step()).find(|ids| ids.contains(&heavy[0].0)).unwrap();
        assert!(ids.contains(&light.0) && !ids.contains(&heavy[1].0), "{chunking:?}: {ids:?}");
        // A prompt that exceeds the whole share runs as the only one of its key.
        let large = device.add(HEAVY, 1000, 4, 1);
        device.add(LIGHT, 1000, 4, 1);
        assert!(device.steps_ahead(large) < 20, "{chunking:?}");
    }
}

#[test]
fn oversized_request_is_overtaken_by_its_own_slots_of_each_other_key() {
    each(64, 1 << 12, |mut device, name| {
        let small = [HEAVY, 3];
        let refill = |device: &mut Device| {
            for key in small {
                while device.core.waiting().filter(|sequence| sequence.params().key == key).count() < 4 {
                    device.fill(key, 40, 200, 1);
                }
            }
        };
        for _ in 0..40 {
            refill(&mut device);
            device.step();
        }
        // More than a third of the slots.
        let large = device.add(LIGHT, 2000, 1000, 1);
        let mut overtaking = 0;
        while device.running(LIGHT) == 0 {
            refill(&mut device);
            device.step();
            let admitted = &device.core.record().admitted;
            let is_first = |id: &&RequestId| **id != large && !device.preempted.contains(id);
            overtaking += 240 * admitted.iter().map(|admitted| &admitted.request).filter(is_first).count();
            assert!(overtaking <= 2 * 3000 + (1 << 12), "{name}");
        }
        let steps = (0..3000).find(|_| {
            refill(&mut device);
            device.step();
            device.core.sequence(large).is_none()
        });
        assert!(steps.is_some(), "{name}");
        // `prefill-first` reserves no slots for outputs: any request may run out of them.
        assert!(!device.preempted.contains(&large) || name.contains("prefill-first"), "{name}");
        assert!(small.iter().all(|key| device.running(*key) > 0), "{name}");
    });
}

#[test]
fn cached_tokens_use_no_share_of_a_steps_prompt_tokens() {
    each(16, 1 << 18, |mut device, name| {
        let cached: Vec<Token> = (1..=401).collect();
        device.add_prompt(LIGHT, cached.clone(), 1, 1);
        while !device.core.is_idle() {
            device.step();
        }
        let heavy = device.add(HEAVY, 30_000, 10, 1);
        (0..3).for_each(|_| drop(device.step()));
        let alone = device.fed(heavy);
        let light = [0; 2].map(|_| device.add_prompt(LIGHT, cached.clone(), 10, 1));
        device.steps_ahead(light[0]);
        let shared = device.fed(heavy);
        assert!(alone >= 512 && shared + 128 >= alone, "{name}: {shared} tokens, {alone} alone");
    });
}

#[test]
fn other_orders_do_not_preempt_for_shares() {
    for policy in policies() {
        let mut device = Device::new(Order::Fcfs, policy, 64, 1 << 18, 0);
        (0..200).for_each(|_| device.fill(HEAVY, 40, 1500, 1));
        (0..20).for_each(|_| drop(device.step()));
        let light = device.add(LIGHT, 40, 200, 1);
        assert_eq!((device.steps_ahead(light), device.preempted), (100, vec![]));
    }
}

/// With 32 keys, a key's share of a step is below the granularity of chunks.
#[test]
fn small_shares_use_the_whole_step() {
    each(64, 1 << 17, |mut device, name| {
        (1..=32).for_each(|key| device.fill(key, 400, 1, 1));
        let steps = (0..400).find(|_| device.step().is_empty() && device.core.is_idle());
        assert!(steps.is_some_and(|steps| steps < 100), "{name}: {steps:?}");
    });
}
