//! Embeddings of hashed n-grams: the table rows of all heads of a token, concatenated. The state is
//! the last `size - 1` token ids, each plus 1, the newest first; 0 stands for no token.
//!
//! 1. Read the table rows of all tokens, in parallel. The tokens before a row's first input come
//!    from its state.
//! 2. Store the states, the one in the slot `from` last, because all others are computed from it.
//!    Its update is in place and moves ids to the same or a larger distance. So they are written
//!    in descending order of distance.
//! 3. Store the ids of draft tokens in the tails.

use crate::recurrent::inputs::{RowInputs, Source};
use crate::recurrent::op_context::OpContext;
use crate::threads::rows::DisjointRows;
use kvasir_kv::{Slot, Token};
use kvasir_program::{NgramForm, WeightId};

/// Reads a row of a table, by index, into the slice.
pub(crate) type ReadTableRow<'a> = dyn Fn(WeightId, usize, &mut [f32]) + Sync + 'a;

/// The n-gram embeddings of the tokens of a step.
pub(crate) struct NgramEmbedding<'a> {
    pub(crate) form: &'a NgramForm,
    /// Rows of each table but the last.
    pub(crate) table_rows: usize,
    pub(crate) tokens: &'a [Token],
    pub(crate) read_row: &'a ReadTableRow<'a>,
}

/// Finds the token ids of a row: in the step, in a tail, or in a state.
struct TokenIds<'a> {
    tokens: &'a [Token],
    context: OpContext<'a>,
}

impl TokenIds<'_> {
    /// Id plus 1 of input `at` of a row, 0 if there is no token. Negative indices are in the state
    /// that the row reads.
    ///
    /// # Safety
    /// The slots of the row must exist, and no other thread may write its state or tail.
    unsafe fn stored_id(&self, row: &RowInputs, at: isize) -> f32 {
        let OpContext { pool, state, .. } = self.context;
        match (usize::try_from(at), row.from) {
            (Ok(at), _) => match row.source(at) {
                Source::Token(token) => self.tokens[token] as f32 + 1.0,
                // SAFETY: the caller excludes writes; a tail row has one element.
                Source::Tail(tail_row) => unsafe { *pool.tail_row(row.tail, tail_row, state) + 1.0 },
            },
            // SAFETY: as above; the state has an element for each distance up to `size - 1`.
            (Err(_), Some(from)) => unsafe { *self.context.state_from(from).add(at.unsigned_abs() - 1) },
            (Err(_), None) => 0.0,
        }
    }

    /// Stores the ids of the `count` inputs before input `after` of a row.
    ///
    /// # Safety
    /// As for [`stored_id`](Self::stored_id), and no other thread may access `to`.
    unsafe fn store(&self, row: &RowInputs, after: usize, to: Slot, count: usize) {
        let to = self.context.pool.state(to, self.context.state);
        for distance in (0..count).rev() {
            // SAFETY: upheld by the caller; the state has `count` elements.
            unsafe { *to.add(distance) = self.stored_id(row, after as isize - 1 - distance as isize) };
        }
    }
}

/// Runs the op over all rows of a step.
///
/// # Safety
/// The slots and tails of `context.inputs` must exist, and a slot or tail that is written must
/// belong to one row. No other thread may access them, except to read those of frozen pools.
pub(crate) unsafe fn run(context: &OpContext<'_>, ngrams: &NgramEmbedding<'_>, y: &DisjointRows<'_>) {
    let OpContext { threads, pool, state, inputs, .. } = *context;
    let NgramEmbedding { form, table_rows, tokens, read_row } = *ngrams;
    let ids = TokenIds { tokens, context: *context };
    threads.each(inputs.count, &|_, input| {
        let row = inputs.row_of(input);
        let at = input - row.first_input;
        let Source::Token(token) = row.source(at) else { return };
        let recent: Vec<Option<Token>> = (0..form.size)
            .map(|distance| {
                // SAFETY: states and tails are written later.
                let id = unsafe { ids.stored_id(row, at as isize - distance as isize) };
                (id > 0.0).then(|| id as Token - 1)
            })
            .collect();
        let rows = form.rows_of(&recent);
        // SAFETY: only this item writes the row.
        let y = unsafe { y.row(token) };
        let width = y.len() / rows.len().max(1);
        for (y, row) in y.chunks_exact_mut(width.max(1)).zip(rows) {
            read_row(form.tables[row / table_rows], row % table_rows, y);
        }
    });
    let count = form.size - 1;
    for row in &inputs.rows {
        // The update in place overwrites the old state, which all other stores read.
        for in_place in [false, true] {
            for segment in inputs.segments(row) {
                let stores = segment.stores.into_iter().flatten();
                for slot in stores.filter(|slot| row.starts_from(*slot) == in_place) {
                    // SAFETY: only this row uses the slot, and one thread runs.
                    unsafe { ids.store(row, segment.inputs.end, slot, count) };
                }
            }
        }
        for (tail_row, token) in row.drafts() {
            // SAFETY: only this row uses the tail, whose replayed ids have been read.
            unsafe { *pool.tail_row(row.tail, tail_row, state) = tokens[token] as f32 };
        }
    }
}
