//! Steps in the shadow test: claim, submit, run on the simulated device, retire, and which slots a
//! plan may name.

use crate::*;

impl<I: Index> Simulation<I> {
    pub(super) fn claim(&mut self) {
        let live: Vec<SeqId> = self.seqs.keys().copied().collect();
        let mut rows = Vec::new();
        for seq in live {
            if self.rng.below(2) == 0 {
                continue;
            }
            let model = &self.seqs[&seq];
            let proposed = model.proposed.len() as u32;
            if proposed == 0 && !model.nodes.is_empty() {
                continue;
            }
            let most = if self.rng.below(3) == 0 { 2 * self.config.block_size + 2 } else { 2 };
            let tokens = if proposed > 0 { proposed } else { 1 + self.rng.below(most) };
            let tail =
                model.rows.keys().rev().zip(1..).take_while(|(p, i)| **p + i == model.next()).count() as u32;
            let redirects = self.config.dummy && proposed == 0 && tail > 0 && self.rng.below(3) == 0;
            let redirected = if redirects { 1 + self.rng.below(tail) } else { 0 };
            rows.push(ClaimRow { redirected, ..ClaimRow::new(seq, tokens) });
        }
        if rows.is_empty() {
            return;
        }
        self.step += 1;
        let step = StepId(self.step);
        let (before, generation) = (self.picture(), self.cache.generation());
        match self.cache.claim(step, &rows) {
            Ok(()) => {}
            Err(CacheError::Full { needed, available, .. }) => {
                assert!(needed > available);
                assert_eq!(self.picture(), before, "a refused claim changed something");
                self.refused += 1;
                return;
            }
            Err(error) => panic!("{error}"),
        }
        assert!(self.cache.generation() > generation);
        if self.rng.below(12) == 0 {
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

    pub(super) fn submit(&mut self, step: StepId, rows: &[ClaimRow]) {
        let mut plan = Plan::default();
        self.cache.plan(step, &mut plan).unwrap();
        self.cache.check_fresh(&plan).unwrap();
        let (mut expected, mut tree, mut plain) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let tokens: Vec<Token> = (0..row.tokens).map(|_| self.rng.below(3) + 90).collect();
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
        self.flights.push_back(InFlightStep { step, plan, expected, named, owned, tree, plain });
    }

    /// A fork counts as owner of what its source owned when the steps in flight were submitted.
    pub(super) fn inherit(&mut self, src: SeqId, dst: SeqId) {
        for flight in &mut self.flights {
            let blocks = flight.owned.iter().filter(|(seq, _)| *seq == src);
            let inherited: Vec<_> = blocks.map(|&(_, block)| (dst, block)).collect();
            flight.owned.extend(inherited);
        }
    }

    /// The slots that a plan's batch rows name. A written slot may be named by a step in flight
    /// only if the sequence owned its block when that step was submitted. Ownership inherited from
    /// such a sequence counts too. The sequence is then the only owner left, and steps run in
    /// order.
    pub(super) fn check_named(&self, plan: &Plan) -> HashSet<Slot> {
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

    /// Runs the oldest step on the simulated device and retires it.
    pub(super) fn retire(&mut self) {
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

    /// Shortens what the model expects the steps in flight to publish, after a truncation.
    pub(super) fn refresh(&mut self, seq: SeqId) {
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
}
