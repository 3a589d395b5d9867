//! Log-probabilities for the API's `logprobs` and `top_logprobs`: log-softmax of one row of logits.

use crate::processors::Total;

/// `log softmax(logits)[id]`. Reads the whole row.
pub fn log_probability(logits: &[f32], id: u32) -> f32 {
    let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
    Total::of(logits).log_probability(logit)
}

/// The `count` most likely ids with their log-probabilities, in descending order; the lower id
/// first among equals. Ids with a logit of negative infinity are left out.
pub fn top_log_probabilities(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let best_first = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let is_left = |id: &u32| logits[*id as usize] > f32::NEG_INFINITY;
    let mut ids: Vec<u32> = (0..logits.len() as u32).filter(is_left).collect();
    if count < ids.len() {
        ids.select_nth_unstable_by(count, best_first);
        ids.truncate(count);
    }
    ids.sort_unstable_by(best_first);
    let total = Total::of(logits);
    ids.into_iter().map(|id| (id, total.log_probability(logits[id as usize]))).collect()
}
