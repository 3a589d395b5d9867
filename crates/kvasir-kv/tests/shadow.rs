//! Random lives on the block caches against a model that knows what every slot holds.
//!
//! A device is played: a slot remembers the fold of everything that was visible when it was written, so a read of a
//! slot that was written for any other history is seen at once. Every verb is drawn at random, refused ones too; the cache's
//! own walker runs after each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kvasir_kv::blocks::{BlockCache, BlockConfig, Index};
use kvasir_kv::{
    BlockId, Cache, CacheError, ClaimRow, Lookup, Paged, Plan, Position, Radix, SeqId, Slot, StepId, Token,
};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

struct Dice(u64);

impl Dice {
    fn roll(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as u32 % n.max(1)
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.roll(from.len() as u32) as usize])
    }
}

fn mix(a: u64, b: u64) -> u64 {
    (a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29)
}

#[derive(Clone, Default)]
struct ModelSeq {
    /// Token and content of every owned position.
    rows: BTreeMap<Position, (Token, u64)>,
    nodes: Vec<Node>,
    proposed: Vec<i32>,
    salt: u64,
    family: u64,
    /// Rows of claims in flight, and nodes.
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
    /// Rows whose step has retired: claimed ones are the last.
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

/// One query: its position, its token, and position and content of all that it sees, itself last.
type Query = (Position, Token, Vec<(Position, u64)>);

/// What one row of a submitted step must do.
struct Expected {
    seq: SeqId,
    salt: u64,
    queries: Vec<Query>,
    redirected: u32,
}

struct Flight {
    step: StepId,
    plan: Plan,
    expected: Vec<Expected>,
    named: HashSet<Slot>,
    /// Who owned which block when it was submitted.
    owned: HashSet<(SeqId, BlockId)>,
    tree: Vec<(SeqId, u32)>,
    plain: Vec<(SeqId, u32)>,
}

struct World<I> {
    cache: BlockCache<I>,
    config: BlockConfig,
    dice: Dice,
    device: HashMap<Slot, u64>,
    seqs: BTreeMap<SeqId, ModelSeq>,
    closed: Vec<SeqId>,
    flights: VecDeque<Flight>,
    step: u64,
    families: u64,
    hits: u32,
    looked_up: Option<(Vec<Token>, u64, Lookup)>,
    refused: u32,
}

impl<I: Index> World<I> {
    fn any(&mut self) -> Option<SeqId> {
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        self.dice.pick(&live)
    }

    fn prompt(&mut self) -> Vec<Token> {
        // Few stems and few tokens, so that prompts share prefixes of every length.
        let (stem, len) = (self.dice.roll(3), 1 + self.dice.roll(5 * self.config.block_size + 6));
        let cut = self.dice.roll(len + 1);
        (0..len).map(|i| if i < cut { stem * 7 + i % 5 } else { self.dice.roll(2) + 90 }).collect()
    }

    fn open(&mut self) {
        let Ok(seq) = self.cache.open() else { return };
        assert!(!self.closed.contains(&seq), "id issued twice");
        self.families += 1;
        let mut model = ModelSeq { family: self.families, ..ModelSeq::default() };
        if self.dice.roll(4) > 0 {
            let (prompt, salt) = (self.prompt(), u64::from(self.dice.roll(4) / 3));
            let limit = if self.dice.roll(5) == 0 { self.dice.roll(20) } else { u32::MAX };
            // Sometimes what was looked up before other verbs is attached only now.
            if let Some((prompt, salt, lookup)) = self.looked_up.take().filter(|_| self.dice.roll(2) == 0) {
                let hit = self.cache.prefix().unwrap().attach(seq, &prompt, salt, limit, lookup).unwrap();
                assert!(hit.tokens < prompt.len() as u32 && hit.tokens <= limit);
                model.salt = salt;
                prompt[..hit.tokens as usize].iter().for_each(|&token| model.push(token));
                self.seqs.insert(seq, model);
                return;
            }
            let before = self.cache.room();
            let found = self.cache.prefix().unwrap().lookup(&prompt, salt);
            let after = self.cache.room();
            // A split may show that a part of a prefix is idle that was counted with the part in use.
            assert_eq!((after.free, after.leased), (before.free, before.leased));
            assert!(after.evictable >= before.evictable);
            let before = after;
            let hit = self.cache.prefix().unwrap().attach(seq, &prompt, salt, limit, found.lookup).unwrap();
            assert!(hit.tokens < prompt.len() as u32 && hit.tokens <= limit);
            if limit == u32::MAX {
                assert_eq!(hit, found);
                assert_eq!(before.evictable - self.cache.room().evictable, hit.idle);
            }
            self.hits += hit.tokens;
            model.salt = salt;
            prompt[..hit.tokens as usize].iter().for_each(|&token| model.push(token));
        }
        self.seqs.insert(seq, model);
        if self.dice.roll(2) == 0 {
            let (prompt, salt) = (self.prompt(), u64::from(self.dice.roll(4) / 3));
            let found = self.cache.prefix().unwrap().lookup(&prompt, salt);
            self.looked_up = Some((prompt, salt, found.lookup));
        }
    }

    fn close(&mut self) {
        let Some(seq) = self.any() else { return };
        self.cache.close(seq).unwrap();
        self.seqs.remove(&seq);
        self.closed.push(seq);
        assert_eq!(self.cache.len(seq), Err(CacheError::UnknownSequence(seq)));
    }

    /// Everything that can be asked, to show that a refusal changed nothing.
    fn picture(&self) -> String {
        let ids = self.seqs.keys();
        let lens: Vec<_> = ids.map(|&id| (self.cache.len(id), self.cache.claimed_len(id))).collect();
        format!("{:?} {} {lens:?}", self.cache.room(), self.cache.generation())
    }

    fn claim(&mut self) {
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        let mut rows = Vec::new();
        for seq in live {
            if self.dice.roll(2) == 0 {
                continue;
            }
            let model = &self.seqs[&seq];
            let proposed = model.proposed.len() as u32;
            if proposed == 0 && !model.nodes.is_empty() {
                continue;
            }
            let most = if self.dice.roll(3) == 0 { 2 * self.config.block_size + 2 } else { 2 };
            let tokens = if proposed > 0 { proposed } else { 1 + self.dice.roll(most) };
            let tail =
                model.rows.keys().rev().zip(1..).take_while(|(p, i)| **p + i == model.next()).count() as u32;
            let redirects = self.config.dummy && proposed == 0 && tail > 0 && self.dice.roll(3) == 0;
            let redirected = if redirects { 1 + self.dice.roll(tail) } else { 0 };
            rows.push(ClaimRow { seq, redirected, tokens });
        }
        if rows.is_empty() {
            return;
        }
        self.step += 1;
        let step = StepId(self.step);
        let (before, generation) = (self.picture(), self.cache.generation());
        match self.cache.claim(step, &rows) {
            Ok(()) => {}
            Err(CacheError::Full { needed, available }) => {
                assert!(needed > available);
                assert_eq!(self.picture(), before, "a refused claim changed something");
                self.refused += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(self.cache.generation() > generation);
        if self.dice.roll(12) == 0 {
            let mut plan = Plan::default();
            self.cache.plan(step, &mut plan).unwrap();
            self.cache.cancel(step).unwrap();
            assert!(self.cache.check_fresh(&plan).is_err());
            let strip = |picture: &str| picture.split_once(" }").map(|(_, rest)| rest.to_owned());
            let lens = |picture: String| strip(&picture).unwrap().split_once(" [").unwrap().1.to_owned();
            assert_eq!(lens(self.picture()), lens(before));
            return;
        }
        self.submit(step, &rows);
    }

    fn submit(&mut self, step: StepId, rows: &[ClaimRow]) {
        let mut plan = Plan::default();
        self.cache.plan(step, &mut plan).unwrap();
        self.cache.check_fresh(&plan).unwrap();
        let (mut expected, mut tree, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let tokens: Vec<Token> = (0..row.tokens).map(|_| self.dice.roll(3) + 90).collect();
            let model = self.seqs.get_mut(&row.seq).unwrap();
            let mut queries = Vec::new();
            let prefix = |model: &ModelSeq, end: Position| -> Vec<(Position, u64)> {
                model.rows.range(..end).map(|(&position, &(_, content))| (position, content)).collect()
            };
            if model.proposed.is_empty() {
                let first = model.next() - row.redirected;
                tokens.iter().for_each(|&token| model.push(token));
                for (&position, &(token, _)) in model.rows.range(first..) {
                    queries.push((position, token, prefix(model, position + 1)));
                }
                model.inflight += row.tokens;
                plain.push((row.seq, row.tokens));
            } else {
                let base = model.next();
                for (parent, &token) in std::mem::take(&mut model.proposed).into_iter().zip(&tokens) {
                    model.push_node(parent, token);
                    let node = model.nodes.len() - 1;
                    let mut seen = prefix(model, base);
                    let chain = model.ancestors(node);
                    seen.extend(chain.iter().map(|&n| (base + model.nodes[n].depth, model.nodes[n].content)));
                    queries.push((base + model.nodes[node].depth, token, seen));
                }
                model.nodes_inflight += row.tokens;
                tree.push((row.seq, row.tokens));
            }
            let salt = self.seqs[&row.seq].salt;
            expected.push(Expected { seq: row.seq, salt, queries, redirected: row.redirected });
        }
        let named = self.check_named(&plan);
        let tables = self.seqs.keys().map(|&seq| (seq, self.cache.table(seq).unwrap()));
        let owned = tables
            .flat_map(|(seq, table)| table.into_owned().into_iter().map(move |block| (seq, block)))
            .collect();
        self.flights.push_back(Flight { step, plan, expected, named, owned, tree, plain });
    }

    /// Who forks off a sequence owns what it owned when the steps in flight were submitted.
    fn inherit(&mut self, src: SeqId, dst: SeqId) {
        for flight in &mut self.flights {
            let blocks = flight.owned.iter().filter(|(seq, _)| *seq == src);
            let inherited: Vec<_> = blocks.map(|&(_, block)| (dst, block)).collect();
            flight.owned.extend(inherited);
        }
    }

    /// The slots that a plan's rows name. Those that it writes are named by no step in flight, unless the sequence
    /// owned their blocks already when that step was submitted, or has them from one that did: it is the only one left
    /// then, and steps run in order.
    fn check_named(&self, plan: &Plan) -> HashSet<Slot> {
        let block = self.config.block_size;
        let dummy = |slot: Slot| self.config.dummy && slot < block;
        let mut named = HashSet::new();
        for row in &plan.rows {
            let writes = &plan.write_slots[row.queries.range()];
            for (i, &slot) in writes.iter().enumerate() {
                assert_eq!(dummy(slot), (i as u32) < row.redirected);
                if dummy(slot) {
                    continue;
                }
                assert!(named.insert(slot), "two queries write slot {slot}");
                for flight in &self.flights {
                    let own = flight.owned.contains(&(row.seq, slot / block));
                    assert!(own || !flight.named.contains(&slot), "slot {slot} is named by a step in flight");
                }
            }
        }
        for row in &plan.rows {
            let mut last = None;
            for (_, slot, position) in plan.entries(row) {
                assert!(slot < plan.read_bound && !dummy(slot));
                assert!(last.is_none_or(|last| last <= position), "positions fall");
                last = Some(position);
                named.insert(slot);
            }
        }
        assert!(plan.write_slots.iter().all(|&slot| slot < plan.read_bound));
        named
    }

    /// The device runs the oldest step, and it retires.
    fn retire(&mut self) {
        let Some(flight) = self.flights.pop_front() else { return };
        let plan = &flight.plan;
        let read: Vec<_> = plan.moves.iter().map(|rows| self.device.get(&rows.from).copied()).collect();
        for (rows, content) in plan.moves.iter().zip(read) {
            self.device.insert(rows.to, content.expect("a row is moved that was never written"));
        }
        for (row, expected) in plan.rows.iter().zip(&flight.expected) {
            assert_eq!(row.seq, expected.seq);
            assert_eq!(row.redirected, expected.redirected);
            let entries: Vec<_> = plan.entries(row).collect();
            for (query, (position, token, seen)) in expected.queries.iter().enumerate() {
                assert_eq!(plan.positions[row.queries.start as usize + query], *position);
                let visible: Vec<_> = (0..row.read_len)
                    .filter(|&entry| plan.sees(row, query as u32, entry))
                    .map(|entry| (entries[entry as usize].1, entries[entry as usize].2))
                    .collect();
                let positions: Vec<_> = visible.iter().map(|&(_, position)| position).collect();
                assert_eq!(positions, seen.iter().map(|&(position, _)| position).collect::<Vec<_>>());
                let (own, before) = visible.split_last().unwrap();
                for ((slot, position), (_, content)) in before.iter().zip(seen) {
                    let held = self.device.get(slot);
                    assert_eq!(held, Some(content), "slot {slot}, position {position} of {:?}", row.seq);
                }
                let fold = before.iter().fold(expected.salt, |fold, (slot, _)| mix(fold, self.device[slot]));
                let content = mix(fold, u64::from(*token));
                if query as u32 >= row.redirected {
                    assert_eq!(content, seen[seen.len() - 1].1);
                    assert_eq!(plan.write_slots[row.queries.start as usize + query], own.0);
                    self.device.insert(own.0, content);
                }
            }
        }
        let generation = self.cache.generation();
        self.cache.retire(flight.step).unwrap();
        self.cache.retire(flight.step).unwrap();
        assert_eq!(self.cache.generation(), generation, "retire makes no plan stale");
        for (seq, tokens) in flight.plain {
            if let Some(model) = self.seqs.get_mut(&seq) {
                model.inflight = model.inflight.saturating_sub(tokens);
            }
        }
        for (seq, tokens) in flight.tree {
            if let Some(model) = self.seqs.get_mut(&seq) {
                model.nodes_inflight -= tokens;
            }
        }
    }

    fn publish(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = &self.seqs[&seq];
        let tokens: Vec<Token> =
            (0..model.next()).map(|p| model.rows.get(&p).map_or(7, |row| row.0)).collect();
        let computed = if self.dice.roll(3) == 0 { self.dice.roll(model.next() + 9) } else { model.next() };
        self.cache.prefix().unwrap().publish(seq, &tokens, computed).unwrap();
    }

    fn rewind(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = self.seqs[&seq].clone();
        let to = self.dice.roll(model.next() + 2);
        let result = self.cache.rewind().unwrap().rewind_to(seq, to);
        if !model.nodes.is_empty() || !model.proposed.is_empty() {
            assert_eq!(result, Err(CacheError::Unsettled));
        } else if to > model.next() {
            let length = model.next();
            assert_eq!(result, Err(CacheError::RewindOutOfRange { to, lowest: 0, length }));
        } else {
            result.unwrap();
            self.cut(seq, to);
        }
    }

    fn cut(&mut self, seq: SeqId, to: Position) {
        let model = self.seqs.get_mut(&seq).unwrap();
        model.rows.split_off(&to);
        // Claimed rows are the last ones; what is cut of them will not be published.
        let len = self.cache.len(seq).unwrap();
        model.inflight = model.rows.len() as u32 - len;
        self.refresh(seq);
    }

    /// What a sequence's steps in flight still publish is what the cache says.
    fn refresh(&mut self, seq: SeqId) {
        let mut rest = self.seqs[&seq].inflight;
        for flight in &mut self.flights {
            for (id, tokens) in &mut flight.plain {
                if *id == seq {
                    *tokens = (*tokens).min(rest);
                    rest -= *tokens;
                }
            }
        }
    }

    fn remove(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = self.seqs[&seq].clone();
        let from = self.dice.roll(model.next() + 1);
        let to = from + self.dice.roll(2 * self.config.block_size + 3);
        let before = self.picture();
        match self.cache.sequences().unwrap().remove(seq, from..to) {
            Ok(()) if to >= model.next() => self.cut(seq, from),
            Ok(()) => {
                let model = self.seqs.get_mut(&seq).unwrap();
                model.rows.retain(|position, _| !(from..to).contains(position));
            }
            Err(CacheError::Unsettled) => assert!(!model.nodes.is_empty() || !model.proposed.is_empty()),
            Err(CacheError::InFlight) => {
                assert!(model.inflight > 0);
                assert_eq!(self.picture(), before);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn copy(&mut self) {
        let (Some(src), Some(dst)) = (self.any(), self.any()) else { return };
        let (source, target) = (self.seqs[&src].clone(), self.seqs[&dst].clone());
        let from = self.dice.roll(source.next() + 1);
        let to = if self.dice.roll(2) == 0 { u32::MAX } else { from + self.dice.roll(12) };
        let before = self.picture();
        let rows: Vec<_> = source.retired().filter(|(p, _)| (from..to).contains(p)).collect();
        match self.cache.sequences().unwrap().copy(src, dst, from..to) {
            Ok(()) if rows.is_empty() => {
                assert!(source.retired().next().is_some());
                assert_eq!(self.picture(), before, "a copy of nothing changed something");
            }
            Ok(()) => {
                assert!(rows.iter().all(|(p, _)| !target.rows.contains_key(p)));
                let empty = target.rows.is_empty();
                self.inherit(src, dst);
                let target = self.seqs.get_mut(&dst).unwrap();
                target.rows.extend(rows);
                if empty {
                    (target.salt, target.family) = (source.salt, source.family);
                }
            }
            Err(error) => {
                let reason = match error {
                    CacheError::NothingToCopy => source.retired().next().is_none(),
                    CacheError::CopyOverlaps => rows.iter().any(|(p, _)| target.rows.contains_key(p)),
                    CacheError::NotInFamily => source.family != target.family,
                    CacheError::Unsettled => {
                        [&source, &target].iter().any(|seq| !seq.nodes.is_empty() || !seq.proposed.is_empty())
                    }
                    CacheError::InFlight => true,
                    CacheError::Full { needed, available } => needed > available,
                    _ => false,
                };
                assert!(reason, "{error}");
                assert_eq!(self.picture(), before, "a refused copy changed something");
            }
        }
    }

    fn fork(&mut self) {
        let Some(seq) = self.any() else { return };
        let n = self.dice.roll(3);
        match self.cache.sequences().unwrap().fork(seq, n) {
            Ok(forks) => {
                assert_eq!(forks.len(), n as usize);
                let mut model = self.seqs[&seq].clone();
                model.rows = model.retired().collect();
                (model.inflight, model.nodes_inflight) = (0, 0);
                model.nodes.clear();
                model.proposed.clear();
                for fork in forks {
                    self.inherit(seq, fork);
                    self.seqs.insert(fork, model.clone());
                }
            }
            Err(CacheError::Full { .. }) => self.refused += 1,
            Err(CacheError::TooManySequences) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn keep(&mut self) {
        let Some(seq) = self.any() else { return };
        self.cache.sequences().unwrap().keep(seq).unwrap();
        let family = self.seqs[&seq].family;
        let others: Vec<_> =
            self.seqs.keys().copied().filter(|id| *id != seq && self.seqs[id].family == family).collect();
        for id in others {
            self.seqs.remove(&id);
            self.closed.push(id);
        }
    }

    fn propose(&mut self) {
        let Some(seq) = self.any() else { return };
        let first = self.seqs[&seq].nodes.len() as i32;
        let n = self.dice.roll(6) as i32;
        let parents: Vec<i32> = (0..n).map(|i| self.dice.roll((first + i + 1) as u32) as i32 - 1).collect();
        self.cache.tree().unwrap().propose(seq, &parents).unwrap();
        self.seqs.get_mut(&seq).unwrap().proposed = parents;
    }

    fn commit(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = self.seqs[&seq].clone();
        let mut chain = Vec::new();
        let mut parent = -1;
        while self.dice.roll(4) > 0 {
            let children: Vec<usize> =
                (0..model.nodes.len()).filter(|&n| model.nodes[n].parent == parent).collect();
            let Some(node) = self.dice.pick(&children) else { break };
            chain.push(node as u32);
            parent = node as i32;
        }
        match self.cache.tree().unwrap().commit(seq, &chain) {
            Ok(_) => {
                assert_eq!(model.nodes_inflight, 0);
                let target = self.seqs.get_mut(&seq).unwrap();
                chain.iter().for_each(|&node| target.push(model.nodes[node as usize].token));
                target.nodes.clear();
                target.proposed.clear();
            }
            Err(CacheError::InFlight) => assert!(model.nodes_inflight > 0),
            Err(error) => panic!("{error}"),
        }
    }

    fn live(&mut self, verbs: u32) {
        for _ in 0..verbs {
            let verb = self.dice.roll(100);
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
                92..95 => self.propose(),
                95..98 => self.commit(),
                _ => {
                    let slots = self.dice.roll(3 * self.config.block_size);
                    let before = self.cache.room();
                    let evicted = self.cache.prefix().unwrap().evict(slots).unwrap();
                    assert_eq!(self.cache.room().free, before.free + evicted);
                    assert!(evicted >= slots.min(before.evictable));
                }
            }
            if self.flights.len() > 3 {
                self.retire();
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
        let room = self.cache.room();
        assert_eq!((room.free + room.evictable, room.held, room.leased), (self.cache.capacity(), 0, 0));
        self.cache.prefix().unwrap().evict(u32::MAX).unwrap();
        assert_eq!(self.cache.room().free, self.cache.capacity());
        self.cache.clear().unwrap();
        self.cache.check().unwrap();
    }
}

fn lives<I: Index>(make: impl Fn(BlockConfig) -> Result<BlockCache<I>, CacheError>, name: &str) {
    let seeds: u64 = std::env::var("KVASIR_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(150);
    let (mut hits, mut refused) = (0, 0);
    for seed in 1..=seeds {
        for block_size in [1, 2, 4, 16] {
            let mut dice = Dice(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
            let blocks = [6, 12, 40, 200][dice.roll(4) as usize] * if block_size == 1 { 4 } else { 1 };
            let config = BlockConfig {
                block_size,
                blocks,
                max_sequences: 12,
                sharing: dice.roll(8) > 0,
                dummy: dice.roll(3) == 0,
            };
            let mut world = World {
                cache: make(config).unwrap(),
                config,
                dice,
                device: HashMap::new(),
                seqs: BTreeMap::new(),
                closed: Vec::new(),
                flights: VecDeque::new(),
                step: 0,
                families: 0,
                hits: 0,
                looked_up: None,
                refused: 0,
            };
            let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                world.live(200);
                world.end();
            }));
            if let Err(cause) = run {
                eprintln!("{name}: seed {seed}, {config:?}");
                std::panic::resume_unwind(cause);
            }
            hits += world.hits;
            refused += world.refused;
        }
    }
    assert!(hits > 100 && refused > 10, "{name}: {hits} tokens were hits, {refused} verbs refused");
}

#[test]
fn paged_reads_only_what_was_written_for_it() {
    lives(Paged::new, "paged");
}

#[test]
fn radix_reads_only_what_was_written_for_it() {
    lives(Radix::new, "radix");
}
