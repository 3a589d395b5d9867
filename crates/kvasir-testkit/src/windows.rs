//! Random operations on two caches of the same kind, one of which has window groups. Executors of
//! both must compute the same logits in every step.
//!
//! 1. Feed random chunks of random sequences, with drafts, some of which are rejected.
//! 2. Fork, rewind, publish and close sequences, and begin new ones with prefix hits.
//! 3. Release the memory of free slots.
//!
//! An operation that the cache with window groups refuses is skipped on both.

use crate::random::Random;
use crate::steps::{RowInput, row_input, step};
use kvasir_exec::Step;
use kvasir_kv::{
    Cache, CacheConfig, CacheKind, ClaimRow, GroupId, Lookup, SeqId, Slot, StepId, Token, WindowConfig, build,
};
use std::ops::Range;

/// Maximum number of sequences.
const MAX_SEQUENCES: usize = 4;
/// Maximum number of drafts per row.
const MAX_DRAFTS: u32 = 3;
/// Tokens per block.
const BLOCK: u32 = 8;
/// Slots of the full group.
const CAPACITY: u32 = 768;
/// A sequence of more tokens is closed.
const MAX_LEN: usize = 150;

/// The executors of the two caches.
pub trait Executors {
    /// Runs a step of the cache without (0) or with (1) window groups; returns the logits of all
    /// tokens.
    fn run(&mut self, cache: usize, step: Step) -> Vec<f32>;
    /// Releases the memory of free slots of a group of the cache with window groups.
    fn release(&mut self, group: GroupId, slots: &[Range<Slot>]);
}

/// The window groups of a cache for windows of these lengths, ascending. Each has slots for the
/// windows of `MAX_SEQUENCES` sequences, so longer sequences must reuse slots.
pub fn window_configs(windows: &[u32]) -> Vec<WindowConfig> {
    let config = |&window: &u32| {
        let blocks = (window + MAX_DRAFTS + BLOCK).div_ceil(BLOCK) + 3;
        WindowConfig { window, capacity: MAX_SEQUENCES as u32 * blocks * BLOCK, longest_draft: MAX_DRAFTS }
    };
    windows.iter().map(config).collect()
}

/// A cache with these window groups.
pub fn windowed_cache(kind: CacheKind, windows: Vec<WindowConfig>) -> Box<dyn Cache> {
    let config = CacheConfig { block_size: BLOCK, dummy: true, windows, ..CacheConfig::new(CAPACITY) };
    build(kind, &config).unwrap()
}

/// A sequence that both caches have.
struct Sequence {
    /// Its id in the cache without and with window groups.
    ids: [SeqId; 2],
    tokens: Vec<Token>,
}

/// Both caches with the same sequences.
struct Caches<'e> {
    random: Random,
    caches: [Box<dyn Cache>; 2],
    sequences: Vec<Sequence>,
    /// Tokens of the sequence whose blocks were published last.
    published: Vec<Token>,
    executors: &'e mut dyn Executors,
    next_step: u64,
    /// Number of tokens fed to the executors.
    fed: u32,
    /// Number of sequences that began with a prefix hit.
    hits: u32,
}

/// Runs `operations` random operations on caches of a kind with these windows.
pub fn check_random_operations(
    kind: CacheKind,
    windows: &[u32],
    seed: u64,
    operations: usize,
    executors: &mut dyn Executors,
) {
    let groups = window_configs(windows);
    let most_slots: u32 = groups.iter().map(|config| config.capacity).max().unwrap_or(0);
    let caches = [windowed_cache(kind, Vec::new()), windowed_cache(kind, groups)];
    let (sequences, published) = (Vec::new(), Vec::new());
    let random = Random::new(seed);
    let mut caches =
        Caches { random, caches, sequences, published, executors, next_step: 1, fed: 0, hits: 0 };
    for _ in 0..operations {
        caches.run_operation();
        caches.caches[1].check().unwrap();
    }
    assert!(caches.fed > 2 * most_slots, "{} tokens are too few to reuse {most_slots} slots", caches.fed);
    if kind != CacheKind::Cells {
        assert!(caches.hits > 0, "no sequence began with a prefix hit");
    }
}

impl Caches<'_> {
    fn run_operation(&mut self) {
        if self.sequences.len() < MAX_SEQUENCES && (self.sequences.is_empty() || self.random.one_in(6)) {
            return self.open();
        }
        match self.random.below(12) {
            0 => self.fork(),
            1 => self.rewind(),
            2 => self.publish_and_close(),
            3 => self.release(),
            _ => self.feed(),
        }
        self.close_long_sequences();
    }

    /// The index of a random sequence.
    fn pick(&mut self) -> usize {
        self.random.below(self.sequences.len() as u64) as usize
    }

    /// Opens a sequence, and attaches the longest prefix of a published one that both caches have.
    fn open(&mut self) {
        let ids = [0, 1].map(|cache| self.caches[cache].open().unwrap());
        let mut tokens = Vec::new();
        if self.published.len() > 1 && self.random.chance(80) {
            let len = self.random.between(1, self.published.len() as u32) as usize;
            let prompt = [&self.published[..len], &[self.random.between(0, 499)]].concat();
            let mut limit = u32::MAX;
            // The cache without window groups finds at least the prefix that the other one finds.
            for cache in [1, 0] {
                let prefix = self.caches[cache].prefix().unwrap();
                let hit = prefix.attach(ids[cache], &prompt, 0, limit, Lookup::default()).unwrap();
                assert!(cache == 1 || hit.tokens == limit);
                limit = hit.tokens;
            }
            tokens.extend(&prompt[..limit as usize]);
            self.hits += u32::from(limit > 0);
        }
        self.sequences.push(Sequence { ids, tokens });
    }

    /// Runs a step of some of the sequences.
    fn feed(&mut self) {
        let mut chosen: Vec<usize> = (0..self.sequences.len()).filter(|_| self.random.chance(70)).collect();
        if chosen.is_empty() {
            chosen.push(self.pick());
        }
        let mut inputs = Vec::new();
        for at in &chosen {
            let count = if self.random.one_in(3) { self.random.between(1, 20) } else { 1 };
            let tokens: Vec<Token> = (0..count).map(|_| self.random.between(0, 499)).collect();
            let drafts = if self.random.one_in(3) { (count - 1).min(MAX_DRAFTS) } else { 0 };
            inputs.push(RowInput { drafts, ..row_input(self.sequences[*at].ids[1], &tokens) });
        }
        // Claims and cancels the step on both caches first: a step that one of them refuses runs on
        // neither.
        for cache in [1, 0] {
            let claims = inputs.iter().zip(&chosen).map(|(input, at)| ClaimRow {
                drafts: input.drafts,
                ..ClaimRow::new(self.sequences[*at].ids[cache], input.tokens.len() as u32)
            });
            let (claims, id) = (claims.collect::<Vec<_>>(), StepId(self.next_step));
            if self.caches[cache].claim(id, &claims).is_err() {
                self.next_step += 1;
                return self.close(chosen[0]);
            }
            self.caches[cache].cancel(id).unwrap();
        }
        self.next_step += 1;
        let id = self.next_step;
        self.next_step += 1;
        let mut logits = Vec::new();
        for cache in [1, 0] {
            for (input, at) in inputs.iter_mut().zip(&chosen) {
                input.seq = self.sequences[*at].ids[cache];
            }
            let step = step(&mut *self.caches[cache], id, &inputs);
            logits.push(self.executors.run(cache, step));
            self.caches[cache].retire(StepId(id)).unwrap();
        }
        assert!(logits[0] == logits[1], "logits of step {id} differ with window groups");
        for (input, at) in inputs.iter().zip(&chosen) {
            self.fed += input.tokens.len() as u32;
            let rejected = self.random.between(0, input.drafts);
            let sequence = &mut self.sequences[*at];
            sequence.tokens.extend(&input.tokens);
            if rejected > 0 {
                let len = sequence.tokens.len() - rejected as usize;
                sequence.tokens.truncate(len);
                for cache in [0, 1] {
                    let rewind = self.caches[cache].rewind().unwrap();
                    rewind.rewind_to(sequence.ids[cache], len as u32).unwrap();
                }
            }
        }
    }

    fn fork(&mut self) {
        let at = self.pick();
        let Sequence { ids, tokens } = &self.sequences[at];
        if self.sequences.len() == MAX_SEQUENCES || tokens.is_empty() {
            return;
        }
        let Ok(windowed) = self.caches[1].sequences().unwrap().fork(ids[1], 1) else { return };
        let full = self.caches[0].sequences().unwrap().fork(ids[0], 1).unwrap();
        let tokens = tokens.clone();
        self.sequences.push(Sequence { ids: [full[0], windowed[0]], tokens });
    }

    /// Truncates a sequence to a random length at which the cache still has all rows of its windows.
    fn rewind(&mut self) {
        let at = self.pick();
        let len = self.sequences[at].tokens.len() as u32;
        let to = self.random.between(len.saturating_sub(2 * BLOCK), len);
        let Sequence { ids, tokens } = &mut self.sequences[at];
        let Ok(to) = self.caches[1].rewind().unwrap().rewind_floor(ids[1], to) else { return };
        tokens.truncate(to as usize);
        for cache in [0, 1] {
            self.caches[cache].rewind().unwrap().rewind_to(ids[cache], to).unwrap();
        }
    }

    fn publish_and_close(&mut self) {
        let at = self.pick();
        if self.caches[0].prefix().is_ok() {
            let Sequence { ids, tokens } = &self.sequences[at];
            for cache in [0, 1] {
                let prefix = self.caches[cache].prefix().unwrap();
                prefix.publish(ids[cache], tokens, tokens.len() as u32).unwrap();
            }
            self.published.clone_from(tokens);
        }
        self.close(at);
    }

    fn close(&mut self, at: usize) {
        let Sequence { ids, .. } = self.sequences.swap_remove(at);
        [0, 1].into_iter().for_each(|cache| self.caches[cache].close(ids[cache]).unwrap());
    }

    fn release(&mut self) {
        let groups: Vec<GroupId> = self.caches[1].shape().groups.iter().map(|(group, _)| group).collect();
        let mut free = Vec::new();
        for group in groups {
            free.clear();
            self.caches[1].free_slots(group, &mut free);
            self.executors.release(group, &free);
        }
    }

    fn close_long_sequences(&mut self) {
        while let Some(at) = self.sequences.iter().position(|sequence| sequence.tokens.len() > MAX_LEN) {
            self.close(at);
        }
    }
}
