//! Constrained decoding in `SamplerRow`: draft verification, repeated steps, preemption and dead
//! ends.
#![allow(clippy::unwrap_used)]

use kvasir_exec::{BatchRow, Drafts, IN_FLIGHT, NO_TOKEN, RowKind, SamplerRow, SequenceSpec};
use kvasir_kv::Span;
use kvasir_sample::{Allowed, Constrained, Constraint, Follower};
use std::sync::Arc;

const VOCAB: usize = 40;

/// A constraint for tests: after `n` only `n + 1` and `n + 2` are allowed, below 30.
#[derive(Debug)]
struct Rising;

#[derive(Debug, Default)]
struct Walk(Vec<u32>);

impl Constraint for Rising {
    fn follow(&self) -> Box<dyn Follower> {
        Box::<Walk>::default()
    }
}

impl Follower for Walk {
    fn allowed(&mut self, output: &[u32]) -> Allowed<'_> {
        let rises = output.windows(2).all(|pair| (1..=2).contains(&(pair[1].wrapping_sub(pair[0]))));
        let last = output.last().copied().unwrap_or(9);
        let ids = (last + 1..=last + 2).filter(|id| rises && *id < 30);
        self.0 = vec![0; 2];
        ids.for_each(|id| self.0[id as usize / 32] |= 1 << (id % 32));
        if self.0.iter().any(|word| *word != 0) { Allowed::Only(&self.0) } else { Allowed::Nothing }
    }

    fn expect(&mut self, _: &[u32]) {}
}

fn bound(output: &[u32]) -> SamplerRow {
    SamplerRow::bind(SequenceSpec {
        prompt: vec![1, 2],
        output: output.to_vec(),
        constraint: Constrained(Some(Arc::new(Rising))),
        ..SequenceSpec::default()
    })
}

/// Logits that favor id 35 (never allowed); among the others, lower ids win.
fn logits(rows: usize) -> Vec<f32> {
    let row = (0..VOCAB).map(|id| if id == 35 { 9.0 } else { -(id as f32) });
    row.cycle().take(rows * VOCAB).collect()
}

fn draw(state: &mut SamplerRow, tokens: &[u32], first: u32, drafts: u32, parents: &[i32]) -> Vec<u32> {
    let row = BatchRow {
        kind: RowKind::Decode,
        tokens: Span::new(0, tokens.len()),
        sample_from: tokens.len() as u32 - drafts - 1,
        drafts: Drafts { count: drafts, tree: (!parents.is_empty()).then(|| Span::new(0, parents.len())) },
        ..BatchRow::default()
    };
    let positions: Vec<u32> = (0..tokens.len() as u32).map(|i| first + i).collect();
    state.draw(&row, tokens, &positions, parents, &logits(1 + drafts as usize), VOCAB, &mut Vec::new());
    state.drawn().tokens.clone()
}

/// The token that a step feeding `IN_FLIGHT` would feed.
fn newest(state: &SamplerRow) -> Vec<u32> {
    let mut token = Vec::new();
    assert_eq!(state.resolve(&[IN_FLIGHT], &mut token), !token.is_empty());
    token
}

#[test]
fn only_allowed_ids_are_drawn_step_by_step_and_again() {
    let mut state = bound(&[]);
    assert_eq!(draw(&mut state, &[1, 2], 0, 0, &[]), [10]);
    assert_eq!(newest(&state), [10]);
    assert_eq!(draw(&mut state, &[10], 2, 0, &[]), [11]);
    // Repeat the same step, then feed another token in its place: no state is left behind.
    assert_eq!(draw(&mut state, &[10], 2, 0, &[]), [11]);
    assert_eq!(draw(&mut state, &[11], 2, 0, &[]), [12]);
    // Bind again, as after a preemption.
    let mut state = bound(&[10, 12]);
    assert_eq!(draw(&mut state, &[1, 2, 10, 12], 0, 0, &[]), [13]);
}

#[test]
fn drafts_are_verified_under_the_constraint() {
    let mut state = bound(&[]);
    assert_eq!(draw(&mut state, &[1, 2], 0, 0, &[]), [10]);
    // 11 and 12 are accepted; 35 violates the constraint, so the token sampled after it does not
    // matter.
    let drawn = draw(&mut state, &[10, 11, 12, 35], 2, 3, &[]);
    assert_eq!(drawn[..3], [11, 12, 13]);
    assert_eq!(newest(&state), [13]);
    let drawn = draw(&mut state, &[13, 35, 14, 15], 5, 3, &[0, 0, 2]);
    assert_eq!((drawn[0], drawn[2], drawn[3]), (14, 15, 16));
    assert_eq!(newest(&state), [16]);
}

#[test]
fn a_row_without_allowed_tokens_samples_nothing() {
    let mut state = bound(&[28, 29]);
    assert_eq!(draw(&mut state, &[29], 3, 0, &[]), [0u32; 0]);
    assert!(!newest(&state).is_empty(), "a step that is under way does not fail for the others in it");
}

#[test]
fn drafts_into_a_dead_end_are_accepted_without_a_token_behind_them() {
    // After 29 nothing is allowed, as `a_row_without_allowed_tokens_samples_nothing` has it.
    let mut state = bound(&[27]);
    assert_eq!(draw(&mut state, &[27, 28, 29], 2, 2, &[]), [28, 29, NO_TOKEN]);
    assert_eq!(newest(&state), [29], "a step that is under way does not fail for the others in it");
    let mut state = bound(&[27]);
    let drawn = draw(&mut state, &[27, 28, 35, 29], 2, 3, &[0, 0, 1]);
    assert_eq!((drawn[0], drawn[1], drawn[3]), (28, 29, NO_TOKEN));
    assert_eq!(newest(&state), [29]);
}
