//! [`KeyPools`]: the cache entries that the rows of a plan read, in pools of consecutive positions.
//!
//! Pool `i` has the positions `i * size .. (i + 1) * size`. It is complete for a query that sees
//! all of them. Positions may have gaps, so that pools after an incomplete one can be complete.
//!
//! The queries of a row share its pools, so that each key is computed once per step. Without an
//! explicit mask or a window, a query sees a prefix of the row's pools. Otherwise each query lists
//! its pools. It shares them with the previous query, except between branches of a draft tree.

use kvasir_kv::{Mask, Plan, PlanRow, PoolId, Position, Slot};
use std::ops::Range;

/// A pool that is complete for some query of a plan row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletePool {
    /// Index of the plan row.
    pub(crate) row: u32,
    /// Position of its first entry, divided by the size.
    pub(crate) number: u32,
    /// Index of the complete pool with the preceding number, if there is one.
    pub(crate) previous: Option<u32>,
}

/// The pools and entries that one query sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryPools {
    /// The first complete pools, as far as their indices are consecutive.
    pub(crate) leading: Range<u32>,
    /// The complete pools after them, in order of position.
    pub(crate) others: Vec<u32>,
    /// Visible entries that are in no complete pool, by number within the row's read.
    pub(crate) rest: Vec<u32>,
}

/// The key pools of a step.
#[derive(Debug, Default)]
pub(crate) struct KeyPools {
    size: usize,
    window: Option<u32>,
    pools: Vec<CompletePool>,
    /// Entries of each pool by number within the row's read, `size` per pool.
    entries: Vec<u32>,
    /// The cache entries that each row reads, in order of position.
    reads: Vec<Vec<(PoolId, Slot, Position)>>,
    /// What each token of the step sees.
    queries: Vec<QueryPools>,
}

impl QueryPools {
    /// The complete pools, in order of position.
    pub(crate) fn pools(&self) -> impl Iterator<Item = u32> + '_ {
        self.leading.clone().chain(self.others.iter().copied())
    }
}

impl KeyPools {
    /// The pools of a plan. Queries see only positions within `window`, if it is set.
    pub(crate) fn new(plan: &Plan, size: usize, window: Option<u32>) -> Self {
        let tokens = plan.positions.len();
        let mut pools = Self { size: size.max(1), window, ..Self::default() };
        pools.queries.resize(tokens, QueryPools::default());
        for row in &plan.rows {
            let read: Vec<_> = plan.entries(row).collect();
            match row.mask {
                Mask::None | Mask::Causal if window.is_none() => pools.push_causal(row, &read),
                _ => pools.push_masked(plan, row, &read, window),
            }
            pools.reads.push(read);
        }
        pools
    }

    /// Whether the pools have this size and sliding window.
    pub(crate) fn matches(&self, size: usize, window: Option<u32>) -> bool {
        (self.size, self.window) == (size.max(1), window)
    }

    /// Number of pools.
    pub(crate) fn len(&self) -> usize {
        self.pools.len()
    }

    /// A pool, by index.
    pub(crate) fn pool(&self, pool: u32) -> CompletePool {
        self.pools[pool as usize]
    }

    /// The first position of a pool.
    pub(crate) fn position(&self, pool: u32) -> Position {
        self.pool(pool).number * self.size as u32
    }

    /// Entries of a pool, by number within the row's read.
    pub(crate) fn entries(&self, pool: u32) -> &[u32] {
        &self.entries[pool as usize * self.size..][..self.size]
    }

    /// Pool id and slot of each entry of a pool.
    pub(crate) fn slots(&self, pool: u32) -> impl Iterator<Item = (PoolId, Slot)> + '_ {
        let read = &self.reads[self.pool(pool).row as usize];
        self.entries(pool).iter().map(|entry| read[*entry as usize]).map(|(pool, slot, _)| (pool, slot))
    }

    /// The cache entries that a row reads: pool, slot and position.
    pub(crate) fn read(&self, row: usize) -> &[(PoolId, Slot, Position)] {
        &self.reads[row]
    }

    /// The pools and entries that a token of the step sees.
    pub(crate) fn query(&self, token: usize) -> &QueryPools {
        &self.queries[token]
    }

    /// Adds a row whose queries see prefixes of its read.
    fn push_causal(&mut self, row: &PlanRow, read: &[(PoolId, Slot, Position)]) {
        let all: Vec<u32> = (0..read.len() as u32).collect();
        let (complete, rest) = split(self.size, read, &all);
        let first = self.pools.len() as u32;
        for (at, entries) in (first..).zip(&complete) {
            let before = at.checked_sub(1).filter(|before| *before >= first);
            self.push_pool(read, entries, before);
        }
        for (query, token) in row.queries.range().enumerate() {
            let hidden = if row.mask == Mask::Causal { row.queries.len - 1 - query as u32 } else { 0 };
            let visible = (read.len() as u32).saturating_sub(hidden);
            let count = complete.partition_point(|entries| entries[self.size - 1] < visible);
            let partial = complete.get(count).copied().unwrap_or_default();
            let mut rest: Vec<u32> =
                rest.iter().chain(partial).copied().filter(|entry| *entry < visible).collect();
            rest.sort_unstable();
            self.queries[token] =
                QueryPools { leading: first..first + count as u32, others: Vec::new(), rest };
        }
    }

    /// Adds a row with an explicit mask or a sliding window.
    fn push_masked(
        &mut self,
        plan: &Plan,
        row: &PlanRow,
        read: &[(PoolId, Slot, Position)],
        window: Option<u32>,
    ) {
        // The pools that the previous query sees.
        let mut known: Vec<u32> = Vec::new();
        for (query, token) in row.queries.range().enumerate() {
            let position = plan.positions[token];
            let is_visible = |entry: &u32| {
                let at = read[*entry as usize].2;
                let in_window = window.is_none_or(|window| at <= position && position - at < window);
                in_window && plan.sees(row, query as u32, *entry)
            };
            let visible: Vec<u32> = (0..read.len() as u32).filter(is_visible).collect();
            let (complete, rest) = split(self.size, read, &visible);
            let mut seen: Vec<u32> = Vec::with_capacity(complete.len());
            let mut next_known = known.iter().copied().peekable();
            for entries in &complete {
                let before = seen.last().copied();
                let number = read[entries[0] as usize].2 / self.size as u32;
                let previous = before.filter(|before| self.pool(*before).number + 1 == number);
                let is_known =
                    |pool: &u32| self.entries(*pool) == *entries && self.pool(*pool).previous == previous;
                while next_known.next_if(|pool| self.pool(*pool).number < number).is_some() {}
                match next_known.peek().copied().filter(is_known) {
                    Some(pool) => seen.push(pool),
                    None => {
                        self.push_pool(read, entries, before);
                        seen.push(self.pools.len() as u32 - 1);
                    }
                }
            }
            let first = seen.first().copied().unwrap_or_default();
            let count = (first..).zip(&seen).take_while(|(expected, pool)| expected == *pool).count();
            let others = seen[count..].to_vec();
            self.queries[token] = QueryPools { leading: first..first + count as u32, others, rest };
            known = seen;
        }
    }

    /// Adds a pool of the row that is being added; `before` is the complete pool before it.
    fn push_pool(&mut self, read: &[(PoolId, Slot, Position)], entries: &[u32], before: Option<u32>) {
        let number = read[entries[0] as usize].2 / self.size as u32;
        let previous = before.filter(|before| self.pool(*before).number + 1 == number);
        self.pools.push(CompletePool { row: self.reads.len() as u32, number, previous });
        self.entries.extend_from_slice(entries);
    }
}

/// Splits entries, in order of position, into complete pools and the other entries.
fn split<'a>(
    size: usize,
    read: &[(PoolId, Slot, Position)],
    visible: &'a [u32],
) -> (Vec<&'a [u32]>, Vec<u32>) {
    let number = |entry: u32| read[entry as usize].2 as usize / size;
    let (mut complete, mut rest) = (Vec::new(), Vec::new());
    for entries in visible.chunk_by(|a, b| number(*a) == number(*b)) {
        if entries.len() == size { complete.push(entries) } else { rest.extend_from_slice(entries) }
    }
    (complete, rest)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use kvasir_kv::{CacheConfig, CacheKind, Lowering, StepId, build};
    use kvasir_testkit::Random;
    use kvasir_testkit::steps::{RowInput, row_input, step};

    /// Complete pools and other entries of a query, by definition.
    fn expected_pools(visible: &[(u32, Position)], size: u32) -> (Vec<Vec<u32>>, Vec<u32>) {
        let number = |entry: &(u32, Position)| entry.1 / size;
        let groups = visible.chunk_by(|a, b| number(a) == number(b));
        let groups: Vec<Vec<u32>> = groups.map(|all| all.iter().map(|entry| entry.0).collect()).collect();
        let (complete, rest): (Vec<_>, Vec<_>) =
            groups.into_iter().partition(|entries| entries.len() == size as usize);
        (complete, rest.concat())
    }

    fn check(plan: &Plan, size: u32, window: Option<u32>) -> KeyPools {
        let pools = KeyPools::new(plan, size as usize, window);
        for (index, row) in plan.rows.iter().enumerate() {
            let read: Vec<_> = plan.entries(row).collect();
            assert_eq!(pools.read(index), read);
            for (query, token) in row.queries.range().enumerate() {
                let in_window = |at: u32| window.is_none_or(|w| at + w > plan.positions[token]);
                let visible: Vec<(u32, Position)> = (0..read.len() as u32)
                    .map(|entry| (entry, read[entry as usize].2))
                    .filter(|(entry, at)| plan.sees(row, query as u32, *entry) && in_window(*at))
                    .collect();
                let (complete, rest) = expected_pools(&visible, size);
                let seen = pools.query(token);
                let found: Vec<Vec<u32>> = seen.pools().map(|pool| pools.entries(pool).to_vec()).collect();
                assert_eq!((&found, &seen.rest), (&complete, &rest), "token {token}, size {size}");
                let numbers: Vec<u32> = seen.pools().map(|pool| pools.pool(pool).number).collect();
                for (at, pool) in seen.pools().enumerate() {
                    assert_eq!(pools.position(pool), read[complete[at][0] as usize].2);
                    assert_eq!(pools.pool(pool).row as usize, index);
                    let previous = at.checked_sub(1).filter(|before| numbers[*before] + 1 == numbers[at]);
                    let expected = previous.map(|before| seen.pools().nth(before).unwrap());
                    assert_eq!(pools.pool(pool).previous, expected);
                }
            }
        }
        pools
    }

    #[test]
    fn pools_match_their_definition_under_every_mask() {
        for seed in 0..40 {
            let random = &mut Random::new(seed);
            let config = CacheConfig { block_size: 4, ..CacheConfig::new(512) };
            let kind = random.pick(&[CacheKind::Cells, CacheKind::Paged, CacheKind::Radix]);
            let mut cache = build(kind, &config).unwrap();
            let seqs = [cache.open().unwrap(), cache.open().unwrap()];
            for id in 1..6 {
                let inputs: Vec<RowInput> = seqs
                    .iter()
                    .map(|seq| {
                        let tokens = vec![7; random.between(1, 30) as usize];
                        let drafts = random.between(0, tokens.len() as u32 - 1).min(4);
                        RowInput { drafts, ..row_input(*seq, &tokens) }
                    })
                    .collect();
                let step = step(&mut *cache, id, &inputs);
                let (size, window) = (random.between(1, 9), random.pick(&[None, Some(3), Some(40)]));
                let pools = check(&step.plan, size, window);
                let mut explicit = Plan::default();
                Lowering::default().lower(&step.plan, &mut explicit);
                let masked = check(&explicit, size, window);
                assert_eq!(pools.len(), masked.len(), "pools are shared under every mask");
                cache.retire(StepId(id)).unwrap();
                if random.chance(50) {
                    let seq = random.pick(&seqs);
                    let length = cache.len(seq).unwrap();
                    let from = random.between(0, length - 1);
                    let range = from..random.between(from, length - 1);
                    cache.sequences().unwrap().remove(seq, range).unwrap();
                }
            }
        }
    }
}
