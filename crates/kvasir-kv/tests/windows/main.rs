//! Model-based test of caches with window groups: random operations, with a device that stores a
//! hash per slot of everything visible when the row was computed. Every query must find exactly the
//! rows of its window. `hits.rs` tests prefix hits.
//!
//! `KVASIR_SEEDS=10000` runs more seeds.

#![allow(clippy::unwrap_used, clippy::panic)]

mod device;
mod hits;
mod model;
mod verbs;

use device::Device;
use kvasir_kv::{
    Cache, CacheConfig, CacheError, CacheKind, ClaimRow, GroupId, Plan, PoolUsage, Position, SeqId,
    StateConfig, StepId, Token, WindowConfig, build,
};
use kvasir_testkit::{Random, env_number};
use model::{CachedPrefixes, Claim, Sequence, Window};
use std::collections::{BTreeMap, VecDeque};

/// A step that was submitted and has not retired.
struct ClaimedStep {
    step: StepId,
    rows: Vec<ClaimRow>,
}

/// A cache under random operations, with its model and device.
struct Simulation {
    cache: Box<dyn Cache>,
    block: u32,
    windows: Vec<Window>,
    has_states: bool,
    has_dummy: bool,
    longest_draft: u32,
    /// Whether nothing is evicted, copied or removed, so that the model knows every hit and floor.
    is_exact: bool,
    random: Random,
    device: Device,
    seqs: BTreeMap<SeqId, Sequence>,
    claimed: VecDeque<ClaimedStep>,
    prefixes: CachedPrefixes,
    step: u64,
    families: u32,
    totals: Totals,
}

/// Totals of all seeds.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    /// Number of tokens in prefix hits.
    hits: u32,
    /// Number of tokens whose K/V only the full group had.
    missed: u32,
    /// Number of claims that a window group without enough slots refused.
    refused: u32,
    /// Number of rewinds, copies and removals that were refused because window rows were released.
    window_released: u32,
    /// Number of slot copies of window groups.
    copies: usize,
}

impl Simulation {
    fn new(kind: CacheKind, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let block = if kind.is_block_based() { random.pick(&[1, 2, 4, 16]) } else { 1 };
        let is_exact = random.chance(40);
        let longest_draft = random.between(0, 4);
        let widths = random.pick(&[&[1][..], &[2], &[5], &[8], &[17], &[3, 7], &[16, 40]]);
        let slots = |random: &mut Random, least: u32| {
            if is_exact { 1 << 14 } else { least + random.between(0, 4) * least / 2 }
        };
        let configs: Vec<WindowConfig> = widths
            .iter()
            .map(|&window| {
                let capacity = slots(&mut random, 2 * (window + longest_draft + block) + 40);
                WindowConfig { window, capacity, longest_draft }
            })
            .collect();
        let capacity = slots(&mut random, 300);
        let has_states = random.chance(25);
        let states = StateConfig { live: 8, checkpoints: 40, tail_rows: 4, interval: 8 };
        let has_dummy = kind.is_block_based() && random.chance(30);
        let config = CacheConfig {
            block_size: block,
            max_sequences: 8,
            dummy: has_dummy,
            windows: configs.clone(),
            states: has_states.then_some(states),
            ..CacheConfig::new(capacity)
        };
        let pools: Vec<(Option<u32>, u32)> = std::iter::once((None, capacity))
            .chain(configs.iter().map(|config| (Some(config.window), config.capacity)))
            .map(|(window, slots)| (window, slots + block))
            .collect();
        let kept_rows = |config: &WindowConfig| config.window - 1 + longest_draft + block;
        Self {
            cache: build(kind, &config).unwrap(),
            block,
            windows: configs
                .iter()
                .map(|config| Window { window: config.window, kept_rows: kept_rows(config) })
                .collect(),
            has_states,
            has_dummy,
            longest_draft,
            is_exact: is_exact && !has_states,
            random,
            device: Device::new(&pools),
            seqs: BTreeMap::new(),
            claimed: VecDeque::new(),
            prefixes: CachedPrefixes::new(configs.len()),
            step: 0,
            families: 0,
            totals: Totals::default(),
        }
    }

    fn below(&mut self, n: u32) -> u32 {
        self.random.below(u64::from(n.max(1))) as u32
    }

    fn random_sequence(&mut self) -> Option<SeqId> {
        let open: Vec<SeqId> = self.seqs.keys().copied().collect();
        (!open.is_empty()).then(|| self.random.pick(&open))
    }

    /// Everything that a refused operation must leave unchanged.
    fn observed(&mut self) -> (Vec<PoolUsage>, u64, Vec<[u32; 4]>) {
        let groups: Vec<GroupId> = self.cache.shape().groups.iter().map(|(group, _)| group).collect();
        let usages = groups.into_iter().map(|group| self.cache.usage_of(group)).collect();
        let lengths = self.seqs.keys().map(|&seq| {
            let (len, next) = (self.cache.len(seq).unwrap(), self.cache.next_position(seq).unwrap());
            let floors =
                [next, next / 2].map(|to| self.cache.rewind().unwrap().rewind_floor(seq, to).unwrap());
            [len, next, floors[0], floors[1]]
        });
        let lengths = lengths.collect();
        (usages, self.cache.generation(), lengths)
    }

    fn operate(&mut self) {
        let operation = self.below(100);
        match operation {
            0..12 => self.open(),
            12..20 => self.close(),
            20..50 => self.claim(),
            50..70 => self.retire(),
            70..78 => _ = self.random_sequence().map(|seq| self.publish(seq)),
            78..83 => self.rewind(),
            83 | 84 => self.rewind_to_checkpoint(),
            85 | 86 => self.mark(),
            _ if self.is_exact => self.claim(),
            87..90 => self.fork(),
            90..94 => self.copy(),
            94..97 => self.remove(),
            97 => self.keep(),
            98 => _ = self.cache.prefix().map(|prefix| prefix.evict(3 * self.block)),
            _ => _ = self.cache.compact(),
        }
        if self.claimed.len() > 2 {
            self.retire();
        }
        self.cache.check().unwrap_or_else(|error| panic!("after operation {operation}: {error}"));
        for (&seq, model) in &self.seqs {
            assert_eq!(self.cache.next_position(seq), Ok(model.next()));
            assert_eq!(self.cache.claimed_len(seq), Ok(model.rows.len() as u32));
        }
    }

    /// Random rows of a claim: decode tokens, prompt chunks, drafts and redirected tokens.
    fn claim_rows(&mut self) -> Vec<ClaimRow> {
        let mut rows = Vec::new();
        for seq in self.seqs.keys().copied().collect::<Vec<_>>() {
            if self.random.chance(50) {
                let is_long = self.random.chance(30);
                let tokens = 1 + if is_long { self.below(3 * self.block + 20) } else { self.below(2) };
                let drafts = self.below(self.longest_draft + 1).min(tokens - 1);
                let drafts = if self.random.chance(40) { drafts } else { 0 };
                let tail = self.seqs[&seq].tail().min(6);
                let redirected =
                    if self.has_dummy && self.random.chance(20) { self.below(tail + 1) } else { 0 };
                rows.push(ClaimRow { drafts, redirected, ..ClaimRow::new(seq, tokens) });
            }
        }
        rows
    }

    fn claim(&mut self) {
        let rows = self.claim_rows();
        if rows.is_empty() {
            return;
        }
        self.step += 1;
        let step = StepId(self.step);
        let before = self.observed();
        match self.cache.claim(step, &rows) {
            Ok(()) => {}
            Err(CacheError::Full { group, needed, available }) => {
                assert!(needed > available);
                assert_eq!(self.observed(), before, "a refused claim changed something");
                self.totals.refused += u32::from(group != GroupId::FULL);
                return;
            }
            Err(error) => panic!("{error}"),
        }
        self.prefixes.just_released.clear();
        let (mut queries, mut models) = (Vec::new(), Vec::new());
        for &ClaimRow { seq, redirected, tokens, .. } in &rows {
            let generated: Vec<Token> = (0..tokens).map(|_| self.below(2) + 90).collect();
            let model = self.seqs.get_mut(&seq).unwrap();
            models.push((seq, model.clone()));
            model.claims.push(Claim { step, start: model.next() });
            let prompt: Vec<Token> = model.prompt.iter().skip(model.next() as usize).copied().collect();
            prompt.into_iter().chain(generated).take(tokens as usize).for_each(|token| model.push(token));
            queries.extend(model.queries(redirected, tokens));
        }
        let (mut plan, mut again) = (Plan::default(), Plan::default());
        self.cache.plan(step, &mut plan).unwrap();
        self.cache.plan(step, &mut again).unwrap();
        let entries = |plan: &Plan| {
            let of = |section: &kvasir_kv::Section| {
                let rows = section.rows.iter().map(|row| section.entries(row).collect::<Vec<_>>());
                (rows.collect::<Vec<_>>(), section.write_slots.clone(), section.moves.clone())
            };
            plan.sections().map(of).collect::<Vec<_>>()
        };
        assert_eq!(entries(&plan), entries(&again), "plan changed the claimed step");
        if self.random.chance(12) {
            self.cache.cancel(step).unwrap();
            self.seqs.extend(models);
            return;
        }
        self.device.submit(&plan, queries);
        self.claimed.push_back(ClaimedStep { step, rows });
    }

    fn retire(&mut self) {
        let Some(ClaimedStep { step, rows }) = self.claimed.pop_front() else { return };
        self.device.run();
        let mut drafted = Vec::new();
        for row in &rows {
            let Some(model) = self.seqs.get_mut(&row.seq) else { continue };
            let claims = model.claims.len();
            let is_uncut = model.claims.first().is_some_and(|claim| {
                claims == 1 && claim.step == step && claim.start + row.tokens == model.next()
            });
            model.claims.retain(|claim| claim.step != step);
            if is_uncut {
                drafted.push((row.seq, row.drafts));
            }
            self.prefixes.release(row.seq, model, &self.windows, self.block);
        }
        self.cache.retire(step).unwrap();
        // Draft verification accepts a random number of drafts.
        for (seq, drafts) in drafted {
            let to = self.seqs[&seq].next() - self.below(drafts + 1);
            assert_eq!(self.cache.rewind().unwrap().rewind_floor(seq, to), Ok(to));
            self.cache.rewind().unwrap().rewind_to(seq, to).unwrap();
            self.truncate(seq, to);
        }
    }

    /// Truncates the model of a sequence.
    fn truncate(&mut self, seq: SeqId, to: Position) {
        let block = self.block;
        let model = self.seqs.get_mut(&seq).unwrap();
        model.truncate(to);
        let next = model.next();
        model.released.iter_mut().for_each(|released| *released = (*released).min(next / block));
    }

    /// Retires all steps and closes all sequences. All pools must be free then.
    fn finish(&mut self) {
        while !self.claimed.is_empty() {
            self.retire();
        }
        for seq in self.seqs.keys().copied().collect::<Vec<_>>() {
            self.cache.close(seq).unwrap();
        }
        if let Ok(prefix) = self.cache.prefix() {
            prefix.evict(u32::MAX).unwrap();
        }
        self.cache.check().unwrap();
        for (group, _) in self.cache.shape().groups.iter() {
            let PoolUsage { free, evictable, held, leased } = self.cache.usage_of(group);
            assert!(free > 0 && (evictable, held, leased) == (0, 0, 0), "{group:?}");
        }
        self.totals.copies = self.device.copies;
    }
}

/// Runs random operations on a cache of this kind, for many seeds.
fn run_seeds(kind: CacheKind) -> Totals {
    let seeds = env_number("KVASIR_SEEDS", 300);
    let mut totals = Totals::default();
    for seed in 1..=seeds {
        let run = std::panic::catch_unwind(|| {
            let mut run = Simulation::new(kind, seed);
            (0..200).for_each(|_| run.operate());
            run.finish();
            run.totals
        });
        match run {
            Ok(run) => {
                totals.hits += run.hits;
                totals.missed += run.missed;
                totals.refused += run.refused;
                totals.window_released += run.window_released;
                totals.copies += run.copies;
            }
            Err(cause) => {
                eprintln!("{kind}: seed {seed}");
                std::panic::resume_unwind(cause);
            }
        }
    }
    assert!(totals.refused > 10 && totals.window_released > 10, "{kind}: {totals:?}");
    totals
}

#[test]
fn cells_queries_read_the_rows_of_their_window() {
    run_seeds(CacheKind::Cells);
}

#[test]
fn paged_queries_read_the_rows_of_their_window() {
    let totals = run_seeds(CacheKind::Paged);
    assert!(totals.hits > 1000 && totals.missed > 100 && totals.copies > 100, "{totals:?}");
}

#[test]
fn radix_queries_read_the_rows_of_their_window() {
    let totals = run_seeds(CacheKind::Radix);
    assert!(totals.hits > 1000 && totals.missed > 100 && totals.copies > 100, "{totals:?}");
}
