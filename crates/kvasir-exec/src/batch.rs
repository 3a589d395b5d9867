//! The batch of one step: which tokens of which sequences run, and which logits to sample.
//!
//! A batch holds the token ids and sampling parameters. The plan of the same step holds KV slots,
//! block tables and masks. `Batch::rows[i]` and `Plan::rows[i]` describe the same sequence.
//! `Step::check_sizes` checks that they agree. Row spans cover `Batch::tokens` in order, without
//! gaps.

use kvasir_kv::{SeqId, Span, StepId, Token};
use kvasir_sample::Sampling;
use serde::{Deserialize, Serialize};

/// Placeholder for an input token that the host has not seen yet.
///
/// The executor replaces it with the newest sampled token in the row's token-pool slot. So a step
/// can be submitted before the output of the previous one is read back.
pub const IN_FLIGHT: Token = Token::MAX;

/// Index into the token pool, where the executor keeps a sequence's newest sampled token and its
/// sampler state.
///
/// A lease: the engine reissues it only after the last step that names it has retired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolRow(pub u32);

/// The composition of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// Prefill rows only.
    Prefill,
    /// Decode rows only: one token per sequence, plus its drafts.
    #[default]
    Decode,
    /// Prefill and decode rows together (chunked prefill).
    Mixed,
    /// A dummy run: warm-up, or lockstep with other replicas. All of its rows are dummy rows.
    Dummy,
}

/// What a row does. The scheduler decides it once; the engine, the executors and the statistics read
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// Feeds known tokens: a prompt chunk, or the recomputation of a preempted sequence.
    #[default]
    Prefill,
    /// Plain decode: feeds the newest token alone and samples the next one.
    Decode,
    /// Decode of several tokens: the newest one with speculative drafts, or all those that the executor
    /// sampled by itself in the step before.
    MultiDecode,
    /// A dummy row: fills a step up to a static shape, or warms the executor. It reads nothing, its K
    /// and V go to a dummy slot at most, and its output is empty. No scheduler feeds one.
    Dummy,
}

impl RowKind {
    /// Whether the row feeds known tokens.
    pub fn is_prefill(self) -> bool {
        self == Self::Prefill
    }
}

/// The speculative draft tokens of one row: the last `count` of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafts {
    /// Number of drafts; 0 if the row has none.
    pub count: u32,
    /// Parents of the drafts in [`Batch::parents`] if they form a token tree; `None` if they form a
    /// chain.
    ///
    /// Node 0 is the newest committed token, and draft `i` is node `i + 1`. A draft's parent is
    /// never −1.
    pub tree: Option<Span>,
}

/// One sequence's part of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchRow {
    /// The engine's request id; opaque to the executor.
    pub request: u64,
    /// The sequence in the cache.
    pub seq: SeqId,
    /// Prefill or decode.
    pub kind: RowKind,
    /// Its input tokens in [`Batch::tokens`].
    pub tokens: Span,
    /// Tokens of the sequence that were in the KV cache before this step.
    pub cached: u32,
    /// Sequence length after the step, in tokens.
    pub context_len: u32,
    /// Tokens in the sequence's last KV block after the step.
    pub last_block_tokens: u32,
    /// Index into the row's tokens of the first one whose logits are sampled; all later ones are
    /// sampled too.
    ///
    /// Equals `tokens.len` for a prefill chunk that does not end its prompt.
    pub sample_from: u32,
    /// Tokens of the row (counted from its first) after which the log-probability of the next
    /// prompt token is reported (`prompt_logprobs`).
    #[serde(default)]
    pub scored: Span,
    /// The sequence's token-pool index.
    pub pool_row: PoolRow,
    /// Its speculative drafts.
    pub drafts: Drafts,
    /// Whether the row's committed tokens are fed to the executor's draft model, if it has one.
    #[serde(default)]
    pub feeds_draft: bool,
    /// Levels of drafts that the executor's draft model, if it has one, shall propose after this
    /// step; see [`Output::proposals`](crate::output::Output::proposals).
    #[serde(default)]
    pub draft_depth: u32,
    /// Sampling parameters.
    pub sampling: Sampling,
}

impl BatchRow {
    /// Whether the row yields at least one sampled token.
    pub fn samples(&self) -> bool {
        self.sample_from < self.tokens.len
    }

    /// Whether the hidden state of the row's last token is wanted: on the last prefill row of a
    /// request with `Sampling::hidden`.
    pub fn wants_hidden(&self) -> bool {
        self.sampling.hidden && self.kind.is_prefill() && self.samples()
    }

    /// Index into the row's tokens of the first one whose logits are computed, for scoring or
    /// sampling; all later ones are computed too.
    pub fn logits_from(&self) -> u32 {
        match self.scored.len {
            0 => self.sample_from,
            _ => self.sample_from.min(self.scored.start),
        }
    }
}

/// The immutable description of what one step runs. Block tables are in the step's plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The step id.
    pub step: StepId,
    /// The composition of the step.
    pub kind: StepKind,
    /// Input tokens of all rows, concatenated. An entry may be [`IN_FLIGHT`].
    pub tokens: Vec<Token>,
    /// One entry per sequence, in plan order.
    pub rows: Vec<BatchRow>,
    /// Parents of all tree drafts, concatenated; indexed by `Drafts::tree`.
    pub parents: Vec<i32>,
    /// Draft tokens that each decode row has room for in this step.
    pub spec_steps: u32,
    /// Whether the raw logits (before any logits processor) are returned beside the sampled tokens.
    pub logits: bool,
}

impl Batch {
    /// Clears it for the next step and keeps the allocated capacity. The kind is then `Decode`.
    pub fn reset(&mut self, step: StepId) {
        self.step = step;
        self.kind = StepKind::Decode;
        self.tokens.clear();
        self.rows.clear();
        self.parents.clear();
        self.spec_steps = 0;
        self.logits = false;
    }

    /// Whether this is a dummy run.
    pub fn is_dummy(&self) -> bool {
        self.kind == StepKind::Dummy
    }

    /// `(rows, tokens)` of the prefill rows, and of the decode rows.
    pub fn counts(&self) -> ((usize, usize), (usize, usize)) {
        let (mut prefills, mut decodes) = ((0, 0), (0, 0));
        for row in &self.rows {
            let (rows, tokens) = match row.kind {
                RowKind::Prefill => &mut prefills,
                RowKind::Decode | RowKind::MultiDecode => &mut decodes,
                RowKind::Dummy => continue,
            };
            *rows += 1;
            *tokens += row.tokens.len as usize;
        }
        (prefills, decodes)
    }
}
