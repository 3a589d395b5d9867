//! Model-based test of the block caches: random operations against a shadow model that knows what
//! every slot holds.
//!
//! A simulated device stores per slot a hash over everything visible when it was written. A read of
//! a slot written under any other history is therefore detected at once. A mirror replays the KV
//! events and must know exactly the prefixes that lookups hit. Operations are random,
//! refused ones included; the cache's own consistency check runs after each. `KVASIR_SEEDS=10000`
//! runs more seeds.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod mirror;
mod steps;
mod verbs;

use kvasir_kv::blocks::{BlockCache, BlockConfig, FreeOrder, Index};
use kvasir_kv::{
    BlockId, Cache, CacheError, ClaimRow, Inspect, Lookup, Paged, Plan, Position, Prefix, Radix, SeqId, Slot,
    StepId, Token,
};
use kvasir_testkit::{Random, env_number};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

struct Rng(Random);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0.below(u64::from(n.max(1))) as u32
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.0.pick(from))
    }
}

fn mix(a: u64, b: u64) -> u64 {
    (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

#[derive(Clone, Default)]
struct ModelSeq {
    /// Token and content hash of every owned position.
    rows: BTreeMap<Position, (Token, u64)>,
    nodes: Vec<Node>,
    proposed: Vec<i32>,
    salt: u64,
    family: u64,
    /// Rows, and draft nodes, of claims in flight.
    inflight: u32,
    nodes_inflight: u32,
}

#[derive(Clone, Copy)]
struct Node {
    parent: i32,
    depth: u32,
    token: Token,
    content: u64,
}

impl ModelSeq {
    fn next(&self) -> Position {
        self.rows.last_key_value().map_or(0, |(position, _)| position + 1)
    }
    /// Retired rows: claimed ones are the last.
    fn retired(&self) -> impl Iterator<Item = (Position, (Token, u64))> + '_ {
        let rows = self.rows.len() - self.inflight as usize;
        self.rows.iter().take(rows).map(|(&position, &row)| (position, row))
    }
    fn fold(&self) -> u64 {
        self.rows.values().fold(self.salt, |fold, &(_, content)| mix(fold, content))
    }
    fn push(&mut self, token: Token) {
        let content = mix(self.fold(), u64::from(token));
        self.rows.insert(self.next(), (token, content));
    }
    fn ancestors(&self, node: usize) -> Vec<usize> {
        let mut chain = vec![node];
        while let Ok(parent) = usize::try_from(self.nodes[chain[chain.len() - 1]].parent) {
            chain.push(parent);
        }
        chain.reverse();
        chain
    }
    fn push_node(&mut self, parent: i32, token: Token) {
        let above = usize::try_from(parent).map(|parent| self.ancestors(parent)).unwrap_or_default();
        let fold = above.iter().fold(self.fold(), |fold, &node| mix(fold, self.nodes[node].content));
        let depth = above.len() as u32;
        self.nodes.push(Node { parent, depth, token, content: mix(fold, u64::from(token)) });
    }
}

/// One query: position, token, and (position, content) of all it sees, itself last.
type Query = (Position, Token, Vec<(Position, u64)>);

/// What one batch row of a submitted step must do.
struct Expected {
    seq: SeqId,
    salt: u64,
    queries: Vec<Query>,
    redirected: u32,
}

struct InFlightStep {
    step: StepId,
    plan: Plan,
    expected: Vec<Expected>,
    named: HashSet<Slot>,
    /// (Sequence, block) pairs of ownership at submission.
    owned: HashSet<(SeqId, BlockId)>,
    tree: Vec<(SeqId, u32)>,
    plain: Vec<(SeqId, u32)>,
}

struct Simulation<I> {
    cache: BlockCache<I>,
    config: BlockConfig,
    rng: Rng,
    device: HashMap<Slot, u64>,
    seqs: BTreeMap<SeqId, ModelSeq>,
    closed: Vec<SeqId>,
    flights: VecDeque<InFlightStep>,
    step: u64,
    families: u64,
    hits: u32,
    looked_up: Option<(Vec<Token>, u64, Lookup)>,
    refused: u32,
    imported: u32,
    mirror: mirror::Mirror,
}

impl<I: Index> Simulation<I> {
    fn any(&mut self) -> Option<SeqId> {
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        self.rng.pick(&live)
    }

    fn prompt(&mut self) -> Vec<Token> {
        // Few stems and few tokens, so that prompts share prefixes of every length.
        let (stem, len) = (self.rng.below(3), 1 + self.rng.below(5 * self.config.block_size + 6));
        let cut = self.rng.below(len + 1);
        (0..len).map(|i| if i < cut { stem * 7 + i % 5 } else { self.rng.below(2) + 90 }).collect()
    }

    /// All observable state, to show that a refusal changed nothing.
    fn picture(&self) -> String {
        let ids = self.seqs.keys();
        let lens: Vec<_> = ids.map(|&id| (self.cache.len(id), self.cache.claimed_len(id))).collect();
        format!("{:?} {} {lens:?}", self.cache.usage(), self.cache.generation())
    }

    fn live(&mut self, verbs: u32) {
        for _ in 0..verbs {
            let verb = self.rng.below(100);
            match verb {
                0..12 => self.open(),
                12..18 => self.close(),
                18..50 => self.claim(),
                50..68 => self.retire(),
                68..80 => self.publish(),
                80..83 => self.rewind(),
                83..86 => self.remove(),
                86..89 => self.copy(),
                89..91 => self.fork(),
                91 => self.keep(),
                92 => self.import(),
                93..95 => self.propose(),
                95..98 => self.commit(),
                _ => {
                    let slots = self.rng.below(3 * self.config.block_size);
                    let before = self.cache.usage();
                    let evicted = self.cache.prefix().unwrap().evict(slots).unwrap();
                    assert_eq!(self.cache.usage().free, before.free + evicted);
                    assert!(evicted >= slots.min(before.evictable));
                }
            }
            if self.flights.len() > 3 {
                self.retire();
            }
            match self.rng.below(400) {
                0 => self.cache.forget(),
                1..40 => self.compare_mirror(),
                _ => {}
            }
            self.cache.check().unwrap_or_else(|error| panic!("after verb {verb}: {error}"));
            for (&seq, model) in &self.seqs {
                assert_eq!(self.cache.next_position(seq), Ok(model.next()));
                assert_eq!(self.cache.claimed_len(seq), Ok(model.rows.len() as u32));
                assert_eq!(self.cache.len(seq), Ok(model.rows.len() as u32 - model.inflight));
                assert_eq!(self.cache.tree().unwrap().unsettled(seq), Ok(model.nodes.len() as u32));
            }
        }
    }

    fn end(&mut self) {
        while !self.flights.is_empty() {
            self.retire();
        }
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        live.into_iter().for_each(|seq| self.cache.close(seq).unwrap());
        self.cache.check().unwrap();
        let usage = self.cache.usage();
        assert_eq!(
            (usage.free + usage.evictable, usage.held, usage.leased),
            (self.cache.shape().capacity, 0, 0)
        );
        self.compare_mirror();
        self.cache.prefix().unwrap().evict(u32::MAX).unwrap();
        assert_eq!(self.cache.usage().free, self.cache.shape().capacity);
        self.compare_mirror();
    }
}

fn lives<I: Index>(make: impl Fn(BlockConfig) -> Result<BlockCache<I>, CacheError>, name: &str) {
    let seeds = env_number("KVASIR_SEEDS", 150);
    let (mut hits, mut refused, mut removed, mut imported) = (0, 0, 0, 0);
    for seed in 1..=seeds {
        for block_size in [1, 2, 4, 16] {
            let mut rng = Rng(Random::new(seed));
            let blocks = [6, 12, 40, 200][rng.below(4) as usize] * if block_size == 1 { 4 } else { 1 };
            let config = BlockConfig {
                block_size,
                blocks,
                max_sequences: 12,
                sharing: rng.below(8) > 0,
                dummy: rng.below(3) == 0,
                free_order: [FreeOrder::Lowest, FreeOrder::Oldest][rng.below(2) as usize],
            };
            let mut simulation = Simulation {
                cache: make(config).unwrap(),
                config,
                rng,
                device: HashMap::new(),
                seqs: BTreeMap::new(),
                closed: Vec::new(),
                flights: VecDeque::new(),
                step: 0,
                families: 0,
                hits: 0,
                looked_up: None,
                refused: 0,
                imported: 0,
                mirror: mirror::Mirror::default(),
            };
            assert_eq!(simulation.cache.record_events().is_ok(), config.sharing);
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                simulation.live(200);
                simulation.end();
            }));
            if let Err(cause) = run {
                eprintln!("{name}: seed {seed}, {config:?}");
                std::panic::resume_unwind(cause);
            }
            hits += simulation.hits;
            refused += simulation.refused;
            removed += simulation.mirror.removed;
            imported += simulation.imported;
        }
    }
    assert!(hits > 100 && refused > 10, "{name}: {hits} tokens were hits, {refused} verbs refused");
    assert!(removed > 1000, "{name}: {removed} blocks were removed");
    assert!(imported > 1000, "{name}: {imported} rows were imported");
}

#[test]
fn paged_reads_only_what_was_written_for_it() {
    lives(Paged::new, "paged");
}

#[test]
fn radix_reads_only_what_was_written_for_it() {
    lives(Radix::new, "radix");
}
