//! A mock device with one tag per KV slot; a plan's attention mask becomes lists of visible tags.
//!
//! The plan is executed as a backend would: row moves first, then writes. What a query attends to
//! is read through the plan.

use kvasir_kv::{Cache, CacheError, ClaimRow, Mask, Plan, PlanRow, PoolId, SeqId, Slot, StepId};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Issues a unique tag for each written token, across all caches of a case.
#[derive(Default)]
pub(crate) struct Tags(u64);

impl Tags {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0 - 1
    }
}

/// Upper bound on query–key pairs listed in one answer.
const MOST_PAIRS: u64 = 1 << 23;

/// A cache and the tags in its slots.
pub(crate) struct Harness<C> {
    pub(super) cache: C,
    slots: HashMap<(PoolId, Slot), u64>,
    step: u64,
    plan: Plan,
}

impl<C: Cache> Harness<C> {
    pub(super) fn new(cache: C) -> Self {
        Self { cache, slots: HashMap::new(), step: 0, plan: Plan::default() }
    }

    /// Registers the tags of a frozen prefix pool.
    pub(super) fn add_pool(&mut self, pool: PoolId, tags: &[u64]) {
        self.slots.extend(tags.iter().zip(0..).map(|(&tag, slot)| ((pool, slot), tag)));
    }

    /// Runs one step from claim to retirement and returns the tags it wrote.
    pub(super) fn run(&mut self, rows: &[ClaimRow], tags: &mut Tags) -> Result<Vec<u64>, CacheError> {
        self.step += 1;
        let step = StepId(self.step);
        self.cache.claim(step, rows)?;
        self.cache.plan(step, &mut self.plan)?;
        self.cache.check_fresh(&self.plan)?;
        let own = |slot| (PoolId(0), slot);
        let moved: Vec<_> =
            self.plan.moves.iter().map(|m| (m.to, self.slots.get(&own(m.from)).copied())).collect();
        for (to, tag) in moved {
            match tag {
                Some(tag) => self.slots.insert(own(to), tag),
                None => self.slots.remove(&own(to)),
            };
        }
        let written: Vec<_> = self.plan.write_slots.iter().map(|&slot| (own(slot), tags.next())).collect();
        self.slots.extend(written.iter().copied());
        self.cache.retire(step)?;
        Ok(written.into_iter().map(|(_, tag)| tag).collect())
    }

    /// Runs one step with one row.
    pub(super) fn run_one(
        &mut self,
        seq: SeqId,
        tokens: u32,
        tags: &mut Tags,
    ) -> Result<Vec<u64>, CacheError> {
        self.run(&[ClaimRow::new(seq, tokens)], tags)
    }

    /// The answer to `can_extend`: whether `n` more tokens fit. Every cell case allocates by token.
    pub(super) fn can_extend(&self, n: i64) -> Map<String, Value> {
        let ok = u32::try_from(n).is_ok_and(|n| n <= self.cache.usage().available());
        Map::from_iter([("ok".to_owned(), json!(ok))])
    }

    /// The plan of the last step.
    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// `positions`, `visible` and, for a single row, `mask` of the last step.
    pub(super) fn answer(&self) -> Map<String, Value> {
        let rows = || self.plan.rows.iter();
        let pairs: u64 = rows().map(|row| u64::from(row.queries.len) * u64::from(row.read_len)).sum();
        let seen = || rows().flat_map(|row| (0..row.queries.len).map(move |q| self.visible(row, q)));
        let visible = match pairs {
            0..=MOST_PAIRS => json!(seen().collect::<Vec<_>>()),
            pairs => json!(format!("{pairs} pairs, at most {MOST_PAIRS} are listed")),
        };
        let mut answer = Map::new();
        answer.insert("positions".into(), json!(self.plan.positions));
        answer.insert("visible".into(), visible);
        if let [row] = &self.plan.rows[..] {
            answer.insert("mask".into(), json!(mask_name(row.mask)));
        }
        answer
    }

    fn visible(&self, row: &PlanRow, query: u32) -> Vec<Option<u64>> {
        let entries = self.plan.entries(row).zip(0..);
        let seen = entries.filter(|&(_, entry)| self.plan.sees(row, query, entry));
        seen.map(|((pool, slot, _), _)| self.slots.get(&(pool, slot)).copied()).collect()
    }
}

/// The recorded name of an attention mask.
pub(crate) fn mask_name(mask: Mask) -> &'static str {
    match mask {
        Mask::None => "none",
        Mask::Causal => "causal",
        Mask::Explicit { .. } => "explicit",
    }
}
