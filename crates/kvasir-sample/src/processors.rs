//! Logits processors: bias, penalties, token mask, temperature, top-k, top-p and min-p, in place
//! over one row of logits.
//!
//! A removed id gets a logit of negative infinity. Rules and tie-breaking are those of the
//! Transformers library's `LogitsProcessor` classes of the same names. Guarded by
//! `tests/processors.rs`.

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

/// Top-p (nucleus): keeps the most likely ids until their probabilities sum to `p`, at least one; 1
/// keeps all.
pub fn top_p(logits: &mut [f32], p: f32) {
    if p >= 1.0 {
        return;
    }
    let total = Total::of(logits);
    let best_first = |a: &usize, b: &usize| -> Ordering { logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)) };
    let mut ids: Vec<usize> = (0..logits.len()).filter(|id| logits[*id] > f32::NEG_INFINITY).collect();
    // The nucleus is usually small: sort a growing head (64, then eight times as much) instead of
    // the vocabulary.
    let (mut kept, mut sum, mut head) = (0, 0.0, 0);
    while kept == head && head < ids.len() {
        let more = (head * 7).max(64).min(ids.len() - head);
        let rest = &mut ids[head..];
        if more < rest.len() {
            rest.select_nth_unstable_by(more - 1, best_first);
        }
        rest[..more].sort_unstable_by(best_first);
        head += more;
        while kept < head && (kept == 0 || sum < f64::from(p)) {
            sum += total.probability(logits[ids[kept]]);
            kept += 1;
        }
    }
    ids.drain(..kept);
    ids.into_iter().for_each(|id| logits[id] = f32::NEG_INFINITY);
}

/// Min-p: keeps ids at least `p` times as likely as the most likely one; 0 keeps all.
pub fn min_p(logits: &mut [f32], p: f32) {
    if p <= 0.0 {
        return;
    }
    let total = Total::of(logits);
    let least = total.probability(total.largest) * f64::from(p);
    let unlikely = logits.iter_mut().filter(|logit| total.probability(**logit) < least);
    unlikely.for_each(|logit| *logit = f32::NEG_INFINITY);
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

    fn probability(self, logit: f32) -> f64 {
        weight(logit, self.largest) / self.sum
    }

    pub(crate) fn log_probability(self, logit: f32) -> f32 {
        (f64::from(logit) - f64::from(self.largest) - self.sum.ln()) as f32
    }
}

/// `exp(logit - largest)`; 0 for NaN and for negative infinity.
fn weight(logit: f32, largest: f32) -> f64 {
    if logit > f32::NEG_INFINITY { (f64::from(logit) - f64::from(largest)).exp() } else { 0.0 }
}
