//! [`Growth`] grows the draft tree of one sequence, level by level, from a draft model's logits.
//!
//! 1. Every node of the frontier gets its `top_k` likeliest children. All are candidates.
//! 2. The `top_k` likeliest of the new candidates, by the product of probabilities from the root,
//!    are the next frontier.
//! 3. At the end the `nodes` likeliest candidates of all levels are kept for the target.
//!
//! With `top_k` 1 the tree is a chain. At a temperature above 0 the target samples with Gumbel noise
//! that is known in advance: the tree is grown from logits with the same noise, so that a draft
//! model that agrees with the target proposes what the target will draw.
//!
//! Under rejection sampling a chain is drawn from the draft model's own distribution, which is kept
//! for the verification. A tree is grown without noise: each of its nodes is then a fixed proposal,
//! which coupled acceptance accepts with the target's probability.

use kvasir_exec::{DraftCandidate, DrawnDrafts};
use kvasir_kv::{Position, Token};
use kvasir_sample::{Acceptance, Noise, Sampling, draw_draft};

/// Size of the draft trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    /// Levels below the newest token, at most.
    pub depth: u32,
    /// Children per node, and nodes that are expanded per level.
    pub top_k: u32,
    /// Candidates that the target verifies, at most.
    pub nodes: u32,
}

impl TreeShape {
    /// A chain of `depth` tokens.
    pub fn chain(depth: u32) -> Self {
        Self { depth, top_k: 1, nodes: depth }
    }

    /// Nodes that a draft model runs for one tree, at most, the newest token included.
    pub fn most_run(self) -> u32 {
        1 + self.depth.saturating_sub(1) * self.top_k
    }
}

/// A node to be expanded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// Its number among the candidates of the tree; −1 for the newest token.
    pub(crate) candidate: i32,
    /// Its log-probability from the root.
    pub(crate) cumulative: f32,
}

/// Log-probability that a randomly drawn draft is given. It must not depend on the draft: what decides
/// whether a draft is verified would otherwise change the distribution of the output.
const DRAWN: f32 = -0.35;

/// A logit this far below the largest adds less to the sum of exponentials than an f32 can show, even
/// if it is one of 2^18.
const NEGLIGIBLE: f32 = -30.0;

/// Scratch memory for growing trees.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    acceptance: Acceptance,
    /// Ids of the target that a draft may have.
    vocab: usize,
    probabilities: Vec<f32>,
    scores: Vec<f32>,
    top: Vec<(f32, u32)>,
    order: Vec<u32>,
}

impl Growth {
    pub(crate) fn new(acceptance: Acceptance, target_vocab: usize, to_target: Option<&[Token]>) -> Self {
        let vocab =
            to_target.and_then(|map| map.iter().max()).map_or(target_vocab, |most| *most as usize + 1);
        Self { acceptance, vocab, ..Self::default() }
    }

    /// Appends the `top_k` likeliest children of a node to the candidates of its tree, which are
    /// `candidates[first..]`.
    #[allow(clippy::too_many_arguments)] // a node and its place
    pub(crate) fn expand(
        &mut self,
        leaf: Leaf,
        level: u32,
        top_k: u32,
        logits: &[f32],
        to_target: Option<&[Token]>,
        draw: (&Sampling, Position),
        candidates: &mut Vec<DraftCandidate>,
    ) {
        let logits = self.of_target(logits, to_target);
        let target = |id: u32| to_target.map_or(id, |map| map.get(id as usize).copied().unwrap_or(id));
        let (sampling, position) = draw;
        let coupled = self.acceptance == Acceptance::Coupled;
        let logits = if sampling.is_greedy() || !coupled {
            logits
        } else {
            let noise = Noise::at(sampling.seed, position);
            let noisy =
                |(logit, id): (&f32, u32)| logit / sampling.temperature + noise.gumbel(target(id)) as f32;
            self.scores.clear();
            self.scores.extend(logits.iter().zip(0..).map(noisy));
            &self.scores
        };
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let below = logits.iter().map(|logit| logit - most).filter(|below| *below > NEGLIGIBLE);
        let sum: f64 = below.map(|below| f64::from(below).exp()).sum();
        let total = f64::from(most) + sum.ln();
        self.top.clear();
        for (logit, id) in logits.iter().zip(0u32..) {
            if self.top.len() == top_k as usize && self.top.last().is_some_and(|worst| *logit <= worst.0) {
                continue;
            }
            let at = self.top.partition_point(|better| better.0 >= *logit);
            self.top.insert(at, (*logit, id));
            self.top.truncate(top_k as usize);
        }
        for (logit, id) in &self.top {
            let log_probability = (f64::from(*logit) - total) as f32;
            candidates.push(DraftCandidate {
                token: target(*id),
                parent: leaf.candidate,
                level,
                log_probability,
                cumulative: leaf.cumulative + log_probability,
                kept: false,
            });
        }
    }

    /// The logits of ids that the target has.
    fn of_target<'a>(&self, logits: &'a [f32], to_target: Option<&[Token]>) -> &'a [f32] {
        if to_target.is_some() { logits } else { &logits[..logits.len().min(self.vocab)] }
    }

    /// Whether a node's child is drawn at random.
    pub(crate) fn draws(&self, top_k: u32, sampling: &Sampling) -> bool {
        self.acceptance == Acceptance::Rejection && top_k == 1 && !sampling.is_greedy()
    }

    /// Draws the child of a chain's last node, and keeps the distribution of it, by id of the target.
    #[allow(clippy::too_many_arguments)] // a node and its place
    pub(crate) fn draw(
        &mut self,
        leaf: Leaf,
        level: u32,
        logits: &[f32],
        to_target: Option<&[Token]>,
        (sampling, position): (&Sampling, Position),
        drawn: &mut DrawnDrafts,
        candidates: &mut Vec<DraftCandidate>,
    ) {
        let logits = self.of_target(logits, to_target);
        let id = draw_draft(logits, sampling, position, &mut self.probabilities);
        let token = match to_target {
            None => {
                drawn.probabilities.extend_from_slice(&self.probabilities);
                id
            }
            Some(map) => {
                let start = drawn.probabilities.len();
                drawn.probabilities.resize(start + self.vocab, 0.0);
                for (probability, target) in self.probabilities.iter().zip(map) {
                    drawn.probabilities[start + *target as usize] += probability;
                }
                map.get(id as usize).copied().unwrap_or(id)
            }
        };
        drawn.tokens.push(token);
        let cumulative = leaf.cumulative + DRAWN;
        let parent = leaf.candidate;
        candidates.push(DraftCandidate {
            token,
            parent,
            level,
            log_probability: DRAWN,
            cumulative,
            kept: false,
        });
    }

    /// The next frontier: the `top_k` likeliest of `new`, whose numbers start at `first`.
    pub(crate) fn frontier(
        &mut self,
        new: &[DraftCandidate],
        first: u32,
        top_k: u32,
        leaves: &mut Vec<Leaf>,
    ) {
        self.likeliest_first(new);
        leaves.clear();
        leaves.extend(
            self.order
                .iter()
                .take(top_k as usize)
                .map(|at| Leaf { candidate: (first + at) as i32, cumulative: new[*at as usize].cumulative }),
        );
    }

    /// Marks the `nodes` likeliest candidates of a tree.
    pub(crate) fn keep(&mut self, candidates: &mut [DraftCandidate], nodes: u32) {
        self.likeliest_first(candidates);
        for at in self.order.iter().take(nodes as usize) {
            candidates[*at as usize].kept = true;
        }
    }

    /// Orders candidates by falling probability; of equals the earlier one comes first.
    fn likeliest_first(&mut self, candidates: &[DraftCandidate]) {
        self.order.clear();
        self.order.extend(0..candidates.len() as u32);
        self.order.sort_unstable_by(|a, b| {
            let of = |at: &u32| candidates[*at as usize].cumulative;
            of(b).total_cmp(&of(a)).then(a.cmp(b))
        });
    }
}
