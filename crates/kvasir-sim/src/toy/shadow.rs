//! Shadow state of the toy device: which prefix each slot was written for. Checks every read and
//! every fed token against it.
//!
//! A prefix is identified by a chained digest of its tokens, like the block hashes of a prefix
//! cache.

use crate::toy::{Toy, slot_of};
use kvasir_exec::{BatchRow, SequenceSpec};
use kvasir_kv::{Plan, Position, Slot, Token};

/// One KV slot: its value, and the prefix it was written for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cell {
    pub(super) value: u64,
    pub(super) token: Token,
    /// Digest of the prefix that ends with this token; 0 if the slot was never written.
    pub(super) tag: u64,
    /// Digest of the prefix before it.
    pub(super) before: u64,
    /// A failed step did not write it. Reading it is allowed, but the resulting tokens must not be
    /// delivered.
    pub(super) spoiled: bool,
}

/// The device's state for a token-pool row.
#[derive(Clone, Debug, Default)]
pub(crate) struct PoolState {
    /// Tokens known for certain, by position.
    known: Vec<Token>,
    /// Digests of the prefixes that end with them.
    tags: Vec<u64>,
    /// Positions without a token before those that the row is fed; see [`SequenceSpec::skipped`].
    skipped: Position,
    /// Newest sampled token.
    pub(super) newest: Token,
}

impl PoolState {
    /// The initial state for a sequence that is bound to the row.
    pub(super) fn of(spec: SequenceSpec) -> Self {
        let mut known = spec.prompt;
        known.extend(spec.output);
        known.drain(spec.kept as usize..(spec.kept + spec.dropped) as usize);
        let mut before = 0;
        let tags = known.iter().map(|token| {
            before = digest(before, *token);
            before
        });
        Self { tags: tags.collect(), known, skipped: spec.skipped, newest: Token::MAX }
    }
}

/// The digest of the prefix that ends with `token`; `before` is that of the prefix before it. Never
/// 0.
pub(crate) fn digest(before: u64, token: Token) -> u64 {
    let z =
        (before ^ 0x9E37_79B9_7F4A_7C15).wrapping_add(u64::from(token)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (z ^ z >> 29).wrapping_mul(0x94D0_49BB_1331_11EB) | 1
}

impl Toy {
    /// Checks that the entries a query sees before itself were written for one prefix: this row's
    /// own, as far as it is known. In a row with gaps in its positions they need only hold its tokens:
    /// they were written in the presence of what was cut out.
    ///
    /// Returns the digest of that prefix.
    pub(super) fn check_prefix(
        &mut self,
        row: &BatchRow,
        plan: &Plan,
        entries: &[(Slot, Position)],
        position: Position,
    ) -> u64 {
        let mut before = 0;
        let mut wrong = None;
        let row_state = self.rows.get(row.pool_row.0 as usize);
        let skipped = row_state.map_or(0, |state| state.skipped);
        for (i, (slot, at)) in entries.iter().enumerate() {
            let cell = self.slot(0, *slot);
            let holds = match skipped {
                0 => {
                    let own = row_state.and_then(|state| state.tags.get(*at as usize));
                    *at == i as u32 && cell.before == before && own.is_none_or(|tag| *tag == cell.tag)
                }
                _ => {
                    let own = row_state.and_then(|state| state.known.get(i));
                    *at >= i as u32 && own.is_none_or(|token| *token == cell.token)
                }
            };
            if cell.spoiled {
                return cell.tag;
            }
            if cell.tag == 0 || !holds {
                wrong = wrong.or(Some((*slot, *at)));
            }
            before = cell.tag;
        }
        if entries.len() + skipped as usize != position as usize {
            self.note(format!("step {}: position {position} sees {} before it", plan.step.0, entries.len()));
        }
        if let Some((slot, at)) = wrong {
            self.note(format!(
                "step {}: request {} reads slot {slot} for position {at}, which was written for another prefix",
                plan.step.0, row.request
            ));
        }
        before
    }

    /// Records a certain token, and reports a violation if the position was fed another one before.
    ///
    /// Accepted drafts were fed as drafts; they are certain once something is fed after them.
    pub(super) fn learn(
        &mut self,
        row: &BatchRow,
        plan: &Plan,
        entries: &[(Slot, Position)],
        token: Token,
        before: u64,
    ) {
        let Some(state) = self.rows.get_mut(row.pool_row.0 as usize) else {
            return self.note(format!("step {}: pool row {} was never bound", plan.step.0, row.pool_row.0));
        };
        for (slot, _) in entries.iter().skip(state.known.len()) {
            let cell = slot_of(&self.slots, 0, *slot);
            state.known.push(cell.token);
            state.tags.push(cell.tag);
        }
        match state.known.get(entries.len()).copied() {
            None => {
                state.known.push(token);
                state.tags.push(digest(before, token));
            }
            Some(other) if other != token => {
                let (request, at) = (row.request, entries.len());
                self.note(format!(
                    "step {}: request {request} is fed {token} at {at}, it has {other}",
                    plan.step.0
                ));
            }
            Some(_) => {}
        }
    }
}
