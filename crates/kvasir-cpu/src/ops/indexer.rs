//! The indexer of sparse attention: scores all visible cache entries, or key pools of consecutive
//! entries, and selects the top-k for each query.
//!
//! 1. Compute the key of each pool once, in parallel; without key pools, each entry is a pool.
//! 2. Score the pools that each query sees: `score = sum over heads of weight * max(q . k, 0)`.
//! 3. Select the best pools of each query, and all entries that are in no complete pool.
//!
//! The order of summation is fixed, so the selection does not depend on the batch. Key pools begin
//! at positions that are multiples of their size, so it does not depend on the slots either.

use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::ops::pooled_key::KeySource;
use crate::rowwise::dot;
use crate::threads::pool::ThreadPool;
use crate::threads::rows::DisjointRows;
use std::ops::Range;
use std::sync::Mutex;

/// Operands of the selection in one layer.
pub(crate) struct Indexer<'a> {
    pub(crate) keys: KeySource<'a>,
    /// Queries of all heads: `q_width` numbers per token.
    pub(crate) q: &'a [f32],
    pub(crate) q_width: usize,
    /// Weights of the heads, `heads` numbers per token; `None` if all are 1.
    pub(crate) weights: Option<&'a [f32]>,
    pub(crate) heads: usize,
    /// Number of pools to select.
    pub(crate) top_k: usize,
}

/// Tokens whose scores are in memory at a time.
const TOKENS_AT_ONCE: usize = 64;
/// Keys that a work item scores for one token.
const KEYS_PER_ITEM: usize = 512;

/// The queries of one token, and the weights of its heads.
#[derive(Clone, Copy)]
pub(crate) struct TokenQuery<'a> {
    q: &'a [f32],
    weights: Option<&'a [f32]>,
}

/// Keys of `width` elements, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    elements: &'a [f32],
    width: usize,
}

impl Keys<'_> {
    fn range(&self, keys: &Range<usize>) -> Self {
        Self { elements: &self.elements[keys.start * self.width..keys.end * self.width], ..*self }
    }
}

#[inline(always)]
fn score_keys_body(query: TokenQuery<'_>, keys: Keys<'_>, scores: &mut [f32]) {
    for (score, key) in scores.iter_mut().zip(keys.elements.chunks_exact(keys.width)) {
        *score = 0.0;
        for (head, q) in query.q.chunks_exact(keys.width).enumerate() {
            let weight = query.weights.map_or(1.0, |weights| weights[head]);
            *score = weight.mul_add(dot(q, key).max(0.0), *score);
        }
    }
}

per_isa! {
    /// The scores of consecutive keys.
    score_keys(query: TokenQuery<'_>, keys: Keys<'_>, scores: &mut [f32]) => score_keys_body
}

/// The selected entries of each token, in ascending order, by number within the row's read. The
/// earlier pool wins ties. `keys` is scratch memory.
///
/// # Safety
/// The KV slots that the plan reads must exist, and no other thread may write them concurrently.
pub(crate) unsafe fn select(
    threads: &ThreadPool,
    isa: Isa,
    indexer: &Indexer<'_>,
    keys: &mut Vec<f32>,
) -> Vec<Vec<u32>> {
    let Indexer { keys: source, q_width, heads, .. } = *indexer;
    let key_width = q_width / heads.max(1);
    let all: Vec<u32> = (0..source.pools.len() as u32).collect();
    let len = all.len() * key_width;
    if keys.len() < len {
        keys.resize(len, 0.0);
    }
    let key_rows = DisjointRows::new(&mut keys[..len], key_width);
    // SAFETY: upheld by the caller; each key is stored once.
    unsafe {
        source.compute(threads, isa, &all, &|at, key| key_rows.row(at).copy_from_slice(key));
    }
    let keys = Keys { elements: keys, width: key_width };
    let tokens = indexer.q.len() / q_width.max(1);
    let mut selected = Vec::with_capacity(tokens);
    for first in (0..tokens).step_by(TOKENS_AT_ONCE) {
        let range = first..tokens.min(first + TOKENS_AT_ONCE);
        let scores = indexer.scores(threads, isa, range.clone(), keys);
        let results: Vec<Mutex<Vec<u32>>> = range.map(|_| Mutex::default()).collect();
        threads.each(results.len(), &|_, item| {
            if let Ok(mut result) = results[item].lock() {
                *result = indexer.best_entries(first + item, &scores[item]);
            }
        });
        selected.extend(results.into_iter().map(|result| result.into_inner().unwrap_or_default()));
    }
    selected
}

/// Consecutive keys that one work item scores for a token.
struct ScoreBlock {
    token: usize,
    keys: Range<usize>,
    /// Offset of its scores among those of the token.
    offset: usize,
}

impl Indexer<'_> {
    /// The scores of the pools that each of these tokens sees.
    fn scores(&self, threads: &ThreadPool, isa: Isa, tokens: Range<usize>, keys: Keys<'_>) -> Vec<Vec<f32>> {
        let (mut scores, mut blocks) = (Vec::new(), Vec::new());
        for token in tokens.clone() {
            let seen = self.keys.pools.query(token);
            let leading = seen.leading.start as usize..seen.leading.end as usize;
            for start in leading.clone().step_by(KEYS_PER_ITEM) {
                let keys = start..leading.end.min(start + KEYS_PER_ITEM);
                blocks.push(ScoreBlock { token, keys, offset: start - leading.start });
            }
            for (offset, pool) in (leading.len()..).zip(&seen.others) {
                let pool = *pool as usize;
                blocks.push(ScoreBlock { token, keys: pool..pool + 1, offset });
            }
            scores.push(vec![0.0; leading.len() + seen.others.len()]);
        }
        let outputs: Vec<_> = scores.iter_mut().map(|scores| DisjointRows::new(scores, 1)).collect();
        threads.each(blocks.len(), &|_, item| {
            let ScoreBlock { token, keys: range, offset } = &blocks[item];
            let weights = self.weights.map(|weights| &weights[token * self.heads..][..self.heads]);
            let query = TokenQuery { q: &self.q[token * self.q_width..][..self.q_width], weights };
            // SAFETY: the blocks of a token are disjoint.
            let scores = unsafe { outputs[token - tokens.start].part(*offset, 0, range.len()) };
            score_keys(isa, query, keys.range(range), scores);
        });
        scores
    }

    /// The entries of the best pools of a token, and those in no complete pool.
    fn best_entries(&self, token: usize, scores: &[f32]) -> Vec<u32> {
        let seen = self.keys.pools.query(token);
        let pools: Vec<u32> = seen.pools().collect();
        let mut ranking: Vec<u32> = (0..pools.len() as u32).collect();
        let by_score = |a: &u32, b: &u32| scores[*b as usize].total_cmp(&scores[*a as usize]).then(a.cmp(b));
        if self.top_k < ranking.len() {
            if self.top_k > 0 {
                ranking.select_nth_unstable_by(self.top_k - 1, by_score);
            }
            ranking.truncate(self.top_k);
        }
        let chosen = ranking.iter().flat_map(|at| self.keys.pools.entries(pools[*at as usize]));
        let mut entries: Vec<u32> = chosen.chain(&seen.rest).copied().collect();
        entries.sort_unstable();
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::features::tests::isas;
    use kvasir_testkit::Random;

    #[test]
    fn scores_match_f64_with_equal_bits_on_every_isa() {
        for seed in 0..40 {
            let random = &mut Random::new(seed);
            let (width, heads, count) = (random.pick(&[1, 7, 16, 64, 100]), random.between(1, 5), 9);
            let mut numbers =
                |count: usize| -> Vec<f32> { (0..count).map(|_| random.unit() - 0.5).collect() };
            let (q, elements) = (numbers(heads as usize * width), numbers(count * width));
            let weights = numbers(heads as usize);
            let query = TokenQuery { q: &q, weights: (seed % 2 == 0).then_some(&weights[..]) };
            let keys = Keys { elements: &elements, width };
            let mut portable = vec![0.0; count];
            score_keys(Isa::PORTABLE, query, keys, &mut portable);
            for (found, key) in portable.iter().zip(elements.chunks_exact(width)) {
                let head = |(head, q): (usize, &[f32])| {
                    let dot: f64 = q.iter().zip(key).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                    query.weights.map_or(1.0, |weights| f64::from(weights[head])) * dot.max(0.0)
                };
                let expected: f64 = q.chunks_exact(width).enumerate().map(head).sum();
                assert!((f64::from(*found) - expected).abs() < 1e-4, "seed {seed}: {found}, {expected}");
            }
            for isa in isas() {
                let mut scores = vec![0.0; count];
                score_keys(isa, query, keys, &mut scores);
                assert!(scores == portable, "seed {seed} on {isa}");
            }
        }
    }
}
