//! Prefix hits and memory of window groups, by example.

use kvasir_kv::{
    Cache, CacheConfig, CacheError, CacheKind, ClaimRow, GroupId, Hit, Lookup, Plan, SeqId, StepId, Token,
    VictimSearch, WindowConfig, build,
};

const BLOCK: u32 = 4;
const WINDOW: u32 = 10;
const BLOCK_KINDS: [CacheKind; 2] = [CacheKind::Paged, CacheKind::Radix];

/// A cache with one window group, and the number of its last step. Runs one step at a time.
struct Harness {
    cache: Box<dyn Cache>,
    step: u64,
}

impl Harness {
    fn new(kind: CacheKind, capacity: u32) -> Self {
        let windows = vec![WindowConfig { window: WINDOW, capacity, longest_draft: 2 }];
        let config = CacheConfig { block_size: BLOCK, windows, ..CacheConfig::new(4096) };
        Self { cache: build(kind, &config).unwrap(), step: 0 }
    }

    fn claim(&mut self, seq: SeqId, tokens: u32) -> Result<Plan, CacheError> {
        self.step += 1;
        self.cache.claim(StepId(self.step), &[ClaimRow::new(seq, tokens)])?;
        let mut plan = Plan::default();
        self.cache.plan(StepId(self.step), &mut plan)?;
        Ok(plan)
    }

    fn feed(&mut self, seq: SeqId, tokens: u32) -> Plan {
        let plan = self.claim(seq, tokens).unwrap();
        self.cache.retire(StepId(self.step)).unwrap();
        self.cache.check().unwrap();
        plan
    }

    /// Runs a prompt in chunks and publishes it at its end, or after each chunk. Returns its hit.
    fn prompt(&mut self, tokens: &[Token], chunk: usize, publish_each_chunk: bool) -> Hit {
        let seq = self.cache.open().unwrap();
        let prefix = self.cache.prefix().unwrap();
        let hit = prefix.attach(seq, tokens, 0, u32::MAX, Lookup::default()).unwrap();
        let mut at = hit.tokens as usize;
        while at < tokens.len() {
            let to = (at + chunk).min(tokens.len());
            self.feed(seq, (to - at) as u32);
            at = to;
            if publish_each_chunk || at == tokens.len() {
                self.cache.prefix().unwrap().publish(seq, tokens, at as u32).unwrap();
            }
        }
        self.cache.close(seq).unwrap();
        hit
    }

    fn held(&self) -> u32 {
        self.cache.usage_of(GroupId(1)).held
    }
}

/// A long sequence holds the window and at most two blocks more, in every cache.
#[test]
fn a_long_sequence_holds_only_its_window() {
    for kind in [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells] {
        let mut harness = Harness::new(kind, 256);
        let seq = harness.cache.open().unwrap();
        harness.feed(seq, 100);
        for len in 101..1000 {
            let plan = harness.feed(seq, 1);
            let [section] = &plan.windows[..] else { panic!("{} sections", plan.windows.len()) };
            let read: Vec<u32> = section.entries(&section.rows[0]).map(|(_, _, position)| position).collect();
            assert!(read.len() as u32 >= WINDOW && read.len() as u32 <= WINDOW + 2 + 2 * BLOCK, "{read:?}");
            assert_eq!(read.last(), Some(&(len - 1)));
            assert!(harness.held() <= WINDOW + 2 + 2 * BLOCK, "{kind}: {} slots", harness.held());
        }
        harness.cache.close(seq).unwrap();
        assert_eq!(harness.held(), 0);
    }
}

/// A prompt that repeats another hits all of it, since the window before its end is cached.
#[test]
fn a_repeated_prompt_hits_up_to_its_last_block() {
    for kind in BLOCK_KINDS {
        let mut harness = Harness::new(kind, 256);
        let tokens: Vec<Token> = (0..102).collect();
        assert_eq!(harness.prompt(&tokens, 30, false).tokens, 0);
        let hit = harness.prompt(&tokens, 30, false);
        assert_eq!(hit.tokens, 100, "{kind}");
        // The rows 91..100 lie in three blocks.
        assert_eq!(hit.evictable, [100, 12, 0, 0], "{kind}");
    }
}

/// The rows before the divergence of two prompts were released before the first was published. The
/// second computes its prompt, and the third hits the shared part.
#[test]
fn released_rows_before_a_divergence_are_computed_once() {
    for kind in BLOCK_KINDS {
        let mut harness = Harness::new(kind, 256);
        let prompt = |last: Token| (0..100).map(|i| if i < 40 { i } else { last + i }).collect::<Vec<_>>();
        let hits = [(1000, false), (2000, true), (3000, true)];
        let hits = hits
            .map(|(last, publish_each_chunk)| harness.prompt(&prompt(last), 10, publish_each_chunk).tokens);
        assert_eq!(hits, [0, 0, 40], "{kind}");
    }
}

/// One chunk is published before its rows are overwritten, so a shorter prompt hits inside it.
#[test]
fn a_prompt_hits_inside_the_chunk_of_another() {
    for kind in BLOCK_KINDS {
        let mut harness = Harness::new(kind, 256);
        let tokens: Vec<Token> = (0..100).collect();
        harness.prompt(&tokens, 100, false);
        for len in [9, 50, 77] {
            let hit = harness.prompt(&tokens[..len], 100, false);
            assert_eq!(hit.tokens, (len as u32 - 1) / BLOCK * BLOCK, "{kind}");
        }
    }
}

/// Blocks of the window before a mark stay when the others are evicted.
#[test]
fn blocks_before_marks_are_evicted_last() {
    for kind in BLOCK_KINDS {
        let mut harness = Harness::new(kind, 64);
        let tokens: Vec<Token> = (0..40).collect();
        let seq = harness.cache.open().unwrap();
        harness.cache.mark_checkpoints(seq, &[24]).unwrap();
        harness.feed(seq, 40);
        harness.cache.prefix().unwrap().publish(seq, &tokens, 40).unwrap();
        harness.cache.close(seq).unwrap();
        let other = harness.cache.open().unwrap();
        harness.feed(other, 50);
        let hit = |harness: &mut Harness, len: usize| {
            harness.cache.prefix().unwrap().lookup(&tokens[..len], 0).tokens
        };
        assert_eq!((hit(&mut harness, 25), hit(&mut harness, 40)), (24, 24), "{kind}");
    }
}

/// A claim that only the window pool cannot serve changes nothing, and victims are found there.
#[test]
fn a_full_window_pool_names_its_group_and_victims() {
    for kind in [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells] {
        let mut harness = Harness::new(kind, 64);
        let seqs: Vec<SeqId> = (0..2).map(|_| harness.cache.open().unwrap()).collect();
        harness.feed(seqs[0], 20);
        harness.feed(seqs[1], 30);
        let before = (harness.cache.usage(), harness.cache.usage_of(GroupId(1)), harness.cache.generation());
        let refused = harness.claim(seqs[1], 60).unwrap_err();
        let CacheError::Full { group: GroupId(1), needed, available } = refused else { panic!("{refused}") };
        assert_eq!(
            before,
            (harness.cache.usage(), harness.cache.usage_of(GroupId(1)), harness.cache.generation())
        );
        let search = VictimSearch {
            slots: GroupId(1).slots(needed - available),
            candidates: &seqs[..1],
            ..VictimSearch::default()
        };
        let mut victims = Vec::new();
        assert!(!harness.cache.victims(&search, &mut victims) && victims.is_empty());
        let one = VictimSearch { slots: GroupId(1).slots(8), ..search };
        assert!(harness.cache.victims(&one, &mut victims));
        assert_eq!(victims, [seqs[0]]);
        let mut both = one.slots;
        both[0] = 20;
        assert!(harness.cache.victims(&VictimSearch { slots: both, ..one }, &mut victims));
        assert_eq!(victims, [seqs[0]]);
        // The second sequence alone suffices in both groups, the first one in the window group only.
        both[0] = 25;
        let any = VictimSearch { slots: both, candidates: &seqs, ..one };
        assert!(harness.cache.victims(&any, &mut victims));
        assert_eq!(victims, [seqs[1]]);
        let held = harness.cache.slots_held_by(&seqs[..1]);
        assert_eq!((held[0], held[1]), (20, harness.held() - window_slots_held_by(&mut harness, seqs[1])));
    }
}

fn window_slots_held_by(harness: &mut Harness, seq: SeqId) -> u32 {
    harness.cache.slots_held_by(&[seq])[1]
}

#[test]
fn claims_of_more_drafts_than_configured_are_refused() {
    let mut harness = Harness::new(CacheKind::Paged, 64);
    let seq = harness.cache.open().unwrap();
    let claim = |drafts| [ClaimRow { drafts, ..ClaimRow::new(seq, 4) }];
    assert_eq!(harness.cache.claim(StepId(1), &claim(3)), Err(CacheError::BadClaim));
    assert_eq!(harness.cache.claim(StepId(2), &claim(2)), Ok(()));
}

#[test]
fn unsupported_windows_are_refused() {
    let build_with = |kind, windows: &[u32]| {
        let window = |&window: &u32| WindowConfig { window, capacity: 64, longest_draft: 0 };
        let windows = windows.iter().map(window).collect();
        build(kind, &CacheConfig { windows, ..CacheConfig::new(64) }).map(|_| ())
    };
    for kind in [CacheKind::Contiguous, CacheKind::Tree] {
        assert!(matches!(build_with(kind, &[8]), Err(CacheError::BadConfig(_))), "{kind}");
    }
    for kind in [CacheKind::Paged, CacheKind::Radix, CacheKind::Cells] {
        assert_eq!(build_with(kind, &[8, 16]), Ok(()));
        assert!(matches!(build_with(kind, &[0]), Err(CacheError::BadConfig(_))), "{kind}");
        for windows in [&[4, 8, 16][..], &[16, 8], &[8, 8]] {
            assert!(matches!(build_with(kind, windows), Err(CacheError::BadConfig(_))), "{kind}");
        }
    }
}
