//! Ranges cut out of sessions on the toy device: what follows keeps its K/V and its positions, and the
//! answers are those of a device that has forgotten the range and nothing else.
#![allow(clippy::unwrap_used)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{Cache, CacheConfig, CacheKind, Token, build};
use kvasir_sim::Toy;
use kvasir_testkit::{
    Random,
    complete::{complete, complete_all},
};

const SESSION: SessionId = SessionId(1);

fn cache(kind: CacheKind, block_size: u32, slots: u32) -> Box<dyn Cache> {
    build(kind, &CacheConfig { block_size, sharing: true, ..CacheConfig::new(slots) }).unwrap()
}

fn engine(cache: Box<dyn Cache>, max_model_len: u32, overlap: bool) -> Engine<Toy> {
    let limits = Limits { max_num_batched_tokens: 64, max_model_len, ..Limits::default() };
    let policy = Chunked::new(24, Mixing::On { target: None });
    Engine::new(Core::new(limits, Order::Fcfs, Box::new(policy), cache), Toy::new(), || 0).overlap(overlap)
}

fn request(prompt: &[Token], max_tokens: u32) -> Request {
    let params = Params { max_tokens, ignore_eos: true, session: Some(SESSION), ..Params::default() };
    Request { tag: 1, prompt: prompt.to_vec(), params }
}

fn tokens(random: &mut Random, most: u64) -> Vec<Token> {
    (0..=random.below(most)).map(|_| 100 + random.below(9) as Token).collect()
}

/// A prompt of `len` tokens.
fn prompt(len: u32) -> Vec<Token> {
    (0..len).map(|i| 100 + i % 7).collect()
}

/// A conversation beside its reference: the value that the device has stored for each token.
#[derive(Clone, Default)]
struct Conversation {
    tokens: Vec<Token>,
    values: Vec<u64>,
}

impl Conversation {
    /// Appends `more`, generates `max_tokens` tokens and compares them with the reference. Returns the
    /// number of cached tokens.
    fn turn(&mut self, engine: &mut Engine<Toy>, more: &[Token], max_tokens: u32) -> u32 {
        self.tokens.extend_from_slice(more);
        let done = complete(engine, request(&self.tokens, max_tokens));
        assert_eq!(engine.executor().violations().first(), None);
        engine.core().check_invariants().unwrap();
        self.values.truncate(done.summary.cached as usize);
        let rest = self.tokens.split_off(self.values.len());
        let answer = Toy::after(&mut self.values, &rest, max_tokens);
        self.tokens.extend(rest);
        assert_eq!(done.tokens, answer);
        self.tokens.extend(answer);
        done.summary.cached
    }

    fn cut(&mut self, engine: &mut Engine<Toy>, from: u32, to: u32) {
        let retained = engine.core().retained_len(SESSION);
        engine.core_mut().cut_session(SESSION, from..to);
        engine.core().check_invariants().unwrap();
        self.tokens.drain(from as usize..to as usize);
        let stays = if to < retained {
            from..to
        } else {
            from.min(self.values.len() as u32)..self.values.len() as u32
        };
        self.values.drain(stays.start as usize..stays.end as usize);
    }
}

#[test]
fn what_follows_a_cut_stays_cached_at_its_positions() {
    let mut seen = [0; 3];
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let kind = [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix][seed as usize % 3];
        let block = if kind.is_block_based() { [1, 4, 16][random.below(3) as usize] } else { 1 };
        let engine = engine(cache(kind, block, 2048), 4096, seed % 2 == 0);
        let mut engine = match random.below(2) {
            0 => engine,
            _ => engine.draft(Box::new(SuffixDrafter::new(4))).unwrap(),
        };
        let mut talk = Conversation::default();
        let start = tokens(&mut random, 60);
        talk.turn(&mut engine, &start, 5);
        for _ in 0..6 {
            let len = talk.tokens.len() as u64;
            match random.below(4) {
                0 if len > 2 => {
                    let to = 1 + random.below(len - 1) as u32;
                    engine.core_mut().rewind_session(SESSION, to);
                    talk.tokens.truncate(to as usize);
                    talk.values.truncate(to as usize);
                }
                _ if len > 3 => {
                    let from = random.below(len - 2) as u32;
                    let to = random.between(from + 1, len as u32);
                    let retained = engine.core().retained_len(SESSION);
                    talk.cut(&mut engine, from, to);
                    let left = engine.core().retained_len(SESSION);
                    let stays = if to < retained { retained - (to - from) } else { from.min(retained) };
                    // An end at a cut may have to go back to the end of a block.
                    assert!(
                        left <= stays && (to >= retained || left == stays),
                        "seed {seed}: {left} of {stays}"
                    );
                    seen[0] += u32::from(to < retained);
                }
                _ => {}
            }
            let (more, max_tokens) = (tokens(&mut random, 20), random.below(12) as u32);
            let retained = engine.core().retained_len(SESSION);
            let cached = talk.turn(&mut engine, &more, max_tokens);
            assert!(
                cached >= retained.min(talk.tokens.len() as u32 - max_tokens - 1).saturating_sub(block),
                "seed {seed}"
            );
            seen[1] += u32::from(cached > 0);
            seen[2] += u32::from(cached == retained);
        }
        engine.core_mut().end_session(SESSION);
        let usage = engine.core().cache().usage();
        assert_eq!((usage.available(), usage.held), (2048, 0), "seed {seed}: {kind}");
    }
    assert!(seen.iter().all(|count| *count > 300), "{seen:?}");
}

#[test]
fn whole_blocks_of_a_cut_come_free() {
    for kind in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let mut engine = engine(cache(kind, 4, 256), 4096, false);
        let mut talk = Conversation::default();
        let prompt = prompt(80);
        talk.turn(&mut engine, &prompt, 0);
        engine.core_mut().cut_session(SESSION, 10..50);
        let usage = engine.core().cache().usage();
        // Of the blocks, those at both ends are still in part the session's. A radix tree keeps all
        // that is on the path to blocks in use.
        let held = match kind {
            CacheKind::Paged => 44,
            CacheKind::Radix => 80,
            _ => 40,
        };
        assert_eq!((engine.core().retained_len(SESSION), usage.held), (40, held), "{kind}");
    }
}

#[test]
fn forks_share_what_is_left_of_a_cut_session() {
    for kind in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let mut engine = engine(cache(kind, 4, 512), 4096, true);
        let mut trunk = Conversation::default();
        let prompt = prompt(80);
        trunk.turn(&mut engine, &prompt, 0);
        trunk.cut(&mut engine, 20, 40);
        let shared = if kind.is_block_based() { 48 } else { 50 };
        assert_eq!(engine.core_mut().fork_session(SESSION, SessionId(2), 50), shared, "{kind}");
        let mut branch = trunk.clone();
        branch.tokens.truncate(shared as usize);
        branch.values.truncate(shared as usize);
        branch.tokens.extend([9; 5]);
        let mut next = request(&branch.tokens, 6);
        next.params.session = Some(SessionId(2));
        let done = complete(&mut engine, next);
        assert_eq!(done.summary.cached, shared, "{kind}");
        assert_eq!(done.tokens, Toy::after(&mut branch.values, &[9; 5], 6), "{kind}");
        assert_eq!(trunk.turn(&mut engine, &[7, 8], 4), 60, "{kind}: the trunk has not changed");
    }
}

#[test]
fn preemption_computes_what_is_left_alone() {
    let mut preempted = 0;
    for kind in [CacheKind::Cells, CacheKind::Paged] {
        let mut engine = engine(cache(kind, 4, 128), 4096, false);
        let prompt = prompt(60);
        complete(&mut engine, request(&prompt, 0));
        engine.core_mut().cut_session(SESSION, 8..28);
        let left = [&prompt[..8], &prompt[28..], &[5, 6]].concat();
        let id = engine.add_request(request(&left, 20)).unwrap();
        (0..4).for_each(|_| assert_eq!(engine.step().unwrap(), Turn::Ran));
        let had = engine.core().sequence(id).unwrap().outputs().len();
        preempted += u32::from(engine.core_mut().preempt(id));
        while engine.step().unwrap() != Turn::Idle {
            engine.core().check_invariants().unwrap();
        }
        assert_eq!(engine.executor().violations().first(), None);
        let mut all: Vec<Token> = Vec::new();
        engine.core_mut().outbox().iter().for_each(|one| all.extend_from_slice(one.tokens));
        assert_eq!(all.len(), 20);
        // From there on the answer is that of a request whose tokens are all computed.
        let whole = [&left[..], &all[..had]].concat();
        assert_eq!(all[had..], Toy::alone(&whole, 20 - had as u32, true), "{kind}");
    }
    assert_eq!(preempted, 2);
}

#[test]
fn positions_of_a_cut_count_against_the_context() {
    let prompt = prompt(60);
    let left = [&prompt[..8], &prompt[40..], &[5, 6]].concat();
    let after = |max_tokens: u32| {
        let mut engine = engine(cache(CacheKind::Cells, 1, 512), 80, false);
        complete(&mut engine, request(&prompt, 0));
        engine.core_mut().cut_session(SESSION, 8..40);
        let done = complete(&mut engine, request(&left, max_tokens));
        (done.summary.cached, done.tokens.len(), done.summary.finish)
    };
    // 62 positions are taken. An answer of 18 tokens fits behind them, one of 19 behind 30 tokens only.
    assert_eq!(after(18), (28, 18, Finish::MaxTokens));
    assert_eq!(after(19), (8, 19, Finish::MaxTokens));
    // What has no end of its own ends at the model's.
    assert_eq!(after(50), (28, 18, Finish::ModelLength));
}

#[test]
fn caches_of_one_sequence_keep_what_is_before_a_cut() {
    for kind in [CacheKind::Contiguous, CacheKind::Tree] {
        let mut engine = engine(cache(kind, 1, 256), 4096, false);
        assert_eq!(engine.core().cut_obstacle(), Some(CutObstacle::Cache(kind)));
        let mut talk = Conversation::default();
        let prompt = prompt(60);
        talk.turn(&mut engine, &prompt, 0);
        engine.core_mut().cut_session(SESSION, 8..28);
        assert_eq!(engine.core().retained_len(SESSION), 8, "{kind}");
    }
}

#[test]
fn siblings_of_a_request_behind_a_cut_answer_as_it_does() {
    let mut engine = engine(cache(CacheKind::Cells, 1, 512), 4096, true);
    let mut talk = Conversation::default();
    let prompt = prompt(40);
    talk.turn(&mut engine, &prompt, 0);
    talk.cut(&mut engine, 5, 25);
    talk.tokens.extend([3, 4]);
    let requests = vec![request(&talk.tokens, 5); 2];
    let done: Vec<_> = complete_all(&mut engine, requests).into_iter().map(Result::unwrap).collect();
    assert_eq!(done[0].tokens, Toy::after(&mut talk.values, &[3, 4], 5));
    assert_eq!(done[1].tokens, Toy::alone(&talk.tokens, 5, true), "the second one has no retained K/V");
    assert_eq!(engine.executor().violations().first(), None);
}
