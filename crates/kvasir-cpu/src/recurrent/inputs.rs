//! The inputs of a step to its recurrent states, from the plan's `StateSection`.
//!
//! The inputs of a row are its replayed tail rows, then its queries without skipped ones. The rows'
//! inputs are numbered consecutively. A row runs in *segments*: ranges of inputs that end where its
//! state is stored, or where its inputs change from the tail to the queries.

use kvasir_kv::{PoolId, Slot, Span, StateRow, StateSave};
use std::ops::Range;

/// The state slots and inputs of one sequence.
#[derive(Clone, Debug)]
pub(crate) struct RowInputs {
    /// Pool and slot of the state before the first input; `None` for zeros.
    pub(crate) from: Option<(PoolId, Slot)>,
    /// Slot that receives the state after `commit` inputs.
    to: Slot,
    pub(crate) tail: Slot,
    /// Number of tail rows that are inputs.
    pub(crate) replay: usize,
    /// First token of the step that is an input; its other queries follow.
    pub(crate) first_token: usize,
    /// Number of inputs.
    pub(crate) count: usize,
    /// Number of inputs that `to` covers; the others are draft tokens.
    pub(crate) commit: usize,
    /// Index of the first input among those of all rows.
    pub(crate) first_input: usize,
    saves: Range<usize>,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A row of the sequence's tail.
    Tail(usize),
    /// A token of the step.
    Token(usize),
}

/// Consecutive inputs of one row from one source, with no store of the state between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// Indices of the inputs within the row.
    pub(crate) inputs: Range<usize>,
    /// Source of the first input; the others follow it in the tail or in the step.
    pub(crate) source: Source,
    /// Slots that receive the state after the last input.
    pub(crate) stores: [Option<Slot>; 2],
}

/// The inputs of all sequences of a step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateInputs {
    pub(crate) rows: Vec<RowInputs>,
    saves: Vec<StateSave>,
    /// Number of inputs of all rows.
    pub(crate) count: usize,
    /// Tokens that are not inputs: skipped queries and dummy rows. Their outputs are zeros.
    pub(crate) skipped: Vec<Range<usize>>,
}

impl StateInputs {
    /// Removes all rows; keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.saves.clear();
        self.skipped.clear();
        self.count = 0;
    }

    /// Adds the batch row of these tokens. `row` must have been validated; it is `None` for a dummy
    /// row, which has no inputs.
    pub(crate) fn push(&mut self, tokens: Span, row: Option<&StateRow>, saves: &[StateSave]) {
        let tokens = tokens.range();
        let Some(row) = row else {
            return self.skipped.push(tokens);
        };
        let first_token = tokens.start + row.skip as usize;
        if row.skip > 0 {
            self.skipped.push(tokens.start..first_token);
        }
        let count = row.replay as usize + (tokens.end - first_token);
        if count == 0 {
            return;
        }
        let first_save = self.saves.len();
        self.saves.extend_from_slice(saves);
        self.rows.push(RowInputs {
            from: row.from,
            to: row.to,
            tail: row.tail,
            replay: row.replay as usize,
            first_token,
            count,
            commit: row.commit as usize,
            first_input: self.count,
            saves: first_save..self.saves.len(),
        });
        self.count += count;
    }

    /// The segments of a row, in order.
    pub(crate) fn segments<'a>(&'a self, row: &'a RowInputs) -> impl Iterator<Item = Segment> + 'a {
        let saves = &self.saves[row.saves.clone()];
        let mut start = 0;
        std::iter::from_fn(move || {
            if start == row.count {
                return None;
            }
            let ends = saves.iter().map(|save| save.after as usize);
            let ends = ends.chain([row.replay, row.commit, row.count]);
            let end = ends.filter(|end| *end > start).min()?;
            let save = saves.iter().find(|save| save.after as usize == end).map(|save| save.slot);
            let stores = [save, (row.commit == end).then_some(row.to)];
            let segment = Segment { inputs: start..end, source: row.source(start), stores };
            start = end;
            Some(segment)
        })
    }

    /// The row of an input, by its index among those of all rows.
    pub(crate) fn row_of(&self, input: usize) -> &RowInputs {
        let after = self.rows.partition_point(|row| row.first_input <= input);
        &self.rows[after - 1]
    }
}

impl RowInputs {
    /// Source of an input, by its index within the row.
    pub(crate) fn source(&self, input: usize) -> Source {
        match input.checked_sub(self.replay) {
            None => Source::Tail(input),
            Some(query) => Source::Token(self.first_token + query),
        }
    }

    /// Whether the state before the first input is in this slot of the executor's own pool.
    pub(crate) fn starts_from(&self, slot: Slot) -> bool {
        self.from == Some((PoolId(0), slot))
    }

    /// The tail row and the token of each draft.
    pub(crate) fn drafts(&self) -> impl Iterator<Item = (usize, usize)> {
        let first = self.first_token + self.commit - self.replay;
        (0..self.count - self.commit).map(move |row| (row, first + row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_end_at_every_store_and_after_the_replay() {
        let row = StateRow {
            from: Some((PoolId(0), 3)),
            to: 4,
            tail: 1,
            replay: 2,
            skip: 3,
            commit: 9,
            saves: Span::new(0, 2),
        };
        let saves = [StateSave { after: 1, slot: 7 }, StateSave { after: 5, slot: 8 }];
        let mut inputs = StateInputs::default();
        inputs.push(Span::new(0, 2), None, &[]);
        inputs.push(Span::new(2, 12), Some(&row), &saves);
        assert_eq!((inputs.count, &inputs.skipped[..]), (11, &[0..2, 2..5][..]));
        let segment = |range, source, stores| Segment { inputs: range, source, stores };
        let expected = [
            segment(0..1, Source::Tail(0), [Some(7), None]),
            segment(1..2, Source::Tail(1), [None, None]),
            segment(2..5, Source::Token(5), [Some(8), None]),
            segment(5..9, Source::Token(8), [None, Some(4)]),
            segment(9..11, Source::Token(12), [None, None]),
        ];
        assert_eq!(inputs.segments(&inputs.rows[0]).collect::<Vec<_>>(), expected);
        assert_eq!(inputs.rows[0].drafts().collect::<Vec<_>>(), [(0, 12), (1, 13)]);
    }
}
