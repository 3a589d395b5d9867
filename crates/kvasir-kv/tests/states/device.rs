//! `StateDevice`: runs the state rows of plans on digests instead of recurrent states.
//!
//! A slot holds the digest of all tokens that its state covers, and their number. The device panics
//! on a row that reads the state of another prefix, replays the wrong tail, feeds positions with a
//! gap, or writes a slot that another row of the step reads or writes.

use kvasir_kv::{Plan, PoolId, Position, StateRow, Token};
use std::collections::VecDeque;

/// A state: digest and number of the tokens that it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) digest: u64,
    pub(crate) len: Position,
}

impl State {
    /// The state after one more token.
    pub(crate) fn after(self, token: Token) -> Self {
        let digest =
            (self.digest ^ (u64::from(token) + 1)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
        Self { digest, len: self.len + 1 }
    }

    /// The state after all of these tokens.
    pub(crate) fn of(tokens: &[Token]) -> Self {
        tokens.iter().fold(Self::default(), |state, &token| state.after(token))
    }
}

/// The input that a row of a submitted step must have.
#[derive(Clone, Debug)]
pub(crate) struct Expected {
    /// All tokens of the sequence up to the row's last query.
    pub(crate) tokens: Vec<Token>,
    /// Number of tokens that the row feeds, without redirected ones.
    pub(crate) fed: u32,
    /// Number of draft tokens, which are the last of them.
    pub(crate) drafts: u32,
}

/// A pool of states and tails, and the submitted steps.
pub(crate) struct StateDevice {
    slots: Vec<Option<State>>,
    tails: Vec<Vec<(Position, Token)>>,
    queue: VecDeque<(Plan, Vec<Expected>)>,
    /// Number of saves so far.
    pub(crate) saves: u32,
    /// Number of replayed tail rows so far.
    pub(crate) replayed: u32,
}

impl StateDevice {
    pub(crate) fn new(slots: u32, tails: u32) -> Self {
        let slots = vec![None; slots as usize];
        Self { slots, tails: vec![Vec::new(); tails as usize], queue: VecDeque::new(), saves: 0, replayed: 0 }
    }

    /// Queues a step, after checking that no row writes a slot that another row reads or writes.
    pub(crate) fn submit(&mut self, plan: &Plan, expected: Vec<Expected>) {
        let states = &plan.states;
        assert_eq!(states.rows.len(), plan.rows.len());
        let written = |row: &StateRow| {
            let saves = states.saves[row.saves.range()].iter().map(|save| save.slot);
            saves.chain((row.commit > 0).then_some(row.to)).collect::<Vec<_>>()
        };
        for (i, row) in states.rows.iter().enumerate() {
            let own = written(row);
            assert!(own.iter().all(|slot| *slot < states.bound));
            let saves = &states.saves[row.saves.range()];
            assert!(saves.is_sorted_by(|a, b| a.after < b.after), "{saves:?}");
            assert!(saves.iter().all(|save| (1..row.commit).contains(&save.after)), "{saves:?} {row:?}");
            assert_eq!(own.iter().filter(|slot| row.from == Some((PoolId(0), **slot))).count(), {
                usize::from(row.commit > 0 && row.from == Some((PoolId(0), row.to)))
            });
            for other in states.rows.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, other)| other) {
                assert_ne!(row.tail, other.tail);
                let from = other.from.map(|(_, slot)| slot);
                let named = written(other).into_iter().chain(from);
                assert!(!named.into_iter().any(|slot| own.contains(&slot)), "{:?}", states.rows);
            }
        }
        self.queue.push_back((plan.clone(), expected));
    }

    /// Runs the oldest step.
    pub(crate) fn run(&mut self) {
        let (plan, expected) = self.queue.pop_front().unwrap();
        for ((row, planned), expected) in plan.states.rows.iter().zip(&plan.rows).zip(&expected) {
            let read = row.from.map_or(Some(State::default()), |(_, slot)| self.slots[slot as usize]);
            let read = read.unwrap_or_else(|| panic!("{row:?} reads a slot that was never written"));
            let len = expected.tokens.len();
            assert_eq!(read, State::of(&expected.tokens[..read.len as usize]), "{row:?}");
            let replay = self.tails[row.tail as usize][..row.replay as usize].to_vec();
            let queries = &plan.positions[planned.queries.range()][row.skip as usize..];
            assert_eq!(queries.len() as u32, expected.fed);
            let first = len - expected.fed as usize;
            let fed = queries.iter().copied().zip(expected.tokens[first..].iter().copied());
            let inputs: Vec<(Position, Token)> = replay.into_iter().chain(fed).collect();
            assert_eq!(row.commit, inputs.len() as u32 - expected.drafts);
            self.replayed += row.replay;
            let (mut state, mut tail) = (read, 0);
            for (after, &(position, token)) in (1..).zip(&inputs) {
                assert_eq!(state.len, position, "{row:?}");
                assert_eq!(token, expected.tokens[position as usize], "{row:?} replays a wrong token");
                state = state.after(token);
                for save in &plan.states.saves[row.saves.range()] {
                    if save.after == after {
                        self.slots[save.slot as usize] = Some(state);
                        self.saves += 1;
                    }
                }
                if after == row.commit {
                    self.slots[row.to as usize] = Some(state);
                }
                if after > row.commit {
                    let rows = &mut self.tails[row.tail as usize];
                    rows.truncate(tail);
                    rows.push((position, token));
                    tail += 1;
                }
            }
        }
    }
}

#[test]
fn a_state_digest_depends_on_the_order_of_tokens() {
    assert_ne!(State::of(&[1, 2]), State::of(&[2, 1]));
    assert_eq!(State::of(&[1, 2]), State::of(&[1]).after(2));
}
