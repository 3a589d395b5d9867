//! Reference embeddings of hashed n-grams.

use crate::weights::Weights;
use kvasir_kv::Token;
use kvasir_program::NgramForm;

/// Decodes the state of `Op::NgramEmbed`: `token`, then the tokens before it, the nearest first.
pub(crate) fn recent_tokens(state: &[f32], token: f32) -> Vec<Option<Token>> {
    let stored = |id: &f32| (*id > 0.0).then(|| *id as Token - 1);
    std::iter::once(Some(token as Token)).chain(state.iter().map(stored)).collect()
}

/// Writes the concatenated table rows of all heads of one token to `y`. `recent` is the result of
/// [`recent_tokens`].
pub(crate) fn ngram_rows(form: &NgramForm, recent: &[Option<Token>], weights: &Weights, y: &mut [f32]) {
    let rows = form.rows_of(recent);
    let width = y.len() / rows.len().max(1);
    let part_rows = form.tables.first().map_or(1, |first| weights.get(*first).len() / width.max(1)).max(1);
    for (y, row) in y.chunks_exact_mut(width).zip(rows) {
        y.copy_from_slice(weights.row(form.tables[row / part_rows], row % part_rows, width));
    }
}
