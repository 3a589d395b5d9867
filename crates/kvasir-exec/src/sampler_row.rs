//! Per-sequence sampler state: penalties, constrained decoding, and verification of speculative
//! drafts.
//!
//! `SamplerRow::draw` runs once per row and step:
//!
//! 1. Score prompt tokens (`prompt_logprobs`).
//! 2. Append the fed tokens, drafts excluded, to the output history.
//! 3. For each sampled position, set the history to the path from the newest committed token
//!    through its draft ancestors, then sample.
//! 4. Accept the drafts that equal the sampled tokens (`kvasir_sample::accept`). The token after
//!    the last accepted draft becomes the newest one.
//!
//! Where the constraint allows no token after a draft, the sampled token is [`NO_TOKEN`]: the drafts
//! before it are accepted as without, and the sequence ends behind them.
//!
//! Invariant: the state is a function of the fed tokens, of the last `bind` and of the last
//! proposal ([`SamplerRow::drafts`]), never of earlier draws. The exception is Mirostat's `mu`,
//! which depends on the draws of the fed tokens; `MirostatState` keeps it by output index. A step
//! that runs again, or drafts that are rejected, leave nothing behind. Guarded by
//! `tests/constraint.rs` and by the numerics tests of the `kvasir` crate.

use crate::batch::{BatchRow, IN_FLIGHT, PoolRow};
use crate::executor::SequenceSpec;
use crate::output::{Drawn, NO_TOKEN, TokenLogprobs};
use kvasir_kv::{Position, Token};
use kvasir_sample::{
    Allowed, Context, Follower, accept, accept_or_redraw, can_be_drawn_from, draw_from, log_probability,
    top_log_probabilities,
};
use std::sync::{Mutex, PoisonError};

/// A chain of drafts that was drawn from a draft model, with the distribution of each, for rejection
/// sampling.
#[derive(Clone, Debug, Default)]
pub struct DrawnDrafts {
    /// Position of the first draft.
    pub position: Position,
    /// The drafts.
    pub tokens: Vec<Token>,
    /// Probabilities by id of the target, concatenated; as many for each draft.
    pub probabilities: Vec<f32>,
}

impl DrawnDrafts {
    /// Empties it and keeps the capacity.
    pub fn reset(&mut self, position: Position) {
        self.position = position;
        self.tokens.clear();
        self.probabilities.clear();
    }

    /// The distribution that draft `n` of `drafts`, whose first is at `position`, was drawn from.
    fn distribution(&self, drafts: &[Token], position: Position, n: usize) -> Option<&[f32]> {
        let known = self.position == position && self.tokens.get(..=n) == drafts.get(..=n);
        let each = self.probabilities.len() / self.tokens.len().max(1);
        self.probabilities.get(n * each..(n + 1) * each).filter(|each| known && !each.is_empty())
    }
}

/// The token-pool entry of one sequence: its newest token and its sampler state.
#[derive(Debug, Default)]
pub struct SamplerRow {
    /// Sampling parameters, prompt, bias and constraint of the sequence.
    pub spec: SequenceSpec,
    /// Output ids up to the newest fed one.
    ///
    /// It is rebuilt from what is fed, so a repeated step or a truncated draft chain leaves nothing
    /// behind.
    output: Vec<Token>,
    newest: Option<Token>,
    /// State of the constrained-decoding matcher, if the sequence has a constraint.
    follower: Option<Box<dyn Follower>>,
    /// Drafts of the next step that rejection sampling applies to.
    drafts: DrawnDrafts,
    /// Scratch: accepted draft nodes.
    accepted: Vec<u32>,
    /// Result of the last step, kept here to reuse its capacity.
    drawn: Drawn,
}

/// The sampler rows of an executor, by pool row.
pub trait SamplerRows {
    /// The row of one sequence.
    ///
    /// # Panics
    ///
    /// Without such a row.
    fn sampler_row(&mut self, row: PoolRow) -> &mut SamplerRow;
}

impl SamplerRows for Vec<SamplerRow> {
    fn sampler_row(&mut self, row: PoolRow) -> &mut SamplerRow {
        &mut self[row.0 as usize]
    }
}

impl SamplerRows for Vec<Mutex<SamplerRow>> {
    fn sampler_row(&mut self, row: PoolRow) -> &mut SamplerRow {
        self[row.0 as usize].get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Output tokens for which capacity is reserved up front, at most.
const MOST_RESERVED: usize = 1 << 14;

impl SamplerRow {
    /// Initial state for a sequence, whose [`SequenceSpec::output`] holds what it has generated so
    /// far. Reserves capacity for more output, so that decoding does not reallocate.
    pub fn bind(spec: SequenceSpec) -> Self {
        let outputs = (spec.final_len as usize).saturating_sub(spec.prompt.len()).min(MOST_RESERVED);
        let mut output = Vec::with_capacity(outputs.max(spec.output.len()));
        output.extend_from_slice(&spec.output);
        let mut follower = spec.constraint.0.as_ref().map(|constraint| constraint.follow());
        if let Some(follower) = &mut follower {
            follower.expect(&spec.output);
        }
        let newest = spec.output.last().copied();
        Self { output, newest, follower, spec, ..Self::default() }
    }

    /// Appends the row's tokens to `into`, with [`IN_FLIGHT`] replaced by the newest sampled token.
    ///
    /// Returns false if a token is in flight that was never sampled; `into` is then incomplete.
    #[must_use]
    pub fn resolve(&self, tokens: &[Token], into: &mut Vec<Token>) -> bool {
        tokens.iter().all(|t| {
            let token = if *t == IN_FLIGHT { self.newest } else { Some(*t) };
            into.extend(token);
            token.is_some()
        })
    }

    /// Appends the token after each of a row's tokens: the sampled ones where it samples, and before
    /// that those that it is fed. What is not known is the token itself.
    pub fn successors(
        &self,
        row: &BatchRow,
        tokens: &[Token],
        positions: &[Position],
        sampled: &[Token],
        into: &mut Vec<Token>,
    ) {
        let prompt = self.spec.prompt.len();
        let known = |index: usize| {
            let output = || self.spec.output.get(index.checked_sub(prompt)?);
            self.spec.prompt.get(index).or_else(output).copied()
        };
        let fed = tokens.len().saturating_sub(row.drafts.count as usize);
        for (at, token) in tokens.iter().enumerate() {
            let sampled = at.checked_sub(row.sample_from as usize).and_then(|at| sampled.get(at)).copied();
            let next = sampled.or_else(|| tokens.get(at + 1).filter(|_| at + 1 < fed).copied());
            let next = next.or_else(|| known(self.spec.index_of(*positions.get(at)? + 1)));
            into.push(next.unwrap_or(*token));
        }
    }

    /// Drafts that the next step may verify by rejection sampling. All others are accepted if they
    /// equal the sampled token, which is the same for a draft that was not drawn at random.
    pub fn drafts(&mut self) -> &mut DrawnDrafts {
        &mut self.drafts
    }

    /// The result of the last `draw`; empty before the first.
    pub fn drawn(&mut self) -> &mut Drawn {
        &mut self.drawn
    }

    /// Records the fed tokens (drafts excluded) in the output history, by position.
    fn feed(&mut self, tokens: &[Token], positions: &[Position]) {
        let prompt = self.spec.prompt.len();
        for (token, position) in tokens.iter().zip(positions) {
            if let Some(place) = self.spec.index_of(*position).checked_sub(prompt) {
                self.output.truncate(place);
                self.output.push(*token);
            }
        }
    }

    /// Computes the log-probabilities of the prompt tokens that follow the scored positions.
    fn score(&mut self, row: &BatchRow, positions: &[Position], logits: &[f32], vocab: usize) {
        self.drawn.scores.clear();
        let Some(count) = row.sampling.prompt_logprobs else { return };
        let first = row.scored.start.saturating_sub(row.logits_from()) as usize;
        let rows = logits.chunks_exact(vocab).skip(first);
        let scored = positions.get(row.scored.range()).unwrap_or(&[]).iter();
        let next = scored.filter_map(|position| self.spec.prompt.get(self.spec.index_of(*position) + 1));
        self.drawn.scores.extend(next.zip(rows).map(|(token, logits)| TokenLogprobs {
            chosen: log_probability(logits, *token),
            top: top_log_probabilities(logits, count as usize),
        }));
    }

    /// Samples a token after each fed token from `sample_from` on, and scores prompt tokens.
    ///
    /// Requires `tokens` as [`SamplerRow::resolve`] gives them, and one position per token.
    /// `logits` holds `vocab` numbers (at least 1) per token from [`BatchRow::logits_from`] on,
    /// `parents` the draft tree or nothing for a chain. `work` is scratch memory for one row of
    /// logits.
    ///
    /// Linear in the logits. The result is in [`SamplerRow::drawn`]: without tokens if the logits
    /// are broken or the constraint allows none.
    #[allow(clippy::too_many_arguments)] // a row's part of a step, and memory
    pub fn draw(
        &mut self,
        row: &BatchRow,
        tokens: &[Token],
        positions: &[Position],
        parents: &[i32],
        logits: &[f32],
        vocab: usize,
        work: &mut Vec<f32>,
    ) {
        self.score(row, positions, logits, vocab);
        let sampled = row.sample_from.saturating_sub(row.logits_from()) as usize * vocab;
        let logits = logits.get(sampled..).unwrap_or(&[]);
        let drafts = (row.drafts.count as usize).min(tokens.len().saturating_sub(1));
        let root = tokens.len().saturating_sub(drafts + 1);
        self.feed(&tokens[..(root + 1).min(tokens.len())], positions);
        let committed = self.output.len();
        let parent = |node: usize| parents.get(node - 1).map_or(node - 1, |p| *p as usize);
        let mut drawn = std::mem::take(&mut self.drawn);
        drawn.tokens.clear();
        drawn.logprobs.clear();
        drawn.broken = false;
        let from = row.sample_from as usize;
        // Whether all drafts of a chain so far are accepted.
        let mut accepts = parents.is_empty();
        for (at, logits) in (from..tokens.len()).zip(logits.chunks_exact(vocab)) {
            if !can_be_drawn_from(logits) {
                drawn.broken = true;
                drawn.tokens.clear();
                drawn.logprobs.clear();
                break;
            }
            self.output.truncate(committed);
            let mut node = at.saturating_sub(root);
            while node > 0 {
                self.output.push(tokens[root + node]);
                node = parent(node);
            }
            self.output[committed..].reverse();
            let draft = tokens.get(at + 1).filter(|_| at >= root).copied();
            let verified = draft.filter(|_| accepts).map(|draft| (draft, &tokens[root + 1..], at - root));
            let Some(token) = self.draw_one(row, positions[at] + 1, logits, work, verified, at > root) else {
                drawn.tokens.clear();
                drawn.logprobs.clear();
                break;
            };
            accepts &= draft.is_none_or(|draft| draft == token);
            drawn.tokens.push(token);
            let scored = if row.sampling.processed_logprobs { &work[..] } else { logits };
            drawn.logprobs.extend(row.sampling.logprobs.map(|count| TokenLogprobs {
                chosen: log_probability(scored, token),
                top: top_log_probabilities(scored, count as usize),
            }));
        }
        self.output.truncate(committed);
        if drawn.tokens.is_empty() && row.samples() {
            // A later step already in flight feeds `IN_FLIGHT` for this ended sequence, so `newest`
            // must resolve to some token.
            self.newest = tokens.last().copied();
        }
        self.settle(&tokens[tokens.len() - drafts..], parents, root.max(from) - from, &drawn.tokens);
        self.drawn = drawn;
    }

    /// Samples one token. If the constraint allows none, it is [`NO_TOKEN`] after a draft and `None`
    /// after a committed token.
    ///
    /// After a draft that violates the constraint the token does not matter: such a draft is never
    /// accepted. `verified` is the draft at this position with all drafts of the chain and its number,
    /// if those before it are accepted.
    fn draw_one(
        &mut self,
        row: &BatchRow,
        position: Position,
        logits: &[f32],
        work: &mut Vec<f32>,
        verified: Option<(Token, &[Token], usize)>,
        after_draft: bool,
    ) -> Option<Token> {
        let allowed = match self.follower.as_mut().map(|follower| follower.allowed(&self.output)) {
            None | Some(Allowed::Any) => None,
            Some(Allowed::Only(mask)) => Some(mask),
            Some(Allowed::Nothing) if after_draft => return Some(NO_TOKEN),
            Some(Allowed::Nothing) => return None,
        };
        let early = self.spec.index_of(position) < self.spec.prompt.len() + self.spec.min_tokens as usize;
        let context = Context {
            prompt: &self.spec.prompt,
            output: &self.output,
            bias: &self.spec.bias,
            suppressed: if early { &self.spec.suppressed_until_min } else { &[] },
            allowed,
            chain: self.spec.chain.as_deref(),
            mirostat: self.spec.mirostat.as_ref(),
            position: self.spec.undropped(position),
        };
        // Rejection sampling would leave its residual in `work`, not the logits to report.
        let verified = verified.filter(|_| !row.sampling.processed_logprobs);
        let drawn = verified.and_then(|(draft, drafts, n)| {
            Some((draft, self.drafts.distribution(drafts, position - n as Position, n)?))
        });
        Some(match drawn {
            Some(drawn) => accept_or_redraw(logits, &row.sampling, &context, drawn, work),
            None => draw_from(logits, &row.sampling, &context, work),
        })
    }

    /// Appends the accepted drafts to the output history and sets the newest token.
    fn settle(&mut self, drafts: &[Token], parents: &[i32], root: usize, sampled: &[Token]) {
        let Some(sampled) = sampled.get(root..).filter(|s| !s.is_empty()) else { return };
        self.accepted.clear();
        if parents.is_empty() {
            accept::chain(drafts, sampled, &mut self.accepted)
        } else {
            accept::tree(drafts, parents, sampled, &mut self.accepted)
        }
        self.output.extend(self.accepted.iter().map(|node| drafts[*node as usize - 1]));
        let last = self.accepted.last().map_or(0, |node| *node as usize);
        self.newest = sampled.get(last).copied();
        if self.newest == Some(NO_TOKEN) {
            // As after a step without tokens: what is fed for the ended sequence must resolve.
            self.newest = self.output.last().copied();
            return;
        }
        if let (Some(follower), Some(newest)) = (&mut self.follower, self.newest) {
            self.output.push(newest);
            follower.expect(&self.output);
            self.output.pop();
        }
    }
}
