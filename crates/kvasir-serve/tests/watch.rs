//! Live step subscriptions: a subscriber sees all steps from any point on, and cannot delay the
//! engine.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_engine::{Chunked, Core, Engine, Limits, Mixing, Order, Params, Request, StepEvent, StepTrace};
use kvasir_kv::{Radix, Token, blocks::BlockConfig};
use kvasir_serve::{StepFeed, StepSubscription, Visibility};
use kvasir_sim::Toy;
use kvasir_testkit::complete::drain;
use std::collections::BTreeMap;

fn engine() -> (StepFeed, Engine<Toy>) {
    let (feed, observer) = StepFeed::new();
    let limits = Limits { max_model_len: 8192, ..Limits::default() };
    let cache = Radix::new(BlockConfig { block_size: 4, blocks: 8192, ..BlockConfig::default() }).unwrap();
    let policy = Chunked::new(64, Mixing::Off);
    let core = Core::new(limits, Order::Fcfs, Box::new(policy), Box::new(cache));
    let mut now = 0;
    let clock = move || {
        now += 1;
        now
    };
    (feed, Engine::new(core, Toy::new(), clock).observe(observer))
}

fn add(engine: &mut Engine<Toy>, tag: u64, prompt: Token, max_tokens: u32) {
    add_of_key(engine, 0, tag, prompt, max_tokens);
}

fn add_of_key(engine: &mut Engine<Toy>, key: u64, tag: u64, prompt: Token, max_tokens: u32) {
    let params = Params { max_tokens, ignore_eos: true, key, ..Params::default() };
    engine.add_request(Request { tag, prompt: (10..10 + prompt).collect(), params }).unwrap();
}

fn seen(subscription: &mut StepSubscription) -> Vec<StepEvent> {
    std::iter::from_fn(|| subscription.try_next()).collect()
}

/// Per request tag, from the steps after the last `Begin`: tokens reported, and whether it has
/// ended.
fn totals(subscription: &[StepEvent]) -> BTreeMap<u64, (u32, bool)> {
    let begin = subscription.iter().rposition(|sight| *sight == StepEvent::Begin).unwrap();
    let mut tags = BTreeMap::new();
    let mut totals = BTreeMap::new();
    for sight in &subscription[begin + 1..] {
        let StepEvent::Step(step) = sight else { unreachable!() };
        let StepTrace { arrived, spoke, outputs, ended, .. } = &**step;
        for (number, _, _, tag) in arrived {
            tags.insert(*number, *tag);
            totals.insert(*tag, (0, false));
        }
        let runs =
            spoke.iter().flat_map(|(first, count)| (*first..first + u64::from(*count)).map(|n| (n, 1)));
        for (number, tokens) in runs.chain(outputs.iter().copied()) {
            totals.get_mut(&tags[&number]).unwrap().0 += tokens;
        }
        for (number, _) in ended {
            totals.get_mut(&tags[number]).unwrap().1 = true;
        }
    }
    totals
}

#[test]
fn late_subscribers_get_a_full_snapshot() {
    let (feed, mut engine) = engine();
    add(&mut engine, 1, 100, 20);
    add(&mut engine, 2, 30, 4);
    for _ in 0..6 {
        engine.step().unwrap();
    }
    let mut subscription = feed.subscribe(Visibility::All).unwrap();
    add(&mut engine, 3, 9, 7);
    drain(&mut engine);
    let subscription = seen(&mut subscription);
    assert_eq!(subscription[0], StepEvent::Begin);
    // The last step is reported although none follows it.
    assert_eq!(totals(&subscription)[&1], (20, true));
    assert_eq!(totals(&subscription)[&3], (7, true));
}

#[test]
fn slow_subscribers_miss_steps_and_restart() {
    let (feed, mut engine) = engine();
    let (mut slow, mut quick) =
        (feed.subscribe(Visibility::All).unwrap(), feed.subscribe(Visibility::All).unwrap());
    add(&mut engine, 1, 5, 3000);
    let mut quickly = Vec::new();
    for _ in 0..2000 {
        engine.step().unwrap();
        quickly.extend(seen(&mut quick));
    }
    let first = seen(&mut slow);
    assert_eq!(first.len(), 1024, "what waits is bounded");
    drain(&mut engine);
    let second = seen(&mut slow);
    assert_eq!(second[0], StepEvent::Begin, "after a gap it begins anew");
    assert!(second.len() <= 1024);
    quickly.extend(seen(&mut quick));
    assert_eq!(quickly.iter().filter(|sight| **sight == StepEvent::Begin).count(), 1, "others miss nothing");
}

#[test]
fn snapshot_after_a_gap_is_consistent() {
    let (feed, mut engine) = engine();
    let mut slow = feed.subscribe(Visibility::All).unwrap();
    add(&mut engine, 1, 5, 2000);
    for _ in 0..1500 {
        engine.step().unwrap();
    }
    seen(&mut slow);
    let mut rest = Vec::new();
    while !engine.core().is_idle() {
        engine.step().unwrap();
        rest.extend(seen(&mut slow));
    }
    assert_eq!(totals(&rest), BTreeMap::from([(1, (2000, true))]));
}

#[test]
fn subscriber_count_is_limited() {
    let (feed, mut engine) = engine();
    let watching: Vec<_> = std::iter::from_fn(|| feed.subscribe(Visibility::All).ok()).collect();
    assert_eq!(watching.len(), 16);
    assert_eq!(feed.subscribe(Visibility::All).err().unwrap().status, 429);
    drop(watching);
    let mut subscription = feed.subscribe(Visibility::All).unwrap();
    add(&mut engine, 1, 3, 2);
    drain(&mut engine);
    assert_eq!(totals(&seen(&mut subscription))[&1], (2, true));
    drop(engine);
    assert_eq!(
        feed.subscribe(Visibility::All).err().unwrap().status,
        503,
        "nobody watches an engine that is gone"
    );
}

#[test]
fn a_key_sees_its_own_requests_only() {
    let (feed, mut engine) = engine();
    add_of_key(&mut engine, 1, 10, 40, 9);
    add_of_key(&mut engine, 2, 20, 40, 9);
    engine.step().unwrap();
    let mut own = feed.subscribe(Visibility::Key(1)).unwrap();
    let mut all = feed.subscribe(Visibility::All).unwrap();
    add_of_key(&mut engine, 2, 21, 8, 5);
    add_of_key(&mut engine, 1, 11, 8, 5);
    drain(&mut engine);
    let (own, all) = (seen(&mut own), seen(&mut all));
    assert_eq!(totals(&own), BTreeMap::from([(10, (9, true)), (11, (5, true))]));
    assert_eq!(totals(&all).len(), 4);
    // The requests of other keys have no number in the trace.
    let numbers: Vec<u64> = own
        .iter()
        .flat_map(|event| match event {
            StepEvent::Begin => Vec::new(),
            StepEvent::Step(step) => {
                let rows = step.rows.iter().map(|row| row.0);
                let tables = step.tables.iter().map(|table| table.request);
                rows.chain(tables).chain(step.admitted.iter().map(|admission| admission.0)).collect()
            }
        })
        .collect();
    assert!(!numbers.is_empty() && numbers.iter().all(|number| [1, 4].contains(number)), "{numbers:?}");
}

#[test]
fn one_key_cannot_take_every_subscription() {
    let (feed, _engine) = engine();
    let own: Vec<_> = std::iter::from_fn(|| feed.subscribe(Visibility::Key(1)).ok()).collect();
    assert_eq!(own.len(), 8);
    assert!(feed.subscribe(Visibility::Key(2)).is_ok());
    drop(own);
    assert!(feed.subscribe(Visibility::Key(1)).is_ok());
}
