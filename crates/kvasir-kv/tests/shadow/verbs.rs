//! Sequence operations of the shadow test between steps: open, attach, publish, rewind, remove,
//! copy, fork, draft trees.

use crate::*;

impl<I: Index> Simulation<I> {
    pub(super) fn open(&mut self) {
        let Ok(seq) = self.cache.open() else { return };
        assert!(!self.closed.contains(&seq), "id issued twice");
        self.families += 1;
        let mut model = ModelSeq { family: self.families, ..ModelSeq::default() };
        if self.rng.below(4) > 0 {
            let (prompt, salt) = (self.prompt(), u64::from(self.rng.below(4) / 3));
            let limit = if self.rng.below(5) == 0 { self.rng.below(20) } else { u32::MAX };
            // Sometimes attaches a lookup made before other operations, possibly stale.
            if let Some((prompt, salt, lookup)) = self.looked_up.take().filter(|_| self.rng.below(2) == 0) {
                let hit = self.cache.prefix().unwrap().attach(seq, &prompt, salt, limit, lookup).unwrap();
                assert!(hit.tokens < prompt.len() as u32 && hit.tokens <= limit);
                model.salt = salt;
                prompt[..hit.tokens as usize].iter().for_each(|&token| model.push(token));
                self.seqs.insert(seq, model);
                return;
            }
            let before = self.cache.usage();
            let found = self.cache.prefix().unwrap().lookup(&prompt, salt);
            let after = self.cache.usage();
            // A split in a lookup may turn a part of a used node evictable.
            assert_eq!((after.free, after.leased), (before.free, before.leased));
            assert!(after.evictable >= before.evictable);
            let before = after;
            let hit = self.cache.prefix().unwrap().attach(seq, &prompt, salt, limit, found.lookup).unwrap();
            assert!(hit.tokens < prompt.len() as u32 && hit.tokens <= limit);
            if limit == u32::MAX {
                assert_eq!(hit, found);
                assert_eq!(before.evictable - self.cache.usage().evictable, hit.evictable[0]);
            }
            self.hits += hit.tokens;
            model.salt = salt;
            prompt[..hit.tokens as usize].iter().for_each(|&token| model.push(token));
        }
        self.seqs.insert(seq, model);
        if self.rng.below(2) == 0 {
            let (prompt, salt) = (self.prompt(), u64::from(self.rng.below(4) / 3));
            let found = self.cache.prefix().unwrap().lookup(&prompt, salt);
            self.looked_up = Some((prompt, salt, found.lookup));
        }
    }

    pub(super) fn close(&mut self) {
        let Some(seq) = self.any() else { return };
        self.cache.close(seq).unwrap();
        self.seqs.remove(&seq);
        self.closed.push(seq);
        assert_eq!(self.cache.len(seq), Err(CacheError::UnknownSequence(seq)));
    }

    pub(super) fn publish(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = &self.seqs[&seq];
        let tokens: Vec<Token> =
            (0..model.next()).map(|p| model.rows.get(&p).map_or(7, |row| row.0)).collect();
        let computed = if self.rng.below(3) == 0 { self.rng.below(model.next() + 9) } else { model.next() };
        self.cache.prefix().unwrap().publish(seq, &tokens, computed).unwrap();
    }

    /// Imports rows into any sequence, or into one with a prefix of its prompt that is then
    /// published and closed, as an engine does.
    pub(super) fn import(&mut self) {
        let opened = if self.rng.below(3) > 0 { self.cache.open().ok() } else { None };
        let prompt = self.prompt();
        let (seq, more) = match opened {
            Some(seq) => {
                self.families += 1;
                let mut model = ModelSeq { family: self.families, ..ModelSeq::default() };
                model.salt = u64::from(self.rng.below(4) / 3);
                let prefix = self.cache.prefix().unwrap();
                let hit = prefix.attach(seq, &prompt, model.salt, u32::MAX, Lookup::default()).unwrap();
                let (cached, more) = prompt.split_at(hit.tokens as usize);
                cached.iter().for_each(|&token| model.push(token));
                self.seqs.insert(seq, model);
                (seq, more.to_vec())
            }
            None => {
                let Some(seq) = self.any() else { return };
                (seq, prompt)
            }
        };
        let before = self.picture();
        let (from, block_size) = (self.seqs[&seq].next(), self.config.block_size);
        let upto = from + more.len() as u32;
        match self.cache.prefix().unwrap().import(seq, upto) {
            Ok(()) => {
                assert!(!more.is_empty() && from.is_multiple_of(block_size));
                let model = self.seqs.get_mut(&seq).unwrap();
                assert_eq!(model.inflight, 0);
                more.iter().for_each(|&token| model.push(token));
                let table = self.cache.table(seq).unwrap();
                for (position, (_, content)) in model.rows.range(from..) {
                    let slot = table[(position / block_size) as usize] * block_size + position % block_size;
                    let is_named = self.flights.iter().any(|flight| flight.named.contains(&slot));
                    assert!(!is_named, "slot {slot} is imported while a step in flight uses it");
                    self.device.insert(slot, *content);
                }
                self.imported += more.len() as u32;
            }
            Err(error) => {
                let model = &self.seqs[&seq];
                let is_justified = match error {
                    CacheError::Unsettled => !model.nodes.is_empty() || !model.proposed.is_empty(),
                    CacheError::InFlight => {
                        self.flights.iter().any(|flight| flight.expected.iter().any(|row| row.seq == seq))
                    }
                    CacheError::BadClaim => upto <= from || !from.is_multiple_of(block_size),
                    CacheError::Full { needed, available, .. } => {
                        self.refused += 1;
                        needed > available
                    }
                    _ => false,
                };
                assert!(is_justified, "{error}");
                assert_eq!(self.picture(), before, "a refused import changed something");
            }
        }
        if opened.is_some() && self.rng.below(4) > 0 {
            let tokens: Vec<Token> = self.seqs[&seq].rows.values().map(|row| row.0).collect();
            self.cache.prefix().unwrap().publish(seq, &tokens, tokens.len() as u32).unwrap();
            let whole = self.cache.prefix().unwrap().published(seq).unwrap();
            assert!(
                whole <= tokens.len() as u32
                    && (!self.config.sharing || whole + block_size > tokens.len() as u32)
            );
            self.cache.close(seq).unwrap();
            self.seqs.remove(&seq);
            self.closed.push(seq);
        }
    }

    pub(super) fn rewind(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = self.seqs[&seq].clone();
        let to = self.rng.below(model.next() + 2);
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

    pub(super) fn cut(&mut self, seq: SeqId, to: Position) {
        let model = self.seqs.get_mut(&seq).unwrap();
        model.rows.split_off(&to);
        // Claimed rows are the last ones; truncated ones will not be published.
        let len = self.cache.len(seq).unwrap();
        model.inflight = model.rows.len() as u32 - len;
        self.refresh(seq);
    }

    pub(super) fn remove(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = self.seqs[&seq].clone();
        let from = self.rng.below(model.next() + 1);
        let to = from + self.rng.below(2 * self.config.block_size + 3);
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

    pub(super) fn copy(&mut self) {
        let (Some(src), Some(dst)) = (self.any(), self.any()) else { return };
        let (source, target) = (self.seqs[&src].clone(), self.seqs[&dst].clone());
        let from = self.rng.below(source.next() + 1);
        let to = if self.rng.below(2) == 0 { u32::MAX } else { from + self.rng.below(12) };
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
                    CacheError::Full { needed, available, .. } => needed > available,
                    _ => false,
                };
                assert!(reason, "{error}");
                assert_eq!(self.picture(), before, "a refused copy changed something");
            }
        }
    }

    pub(super) fn fork(&mut self) {
        let Some(seq) = self.any() else { return };
        let n = self.rng.below(3);
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

    pub(super) fn keep(&mut self) {
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

    pub(super) fn propose(&mut self) {
        let Some(seq) = self.any() else { return };
        let first = self.seqs[&seq].nodes.len() as i32;
        let n = self.rng.below(6) as i32;
        let parents: Vec<i32> = (0..n).map(|i| self.rng.below((first + i + 1) as u32) as i32 - 1).collect();
        self.cache.tree().unwrap().propose(seq, &parents).unwrap();
        self.seqs.get_mut(&seq).unwrap().proposed = parents;
    }

    pub(super) fn commit(&mut self) {
        let Some(seq) = self.any() else { return };
        let model = self.seqs[&seq].clone();
        let mut chain = Vec::new();
        let mut parent = -1;
        while self.rng.below(4) > 0 {
            let children: Vec<usize> =
                (0..model.nodes.len()).filter(|&n| model.nodes[n].parent == parent).collect();
            let Some(node) = self.rng.pick(&children) else { break };
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
}
