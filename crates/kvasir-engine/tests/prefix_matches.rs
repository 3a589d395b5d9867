//! `PrefixMatch` in summaries, admissions and the outbox, for prefix hits, retained sessions,
//! siblings and salts.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{CacheConfig, CacheEnd, CacheKind, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::complete::{complete, complete_all, drain};
use std::sync::{Arc, Mutex};

const KINDS: [CacheKind; 2] = [CacheKind::Paged, CacheKind::Radix];

fn engine(kind: CacheKind, slots: u32) -> Engine<Toy> {
    let config = CacheConfig { block_size: 4, ..CacheConfig::new(slots) };
    let limits = Limits { prefix_cache: true, ..Limits::default() };
    let policy = Box::new(Chunked::new(256, Mixing::Off));
    let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
    Engine::new(core, Toy::new(), || 0)
}

fn request(prompt: &[Token]) -> Request {
    Request { tag: 1, prompt: prompt.to_vec(), params: Params { max_tokens: 1, ..Params::default() } }
}

/// Cached tokens, matched tokens, and the reason.
fn run(engine: &mut Engine<Toy>, request: Request) -> (u32, u32, Option<CacheEnd>) {
    let Summary { cached, prefix, .. } = complete(engine, request).summary;
    assert_eq!(prefix.cache_end, prefix.public_cache_end, "no request has an API key");
    (cached, prefix.matched, prefix.cache_end)
}

#[test]
fn admissions_and_summaries_agree() {
    for kind in KINDS {
        let mut engine = engine(kind, 256);
        let prompt: Vec<Token> = (20..50).collect();
        run(&mut engine, request(&prompt[..18]));
        engine.add_request(request(&prompt)).unwrap();
        engine.step().unwrap();
        let cache_end = Some(CacheEnd::NeverComputed);
        let prefix = PrefixMatch { matched: 16, cache_end, public_cache_end: cache_end };
        let [Admission { hit, prefix: admitted, .. }] = engine.core().record().admitted[..] else {
            panic!("{:?}", engine.core().record());
        };
        assert_eq!((hit, admitted), (16, prefix), "{kind}");
        let outbox = engine.core_mut().outbox();
        assert_eq!(outbox.admitted, [FirstAdmission { tag: 1, cached: hit, prefix }], "{kind}");
        drain(&mut engine);
        engine.core_mut().outbox().clear();
        assert_eq!(run(&mut engine, request(&prompt)), (28, 28, None), "{kind}");
    }
}

#[test]
fn session_turns_match_up_to_their_new_message() {
    for kind in KINDS {
        let mut engine = engine(kind, 256);
        let turn = |prompt: &[Token]| {
            let mut request = request(prompt);
            request.params.session = Some(SessionId(1));
            request
        };
        let prompt: Vec<Token> = (20..60).collect();
        assert_eq!(run(&mut engine, turn(&prompt[..20])), (0, 0, Some(CacheEnd::NeverComputed)), "{kind}");
        assert_eq!(engine.core().retained_len(SessionId(1)), 20);
        assert_eq!(run(&mut engine, turn(&prompt)), (20, 20, Some(CacheEnd::NeverComputed)), "{kind}");
        assert_eq!(run(&mut engine, turn(&prompt)), (36, 36, None), "{kind}");
    }
}

#[test]
fn siblings_of_the_leader_match_their_whole_prompt() {
    for kind in KINDS {
        let mut engine = engine(kind, 256);
        let prompt: Vec<Token> = (20..60).collect();
        let siblings = (0..3).map(|_| request(&prompt)).collect();
        let summaries = complete_all(&mut engine, siblings).into_iter().map(|done| done.unwrap().summary);
        let matched: Vec<_> = summaries.map(|summary| (summary.cached, summary.prefix.cache_end)).collect();
        assert!(matched.contains(&(0, Some(CacheEnd::NeverComputed))), "{kind}: {matched:?}");
        let follow = complete(&mut engine, request(&prompt)).summary;
        assert_eq!((follow.cached, follow.prefix.cache_end), (36, None), "{kind}");
    }
}

#[test]
fn reasons_distinguish_evictions_from_other_keys() {
    for kind in KINDS {
        let mut engine = engine(kind, 64);
        let of_key = |first: Token, key: u64| {
            let mut request = request(&(first..first + 24).collect::<Vec<_>>());
            (request.params.key, request.params.salt) = (key, key);
            request
        };
        let cache_end = |engine: &mut Engine<Toy>, request: Request| {
            let prefix = complete(engine, request).summary.prefix;
            (prefix.cache_end.unwrap(), prefix.public_cache_end.unwrap())
        };
        let never = (CacheEnd::NeverComputed, CacheEnd::NeverComputed);
        assert_eq!(cache_end(&mut engine, of_key(100, 1)), never, "{kind}");
        assert_eq!(
            cache_end(&mut engine, of_key(100, 2)),
            (CacheEnd::OtherKey, CacheEnd::NeverComputed),
            "{kind}"
        );
        for first in [200, 300] {
            assert_eq!(cache_end(&mut engine, of_key(first, 2)), never, "{kind}");
        }
        let evicted = (CacheEnd::Evicted, CacheEnd::Evicted);
        assert_eq!(cache_end(&mut engine, of_key(100, 1)), evicted, "{kind}");
    }
}

/// A sink that collects the short hits of all steps.
#[derive(Clone, Default)]
struct ShortHits(Arc<Mutex<Vec<CacheEnd>>>);

impl TraceSink for ShortHits {
    fn write(&mut self, step: &StepTrace) {
        self.0.lock().unwrap().extend(step.short_hits.iter().map(|(_, _, cache_end)| *cache_end));
    }
}

#[test]
fn a_trace_of_one_key_has_public_reasons_only() {
    for kind in KINDS {
        let (all, own) = (ShortHits::default(), ShortHits::default());
        let mut engine = engine(kind, 256)
            .observe(Box::new(Tracer::new(all.clone(), 0..u64::MAX)))
            .observe(Box::new(Tracer::new(own.clone(), 0..u64::MAX).only(2)));
        for key in [1, 2] {
            let mut request = request(&[7; 24]);
            (request.params.key, request.params.salt) = (key, key);
            complete(&mut engine, request);
        }
        // The tracer writes a record when the next step is scheduled.
        complete(&mut engine, request(&[9; 4]));
        let [all, own] = [all, own].map(|sink| sink.0.lock().unwrap().clone());
        assert_eq!(all, [CacheEnd::NeverComputed, CacheEnd::OtherKey], "{kind}");
        assert_eq!(own, [CacheEnd::NeverComputed], "{kind}");
    }
}
