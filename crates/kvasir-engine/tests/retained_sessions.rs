//! Eviction of retained session K/V: only for a request that is admitted because of it, in LRU
//! order, and no more than it needs.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{CacheConfig, CacheKind, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::complete::{complete, drain};

const FORKING: [CacheKind; 3] = [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix];

fn engine(kind: CacheKind, slots: u32, prefix_cache: bool) -> Engine<Toy> {
    let config = CacheConfig { block_size: 4, sharing: prefix_cache, ..CacheConfig::new(slots) };
    let limits = Limits { prefix_cache, ..Limits::default() };
    let policy = Box::new(Chunked::new(256, Mixing::Off));
    let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
    Engine::new(core, Toy::new(), || 0)
}

/// A request whose salt is its session: no two sessions share a prefix by content.
fn request(prompt: &[Token], max_tokens: u32, session: Option<u64>) -> Request {
    let salt = session.unwrap_or_default();
    let params = Params { max_tokens, session: session.map(SessionId), salt, ..Params::default() };
    Request { tag: 1, prompt: prompt.to_vec(), params }
}

fn run(engine: &mut Engine<Toy>, prompt: &[Token], session: u64) {
    let done = complete(engine, request(prompt, 0, Some(session)));
    assert_eq!(done.summary.finish, Finish::MaxTokens);
}

fn step(engine: &mut Engine<Toy>) {
    engine.step().unwrap();
    engine.core().check_invariants().unwrap();
    engine.core_mut().outbox().clear();
}

fn status(engine: &Engine<Toy>, id: RequestId) -> Option<Status> {
    engine.core().sequence(id).map(|sequence| sequence.status())
}

/// Retained tokens of each session.
fn retained(engine: &Engine<Toy>, sessions: std::ops::RangeInclusive<u64>) -> Vec<u32> {
    sessions.map(|session| engine.core().retained_len(SessionId(session))).collect()
}

#[test]
fn a_key_with_many_sessions_evicts_its_own_first() {
    for kind in FORKING {
        let mut engine = engine(kind, 64, false);
        let turn = |engine: &mut Engine<Toy>, key: u64, session: u64| {
            let mut request = request(&[session as Token; 12], 0, Some(session));
            request.params.key = key;
            complete(engine, request);
        };
        // The oldest session is another key's only one.
        turn(&mut engine, 2, 1);
        for session in 2..=5 {
            turn(&mut engine, 1, session);
        }
        assert_eq!(retained(&engine, 1..=5), [12; 5], "{kind}");
        turn(&mut engine, 1, 6);
        assert_eq!(retained(&engine, 1..=6), [12, 0, 12, 12, 12, 12], "{kind}");
        // Key 1 has more than its half until two of its sessions are left.
        for session in 7..=9 {
            turn(&mut engine, 3, session);
        }
        assert_eq!(retained(&engine, 1..=1), [12], "{kind}");
    }
}

#[test]
fn slots_of_retained_sessions_are_counted_apart_from_those_of_requests() {
    for kind in FORKING {
        let mut engine = engine(kind, 64, false);
        let counts =
            |engine: &Engine<Toy>| (engine.core().retained_slots(), engine.core().cache().usage().held);
        run(&mut engine, &[7; 12], 1);
        run(&mut engine, &[8; 8], 2);
        step(&mut engine);
        assert_eq!(counts(&engine), (20, 20), "{kind}");
        // A fork shares what it retains.
        engine.core_mut().fork_session(SessionId(1), SessionId(3), 12);
        step(&mut engine);
        assert_eq!(counts(&engine), (20, 20), "{kind}");
        // A turn takes over its session's slots, including those that it shares with session 3.
        engine.core_mut().add(request(&[7; 16], 8, Some(1)), 0).unwrap();
        step(&mut engine);
        let (retained, held) = counts(&engine);
        assert!(retained == 8 && held > 20, "{kind}: {retained} of {held}");
        drain(&mut engine);
        for session in 1..=3 {
            engine.core_mut().end_session(SessionId(session));
        }
        step(&mut engine);
        assert_eq!(counts(&engine), (0, 0), "{kind}");
    }
}

#[test]
fn pinned_prefixes_outlive_others_until_they_end() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        for (pinned, ended, held) in [(true, false, 24), (false, false, 0), (true, true, 0)] {
            let mut engine = engine(kind, 128, true);
            let prompt: Vec<Token> = (1..=32).collect();
            let pins = if pinned { vec![Pin { session: SessionId(9), len: 26 }] } else { Vec::new() };
            let mut first = request(&prompt, 2, None);
            first.params.pins = pins;
            complete(&mut engine, first.clone());
            assert_eq!(retained(&engine, 9..=9), [if pinned { 24 } else { 0 }], "{kind}");
            if ended {
                engine.core_mut().end_session(SessionId(9));
            }
            // Others fill the pool several times.
            for n in 0..8 {
                complete(&mut engine, request(&[100 + n; 90], 2, None));
                engine.core().check_invariants().unwrap();
            }
            let done = complete(&mut engine, first);
            // A radix cache may keep more of a page's node.
            let cached = done.summary.cached;
            assert!((held..held + 8).contains(&cached), "{kind}: {cached}, pinned {pinned}, ended {ended}");
        }
    }
}

#[test]
fn pinned_prefixes_yield_to_requests_that_need_their_slots() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let mut engine = engine(kind, 128, true);
        for n in 0..4 {
            let mut pinned = request(&[20 + n; 16], 0, None);
            pinned.params.pins = vec![Pin { session: SessionId(n.into()), len: 16 }];
            complete(&mut engine, pinned);
        }
        let done = complete(&mut engine, request(&[7; 100], 2, None));
        assert_eq!(done.summary.finish, Finish::MaxTokens, "{kind}");
        assert_eq!(retained(&engine, 0..=3), [0, 0, 0, 16], "{kind}: least recently used first");
        engine.core().check_invariants().unwrap();
    }
}

#[test]
fn pins_of_one_key_leave_another_its_unmarked_prefixes() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        for keys in [1, 2] {
            let mut engine = engine(kind, 512, true);
            let other: Vec<Token> = (1..=64).collect();
            let mut hits = 0;
            for n in 0..40 {
                let mut pinned = request(&[100 + n; 40], 2, None);
                (pinned.params.key, pinned.params.salt) = (1, 1);
                pinned.params.pins = vec![Pin { session: SessionId(n.into()), len: 40 }];
                complete(&mut engine, pinned);
                engine.core().check_invariants().unwrap();
                let mut bystander = request(&other, 2, None);
                bystander.params.key = if keys == 2 { 2 } else { 1 };
                hits += u32::from(complete(&mut engine, bystander).summary.cached >= 60);
            }
            let pinned: u32 = retained(&engine, 0..=39).iter().sum();
            if keys == 2 {
                assert!(hits >= 38, "{kind}: {hits} hits");
                assert!((200..=256 + 40).contains(&pinned), "{kind}: {pinned} pinned");
            } else {
                assert!(pinned > 300 && hits < 20, "{kind}: {pinned} pinned by the only key, {hits} hits");
            }
        }
    }
}

#[test]
fn slots_that_sessions_share_count_once_against_half_of_the_pool() {
    for kind in [CacheKind::Paged, CacheKind::Radix] {
        let mut engine = engine(kind, 256, true);
        run(&mut engine, &[5; 40], 1);
        for fork in 2..=5 {
            assert_eq!(engine.core_mut().fork_session(SessionId(1), SessionId(fork), 40), 40);
        }
        // 200 tokens in 40 slots.
        assert_eq!(retained(&engine, 1..=5), [40; 5], "{kind}");
        for prompt in [[20; 120], [21; 120], [22; 120]] {
            let mut other = request(&prompt, 2, None);
            other.params.key = 2;
            complete(&mut engine, other);
            engine.core().check_invariants().unwrap();
        }
        assert_eq!(retained(&engine, 1..=5), [40; 5], "{kind}");
    }
}

#[test]
fn aborted_waiting_turn_leaves_its_session_unchanged() {
    for kind in FORKING {
        for prefix_cache in [false, true] {
            let mut engine = engine(kind, 64, prefix_cache);
            run(&mut engine, &[5; 40], 1);
            assert_eq!(retained(&engine, 1..=1), [40], "{kind}");
            // Runs, and reserves all free slots.
            let running = engine.add_request(request(&[6; 12], 12, None)).unwrap();
            step(&mut engine);
            // Continues from half of the session's retained K/V, and needs more slots than are
            // free.
            let mut edited = vec![5; 20];
            edited.extend([7; 28]);
            let turn = engine.add_request(request(&edited, 8, Some(1))).unwrap();
            step(&mut engine);
            step(&mut engine);
            assert_eq!(status(&engine, running), Some(Status::Running), "{kind}");
            assert_eq!(status(&engine, turn), Some(Status::Waiting), "{kind}");
            assert_eq!(retained(&engine, 1..=1), [40], "{kind}: while its turn waits");
            assert!(engine.core_mut().abort(turn, 0));
            drain(&mut engine);
            assert_eq!(retained(&engine, 1..=1), [40], "{kind}: after its turn was aborted");
        }
    }
}

#[test]
fn deferred_requests_evict_nothing() {
    for kind in FORKING {
        for prefix_cache in [false, true] {
            let mut engine = engine(kind, 256, prefix_cache);
            for session in 1..=9 {
                run(&mut engine, &[session as Token; 16], session);
            }
            // Holds 16 slots and reserves 64 more.
            let running = engine.add_request(request(&[20; 16], 64, None)).unwrap();
            step(&mut engine);
            // Needs 200 slots. Free and retained slots together, 176 are not reserved.
            let large = engine.add_request(request(&[21; 100], 100, None)).unwrap();
            for _ in 0..10 {
                step(&mut engine);
                assert_eq!(status(&engine, running), Some(Status::Running), "{kind}");
                assert_eq!(status(&engine, large), Some(Status::Waiting), "{kind}");
                assert_eq!(retained(&engine, 1..=9), [16; 9], "{kind}");
            }
            while status(&engine, large) == Some(Status::Waiting) {
                step(&mut engine);
            }
            // 112 slots are free then, and six sessions hold the 88 that are missing.
            let kept = retained(&engine, 1..=9);
            assert_eq!(kept, [0, 0, 0, 0, 0, 0, 16, 16, 16], "{kind}, prefix cache {prefix_cache}");
            drain(&mut engine);
        }
    }
}

/// A trunk of 40 tokens in session 1, and forks 2 to 9 with 8 tokens of their own each: 104 slots.
fn forked(kind: CacheKind) -> Engine<Toy> {
    let mut engine = engine(kind, 256, false);
    run(&mut engine, &[5; 40], 1);
    for fork in 2..=9 {
        assert_eq!(engine.core_mut().fork_session(SessionId(1), SessionId(fork), 40), 40);
        let mut prompt = vec![5; 40];
        prompt.extend([fork as Token + 10; 8]);
        // The salt of a fork is that of its trunk.
        let params = Params { session: Some(SessionId(fork)), salt: 1, max_tokens: 0, ..Params::default() };
        complete(&mut engine, Request { tag: 1, prompt, params });
    }
    assert_eq!(engine.core().cache().usage().held, 104, "{kind}");
    engine
}

#[test]
fn forks_of_a_trunk_count_it_once() {
    for kind in FORKING {
        let mut engine = forked(kind);
        let before = retained(&engine, 1..=9);
        // 152 slots are free, of which this one takes 80. Another one then needs 36 more than all
        // sessions hold.
        let running = engine.add_request(request(&[20; 16], 64, None)).unwrap();
        step(&mut engine);
        let large = engine.add_request(request(&[21; 112], 100, None)).unwrap();
        for _ in 0..10 {
            step(&mut engine);
            assert_eq!(status(&engine, running), Some(Status::Running), "{kind}");
            assert_eq!(status(&engine, large), Some(Status::Waiting), "{kind}");
            assert_eq!(retained(&engine, 1..=9), before, "{kind}");
        }
        drain(&mut engine);
    }
}

#[test]
fn eviction_skips_sessions_that_free_nothing() {
    for kind in FORKING {
        let mut engine = forked(kind);
        let (trunk, fork) = (40, 48);
        assert_eq!(
            retained(&engine, 1..=9),
            [trunk, fork, fork, fork, fork, fork, fork, fork, fork],
            "{kind}"
        );
        // Needs 16 more than are free: the tails of the two least recently used forks. The trunk
        // has other owners.
        let id = engine.add_request(request(&[21; 100], 68, None)).unwrap();
        step(&mut engine);
        assert_eq!(status(&engine, id), Some(Status::Running), "{kind}");
        assert_eq!(retained(&engine, 1..=9), [trunk, 0, 0, fork, fork, fork, fork, fork, fork], "{kind}");
        drain(&mut engine);
    }
}

#[test]
fn own_session_slots_count_as_available() {
    for kind in FORKING {
        let mut engine = engine(kind, 64, false);
        run(&mut engine, &[5; 40], 1);
        run(&mut engine, &[6; 16], 2);
        // 8 slots are free, and 20 of the session's own 40 are freed because its turn diverges.
        let mut edited = vec![5; 20];
        edited.extend([7; 20]);
        let turn = engine.add_request(request(&edited, 8, Some(1))).unwrap();
        step(&mut engine);
        assert_eq!(status(&engine, turn), Some(Status::Running), "{kind}");
        assert_eq!(engine.core().sequence(turn).unwrap().computed(), 20, "{kind}");
        assert_eq!(retained(&engine, 2..=2), [16], "{kind}: the other session's stay");
        drain(&mut engine);
    }
}

#[test]
fn admission_at_the_sequence_limit_evicts_one_session() {
    for kind in FORKING {
        let config = CacheConfig { block_size: 4, max_sequences: 2, ..CacheConfig::new(256) };
        let limits = Limits { prefix_cache: false, ..Limits::default() };
        let policy = Box::new(Chunked::new(256, Mixing::Off));
        let core = Core::new(limits, Order::Fcfs, policy, build(kind, &config).unwrap());
        let mut engine = Engine::new(core, Toy::new(), || 0);
        let ids = [1, 2]
            .map(|session| engine.add_request(request(&[session as Token; 16], 100, Some(session))).unwrap());
        (0..5).for_each(|_| step(&mut engine));
        ids.iter().for_each(|id| assert!(engine.core_mut().abort(*id, 0)));
        // Two sessions retain every sequence of the cache, and a step in flight names both.
        let before = retained(&engine, 1..=2);
        assert!(engine.core().steps_in_flight() == 1 && !before.contains(&0), "{kind}: {before:?}");
        let id = engine.add_request(request(&[9; 16], 8, None)).unwrap();
        step(&mut engine);
        assert_eq!(status(&engine, id), Some(Status::Running), "{kind}");
        assert_eq!(retained(&engine, 1..=2), [0, before[1]], "{kind}: the older one is enough");
        drain(&mut engine);
    }
}
