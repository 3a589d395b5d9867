//! Logits processors: bias, penalties, token mask, temperature and truncations (top-k, top-p, min-p,
//! typical-p, top-n-sigma, XTC), in place over one row of logits.
//!
//! A removed id gets a logit of negative infinity. Rules and tie-breaking are those of the
//! Transformers library's `LogitsProcessor` classes of the same names; typical-p, top-n-sigma, XTC,
//! dynamic temperature, recent penalties and `min_keep` are llama.cpp's. Guarded by
//! `tests/processors.rs` and `tests/llama_cpp_samplers.rs`.

use std::cmp::Ordering;

/// Logit bias: adds to the logits of the given ids; ids outside the vocabulary are ignored.
pub fn bias(logits: &mut [f32], bias: &[(u32, f32)]) {
    for (id, add) in bias {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit += add;
        }
    }
}

/// Repetition penalty: divides positive and multiplies negative logits of seen ids, once per id.
pub fn repetition_penalty(logits: &mut [f32], seen: impl IntoIterator<Item = u32>, penalty: f32) {
    let mut done = vec![false; logits.len()];
    for id in seen {
        let id = id as usize;
        if let (Some(logit), Some(done)) = (logits.get_mut(id), done.get_mut(id))
            && !std::mem::replace(done, true)
        {
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// Presence and frequency penalty: `logit -= presence + frequency * count`, for ids in the output.
pub fn output_penalties(
    logits: &mut [f32],
    output: impl IntoIterator<Item = u32>,
    presence: f32,
    frequency: f32,
) {
    let mut counts = vec![0u32; logits.len()];
    for id in output {
        if let Some(count) = counts.get_mut(id as usize) {
            *count += 1;
        }
    }
    for (logit, count) in logits.iter_mut().zip(counts).filter(|(_, count)| *count > 0) {
        *logit -= presence + frequency * count as f32;
    }
}

/// llama.cpp's penalties over one window of prompt and output, per id in `recent`: the repetition
/// and presence penalties once, the frequency penalty per occurrence.
pub fn recent_penalties(
    logits: &mut [f32],
    recent: impl IntoIterator<Item = u32>,
    repetition: f32,
    presence: f32,
    frequency: f32,
) {
    let mut recent: Vec<u32> = recent.into_iter().collect();
    recent.sort_unstable();
    for occurrences in recent.chunk_by(|a, b| a == b) {
        if let Some(logit) = logits.get_mut(occurrences[0] as usize) {
            *logit = if *logit <= 0.0 { *logit * repetition } else { *logit / repetition };
            *logit -= occurrences.len() as f32 * frequency + presence;
        }
    }
}

/// Applies a token bitmask: removes ids whose bit is not set, and all ids beyond the last word.
pub fn allow(logits: &mut [f32], allowed: &[u32]) {
    let words = allowed.iter().copied().chain(std::iter::repeat(0));
    for (chunk, word) in logits.chunks_mut(32).zip(words) {
        match word {
            u32::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            _ => {
                let out = chunk.iter_mut().zip(0..).filter(|(_, bit)| word >> bit & 1 == 0);
                out.for_each(|(logit, _)| *logit = f32::NEG_INFINITY);
            }
        }
    }
}

/// The lowest id in a token bitmask.
pub(crate) fn lowest(allowed: &[u32]) -> Option<u32> {
    let (at, word) = allowed.iter().enumerate().find(|(_, word)| **word != 0)?;
    Some(at as u32 * 32 + word.trailing_zeros())
}

/// Removes the given ids.
pub fn suppress(logits: &mut [f32], ids: &[u32]) {
    for id in ids {
        if let Some(logit) = logits.get_mut(*id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Divides by a temperature, which must be above 0.
pub fn temperature(logits: &mut [f32], temperature: f32) {
    logits.iter_mut().for_each(|logit| *logit /= temperature);
}

/// Top-k: keeps the `k` largest logits and all ties with the smallest of them; 0 keeps all.
pub fn top_k(logits: &mut [f32], k: usize) {
    if k == 0 || k >= logits.len() {
        return;
    }
    let mut sorted = logits.to_vec();
    let (_, least, _) = sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    let least = *least;
    logits.iter_mut().filter(|logit| **logit < least).for_each(|logit| *logit = f32::NEG_INFINITY);
}

/// Top-p (nucleus): keeps the most likely ids until their probabilities sum to `p`, at least
/// `min_keep` and at least one; 1 keeps all.
pub fn top_p(logits: &mut [f32], p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    let total = Total::of(logits);
    let best_first = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let mut sum = 0.0;
    let removed = ids_after(candidates(logits), best_first, |id, kept| {
        sum += total.probability(logits[id]);
        sum >= f64::from(p) && kept >= min_keep
    });
    remove(logits, removed);
}

/// Min-p: keeps ids at least `p` times as likely as the most likely one, and at least the `min_keep`
/// most likely; 0 keeps all.
pub fn min_p(logits: &mut [f32], p: f32, min_keep: usize) {
    if p <= 0.0 {
        return;
    }
    let total = Total::of(logits);
    let least = total.probability(total.largest) * f64::from(p);
    let is_unlikely = |logit: &f32| total.probability(*logit) < least;
    if min_keep <= 1 {
        let unlikely = logits.iter_mut().filter(|logit| is_unlikely(logit));
        unlikely.for_each(|logit| *logit = f32::NEG_INFINITY);
        return;
    }
    let best_first = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let mut ids = candidates(logits);
    if min_keep < ids.len() {
        ids.select_nth_unstable_by(min_keep - 1, best_first);
    }
    let removed = ids.into_iter().skip(min_keep).filter(|id| is_unlikely(&logits[*id])).collect();
    remove(logits, removed);
}

/// Locally typical sampling: keeps the ids whose surprise `-ln p` is nearest the entropy, until their
/// probabilities sum to more than `p`, at least `min_keep` and at least one; 1 keeps all.
pub fn typical_p(logits: &mut [f32], p: f32, min_keep: usize) {
    if p >= 1.0 {
        return;
    }
    let total = Total::of(logits);
    let entropy = total.entropy(logits);
    let shift = |logit: &f32| (-total.probability(*logit).ln() - entropy).abs();
    let shifts: Vec<f64> = logits.iter().map(shift).collect();
    let most_typical_first = |a: &usize, b: &usize| {
        let likelier_first = || logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        shifts[*a].total_cmp(&shifts[*b]).then_with(likelier_first)
    };
    let mut sum = 0.0;
    let removed = ids_after(candidates(logits), most_typical_first, |id, kept| {
        sum += total.probability(logits[id]);
        sum > f64::from(p) && kept >= min_keep
    });
    remove(logits, removed);
}

/// Top-n-sigma: keeps logits of at least `max - n * sigma`, where sigma is the standard deviation of
/// the logits; an `n` of at most 0 keeps all.
pub fn top_n_sigma(logits: &mut [f32], n: f32) {
    let finite = || logits.iter().filter(|logit| **logit > f32::NEG_INFINITY).map(|logit| f64::from(*logit));
    let count = finite().count();
    if n <= 0.0 || count <= 1 {
        return;
    }
    let mean = finite().sum::<f64>() / count as f64;
    let variance = finite().map(|logit| (logit - mean).powi(2)).sum::<f64>() / count as f64;
    let least = finite().fold(f64::NEG_INFINITY, f64::max) - f64::from(n) * variance.sqrt();
    let low = logits.iter_mut().filter(|logit| f64::from(**logit) < least);
    low.for_each(|logit| *logit = f32::NEG_INFINITY);
}

/// XTC (exclude top choices): removes the ids with a probability of at least `threshold`, except
/// the least likely of them. Changes nothing if fewer than `min_keep` ids would remain.
pub fn exclude_top_choices(logits: &mut [f32], threshold: f32, min_keep: usize) {
    let total = Total::of(logits);
    let mut ids = candidates(logits);
    let count = ids.len();
    ids.retain(|id| total.probability(logits[*id]) >= f64::from(threshold));
    let least = (0..ids.len()).max_by(|a, b| {
        let (a, b) = (ids[*a], ids[*b]);
        logits[b].total_cmp(&logits[a]).then(a.cmp(&b))
    });
    if let Some(at) = least {
        ids.swap_remove(at);
    }
    if count - ids.len() >= min_keep {
        remove(logits, ids);
    }
}

/// The dynamic temperature of a row: `low + (high - low) * (entropy / max_entropy)^exponent`, where
/// `low` and `high` are `temperature - range`, at least 0, and `temperature + range`.
pub fn dynamic_temperature(logits: &[f32], temperature: f32, range: f32, exponent: f32) -> f32 {
    let count = logits.iter().filter(|logit| **logit > f32::NEG_INFINITY).count();
    if count <= 1 {
        return temperature;
    }
    let (coldest, hottest) = ((temperature - range).max(0.0), temperature + range);
    let entropy = Total::of(logits).entropy(logits) / (count as f64).ln();
    coldest + (hottest - coldest) * (entropy as f32).powf(exponent)
}

/// Leaves all probability to one id, even if it was removed.
pub(crate) fn keep_only(logits: &mut [f32], id: u32) {
    logits.fill(f32::NEG_INFINITY);
    if let Some(logit) = logits.get_mut(id as usize) {
        *logit = 0.0;
    }
}

/// Ids that are not removed.
fn candidates(logits: &[f32]) -> Vec<usize> {
    (0..logits.len()).filter(|id| logits[*id] > f32::NEG_INFINITY).collect()
}

fn remove(logits: &mut [f32], ids: Vec<usize>) {
    ids.into_iter().for_each(|id| logits[id] = f32::NEG_INFINITY);
}

/// The ids after the first one, in sorted order, for which `is_last(id, rank)` holds; ranks begin
/// at 1.
///
/// The kept head is usually small, so this sorts a growing head (64 ids, then eight times as many)
/// instead of the vocabulary.
fn ids_after(
    mut ids: Vec<usize>,
    order: impl Fn(&usize, &usize) -> Ordering,
    mut is_last: impl FnMut(usize, usize) -> bool,
) -> Vec<usize> {
    let (mut kept, mut head, mut ended) = (0, 0, false);
    while !ended && head < ids.len() {
        let more = (head * 7).max(64).min(ids.len() - head);
        let rest = &mut ids[head..];
        if more < rest.len() {
            rest.select_nth_unstable_by(more - 1, &order);
        }
        rest[..more].sort_unstable_by(&order);
        head += more;
        while !ended && kept < head {
            kept += 1;
            ended = is_last(ids[kept - 1], kept);
        }
    }
    ids.drain(..kept);
    ids
}

/// Softmax of the row.
pub fn probabilities(logits: &[f32]) -> Vec<f32> {
    let total = Total::of(logits);
    logits.iter().map(|logit| total.probability(*logit) as f32).collect()
}

/// The maximum and the f64 sum of exponentials of a row: the softmax normalizer.
#[derive(Clone, Copy)]
pub(crate) struct Total {
    pub(crate) largest: f32,
    sum: f64,
}

impl Total {
    pub(crate) fn of(logits: &[f32]) -> Self {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = logits.iter().map(|logit| weight(*logit, largest)).sum();
        Self { largest, sum }
    }

    pub(crate) fn probability(self, logit: f32) -> f64 {
        weight(logit, self.largest) / self.sum
    }

    /// Entropy of the softmax in nats; `logits` must be the row that `self` was computed from.
    fn entropy(self, logits: &[f32]) -> f64 {
        let probabilities = logits.iter().map(|logit| self.probability(*logit));
        -probabilities.filter(|p| *p > 0.0).map(|p| p * p.ln()).sum::<f64>()
    }

    pub(crate) fn log_probability(self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.largest) - self.sum.ln()) as f32
    }
}

/// `exp(logit - largest)`; 0 for NaN and for negative infinity.
fn weight(logit: f32, largest: f32) -> f64 {
    if logit > f32::NEG_INFINITY { (f64::from(logit) - f64::from(largest)).exp() } else { 0.0 }
}
