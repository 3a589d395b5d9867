//! KV events of the prefix cache, as the outbox delivers them.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::{
    Chunked, Core, Engine, Limits, Mixing, Order, Params, Request, Role, RoleRouter, Route, RouteRequest,
    RouterConfig, Turn,
};
use kvasir_kv::{CacheConfig, CacheError, CacheKind, KvEvent, StateConfig, Token, build, prefix_hashes};
use kvasir_sim::{Toy, ToyShape};
use kvasir_testkit::Random;

fn core(kind: CacheKind, config: &CacheConfig, limits: Limits) -> Core {
    let policy = Box::new(Chunked::new(256, Mixing::On { target: None }));
    Core::new(limits, Order::Fcfs, policy, build(kind, config).unwrap())
}

/// Runs one request and returns all KV events that the outbox delivered.
fn run(engine: &mut Engine<Toy>, prompt: &[Token]) -> Vec<KvEvent> {
    let params = Params { max_tokens: 4, salt: 3, ..Params::default() };
    engine.add_request(Request { tag: 0, prompt: prompt.to_vec(), params }).unwrap();
    let mut events = Vec::new();
    while engine.step().unwrap() != Turn::Idle {
        let outbox = engine.core_mut().outbox();
        events.append(&mut outbox.kv_events);
        outbox.clear();
    }
    events
}

#[test]
fn published_and_evicted_blocks_reach_the_outbox() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let mut core = core(kind, &CacheConfig::new(64), Limits::default());
        core.record_kv_events().unwrap();
        let mut engine = Engine::new(core, Toy::new(), || 0);
        let (first, second): (Vec<Token>, Vec<Token>) = ((0..40).collect(), (100..150).collect());
        let hashes: Vec<u64> = prefix_hashes(&first, 3, 16).collect();
        let stored = KvEvent::BlockStored {
            hashes: hashes.clone(),
            parent: None,
            tokens: first[..32].to_vec(),
            block_size: 16,
            salt: 3,
        };
        assert_eq!(run(&mut engine, &first), [stored], "{kind}");
        // The second prompt needs all four blocks.
        let events = run(&mut engine, &second);
        let removed = |event: &KvEvent| match event {
            KvEvent::BlockRemoved { hashes } => hashes.clone(),
            _ => Vec::new(),
        };
        let mut removed: Vec<u64> = events.iter().flat_map(removed).collect();
        removed.sort_unstable();
        let mut expected = hashes;
        expected.sort_unstable();
        assert_eq!(removed, expected, "{kind}");
    }
}

#[test]
fn caches_without_a_prefix_index_have_no_events() {
    let refused = |kind, config: &CacheConfig, prefix_cache| {
        core(kind, config, Limits { prefix_cache, ..Limits::default() }).record_kv_events().unwrap_err()
    };
    let config = CacheConfig::new(64);
    for kind in [CacheKind::Cells, CacheKind::Contiguous, CacheKind::Tree] {
        assert!(matches!(refused(kind, &config, true), CacheError::NoCapability { .. }));
    }
    assert!(matches!(refused(CacheKind::Radix, &config, false), CacheError::BadConfig(_)));
    let without = CacheConfig { sharing: false, ..config };
    assert!(matches!(refused(CacheKind::Paged, &without, true), CacheError::BadConfig(_)));
}

/// With recurrent states, a router that counts blocks up to the last checkpoint predicts the length
/// of every hit.
#[test]
fn a_router_predicts_hits_that_end_at_checkpoints() {
    const BLOCK: u32 = 4;
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let states = StateConfig { live: 2, checkpoints: 12, tail_rows: 0, interval: 16 };
        let config = CacheConfig { block_size: BLOCK, states: Some(states), ..CacheConfig::new(600) };
        let mut core = core(kind, &config, Limits::default());
        core.record_kv_events().unwrap();
        let toy = Toy::new().with_shape(ToyShape { windows: Vec::new(), state: true });
        let mut engine = Engine::new(core, toy, || 0);
        let config = RouterConfig {
            block_size: BLOCK,
            hits_end_at_checkpoints: true,
            ..RouterConfig::new(Route::Prefix)
        };
        let mut router = RoleRouter::new(config, vec![Role::Both]);
        let blocks_only = RouterConfig { hits_end_at_checkpoints: false, ..config };
        let mut block_router = RoleRouter::new(blocks_only, vec![Role::Both]);
        let (mut random, mut hits, mut shorter) = (Random::new(3), 0, 0);
        for _ in 0..200 {
            let (prefix, len) = (random.between(0, 2), random.between(5, 70));
            let prefix_len = random.between(1, len);
            let prompt: Vec<Token> = (0..len)
                .map(|at| if at < prefix_len { 10 * prefix + at % 9 } else { random.between(50, 90) })
                .collect();
            // The last token is always computed.
            let reusable = &prompt[..prompt.len() - 1];
            let predicted = router.held_tokens(0, &RouteRequest::new(reusable, 0));
            let in_blocks = block_router.held_tokens(0, &RouteRequest::new(reusable, 0));
            shorter += u32::from(in_blocks > predicted);
            let params = Params { max_tokens: 3, ignore_eos: true, ..Params::default() };
            engine.add_request(Request { tag: 0, prompt, params }).unwrap();
            while engine.step().unwrap() != Turn::Idle {}
            let outbox = engine.core_mut().outbox();
            for event in outbox.kv_events.drain(..) {
                router.apply(0, &event);
                block_router.apply(0, &event);
            }
            let cached = outbox.ended[0].cached;
            outbox.clear();
            assert_eq!(cached, predicted, "{kind}");
            hits += u32::from(cached > 0);
        }
        assert!(
            hits > 30 && shorter > 10,
            "{kind}: {hits} hits, {shorter} predictions shorter than the cached blocks"
        );
    }
}
