//! Models with window groups on the toy device: prefix hits at points of divergence, sessions, K/V
//! transfer, long drafts. `tests/toy` and `tests/sessions.rs` run random workloads.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use kvasir_engine::*;
use kvasir_kv::{CacheConfig, CacheEnd, CacheKind, GroupId, Token, WindowConfig, build};
use kvasir_sim::{Toy, ToyShape};
use kvasir_testkit::complete::complete;

const BLOCK: u32 = 4;
const WINDOW: u32 = 10;
const LONGEST_DRAFT: u32 = 2;
const BLOCK_KINDS: [CacheKind; 2] = [CacheKind::Paged, CacheKind::Radix];

fn shape() -> ToyShape {
    ToyShape { windows: vec![WINDOW], state: false }
}

fn window_config(capacity: u32) -> WindowConfig {
    WindowConfig { window: WINDOW, capacity, longest_draft: LONGEST_DRAFT }
}

/// An engine with chunks of 8 tokens and `window_slots` slots in its window group.
fn engine(kind: CacheKind, window_slots: u32) -> Engine<Toy> {
    let block_size = if kind.is_block_based() { BLOCK } else { 1 };
    let windows = vec![window_config(window_slots)];
    let config = CacheConfig { block_size, windows, ..CacheConfig::new(1024) };
    let policy = Box::new(Chunked::new(8, Mixing::Off));
    let core = Core::new(Limits::default(), Order::Fcfs, policy, build(kind, &config).unwrap());
    Engine::new(core, Toy::new().with_shape(shape()), || 0)
}

fn tokens(first: Token, count: u32) -> Vec<Token> {
    (0..count).map(|i| first + i % 7).collect()
}

fn request(prompt: Vec<Token>, session: Option<u64>) -> Request {
    let session = session.map(SessionId);
    let params = Params { max_tokens: 4, ignore_eos: true, session, ..Params::default() };
    Request { tag: 1, prompt, params }
}

/// Completes a request, compares its answer with that of the request alone, and returns its
/// statistics.
fn completed(engine: &mut Engine<Toy>, request: Request) -> Summary {
    let expected = shape().alone(&request.prompt, request.params.max_tokens, true);
    let done = complete(engine, request);
    assert_eq!(done.tokens, expected);
    assert_eq!(engine.executor().violations().first(), None);
    engine.core().check_invariants().unwrap();
    done.summary
}

fn held_window_slots(engine: &Engine<Toy>) -> u32 {
    engine.core().cache().usage_of(GroupId(1)).held
}

#[test]
fn a_prompt_hits_where_an_earlier_prompt_diverged() {
    for kind in BLOCK_KINDS {
        let mut engine = engine(kind, 256);
        let diverging = |first: Token| request([tokens(100, 40), tokens(first, 60)].concat(), None);
        let first = completed(&mut engine, diverging(200));
        assert_eq!((first.cached, first.prefix.matched), (0, 0), "{kind}");
        let second = completed(&mut engine, diverging(300));
        assert_eq!((second.cached, second.prefix.matched), (0, 40), "{kind}");
        assert_eq!(second.prefix.cache_end, Some(CacheEnd::WindowReleased), "{kind}");
        let third = completed(&mut engine, diverging(400));
        assert_eq!((third.cached, third.prefix.matched), (40, 40), "{kind}");
        assert_eq!(third.prefix.cache_end, Some(CacheEnd::NeverComputed), "{kind}");
    }
}

#[test]
fn a_prompt_hits_at_the_mark_of_an_earlier_prompt() {
    for kind in BLOCK_KINDS {
        let mut engine = engine(kind, 256);
        let mut first = request(tokens(100, 100), None);
        first.params.marks = vec![49];
        completed(&mut engine, first);
        let second = request([tokens(100, 49), tokens(300, 20)].concat(), None);
        assert_eq!(completed(&mut engine, second).cached, 48, "{kind}");
    }
}

#[test]
fn a_retained_session_continues_after_its_rows_were_released() {
    for kind in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let mut engine = engine(kind, 256);
        let mut conversation = tokens(100, 50);
        for turn in 0..4 {
            let done = completed(&mut engine, request(conversation.clone(), Some(1)));
            // The last output has no K/V yet, and whole blocks are retained.
            let block = engine.core().cache().shape().block_size;
            let retained = if turn == 0 { 0 } else { (conversation.len() as u32 - 9 - 1) / block * block };
            assert_eq!(done.cached, retained, "{kind}, turn {turn}");
            assert!(held_window_slots(&engine) <= window_config(0).slots_per_sequence(BLOCK), "{kind}");
            conversation.extend(shape().alone(&conversation, 4, true));
            conversation.extend(tokens(200, 9));
        }
        let len = engine.core().retained_len(SessionId(1));
        engine.core_mut().rewind_session(SessionId(1), len / 2);
        assert_eq!(engine.core().retained_len(SessionId(1)), 0, "{kind}: its window was released");
    }
}

#[test]
fn a_full_window_pool_evicts_the_oldest_sessions() {
    for kind in [CacheKind::Cells, CacheKind::Paged, CacheKind::Radix] {
        let mut engine = engine(kind, 64);
        for session in 1..=6 {
            completed(&mut engine, request(tokens(100 * session as Token, 60), Some(session)));
            assert!(engine.core().retained_len(SessionId(session)) > 0, "{kind}");
        }
        let retained = |session| engine.core().retained_len(SessionId(session)) > 0;
        assert!(!retained(1) && retained(5) && retained(6), "{kind}");
    }
}

#[test]
fn kv_transfer_with_window_groups_is_refused() {
    for kind in BLOCK_KINDS {
        let error = engine(kind, 256).kv_layout().unwrap_err().to_string();
        assert!(error.contains("window groups"), "{error}");
    }
}

/// Proposes more tokens than `LONGEST_DRAFT`.
struct SixTokens;

impl Drafter for SixTokens {
    fn width(&self) -> u32 {
        6
    }
    fn proposes_trees(&self) -> bool {
        false
    }
    fn propose(&mut self, _: &Sequence, proposal: &mut Proposal) {
        proposal.tokens.extend([101; 6]);
    }
}

#[test]
fn the_longest_draft_of_a_window_group_limits_drafts() {
    for kind in BLOCK_KINDS {
        let mut engine = engine(kind, 256).draft(Box::new(SixTokens)).unwrap().draft_width(DraftWidth::Fixed);
        let mut long = request(tokens(100, 30), None);
        long.params.max_tokens = 40;
        let done = completed(&mut engine, long);
        assert!(done.verified > 0 && done.drafted <= LONGEST_DRAFT * done.verified, "{kind}: {done:?}");
    }
}
