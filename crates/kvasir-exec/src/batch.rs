use kvasir_kv::{SeqId, Span, StepId, Token};
use kvasir_sample::Sampling;
use serde::{Deserialize, Serialize};

/// An input token that the host has not seen yet: the executor takes it from the row's place in the token pool.
pub const IN_FLIGHT: Token = Token::MAX;

/// A sequence's place in the token pool, where the executor keeps its newest sampled token and its sampler state.
/// A lease: it is handed on only when the last step naming it has retired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolRow(pub u32);

/// What a step consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// Prompts only.
    Prefill,
    /// One token (and drafts) per sequence.
    #[default]
    Decode,
    /// Both.
    Mixed,
    /// Nothing real: warm-up, lockstep with other replicas, or padding. It writes nothing, and every row's output is empty.
    Dummy,
}

/// What one row does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Feeds known tokens: a prompt, or everything again after a preemption.
    #[default]
    Prefill,
    /// Feeds the newest token, and drafts behind it.
    Decode,
}

/// Draft tokens of one row: the last `count` of its tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drafts {
    /// How many; 0 for none.
    pub count: u32,
    /// Their parents in [`Batch::parents`] when they are a tree, else they are a chain. Parents are numbered from
    /// the newest committed token, which is node 0 of the row's verification; −1 is never used for a draft.
    pub tree: Option<Span>,
}

/// One sequence's part of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchRow {
    /// The request, as the engine numbers it; opaque here.
    pub request: u64,
    /// The sequence in the cache.
    pub seq: SeqId,
    /// Prefill or decode.
    pub phase: Phase,
    /// Its tokens in [`Batch::tokens`].
    pub tokens: Span,
    /// Tokens of it whose K and V were there before the step.
    pub cached: u32,
    /// Length after the step.
    pub context_len: u32,
    /// Tokens in its last block after the step.
    pub last_block_tokens: u32,
    /// The first of `tokens` whose logits are sampled; all from there on are. Equal to `tokens.len` when the row is a
    /// chunk that is not its prompt's last.
    pub sample_from: u32,
    /// Those of `tokens`, counted from the row's first, after which the log-probability of the prompt's next token is reported.
    #[serde(default)]
    pub scored: Span,
    /// Its place in the token pool.
    pub pool_row: PoolRow,
    /// Its drafts.
    pub drafts: Drafts,
    /// How to sample.
    pub sampling: Sampling,
}

impl BatchRow {
    /// Whether the row yields at least one token.
    pub fn samples(&self) -> bool {
        self.sample_from < self.tokens.len
    }

    /// Whether it feeds one token to have the next one, and nothing else.
    pub fn is_one_decode(&self) -> bool {
        self.phase == Phase::Decode && self.tokens.len == 1 && self.samples() && self.drafts.count == 0
    }

    /// Whether the hidden state behind the row's last token is wanted: with the last row of a prompt whose request asked.
    pub fn wants_hidden(&self) -> bool {
        self.sampling.hidden && self.phase == Phase::Prefill && self.samples()
    }

    /// The first of `tokens` whose logits are wanted, to be scored or sampled; all from there on are.
    pub fn logits_from(&self) -> u32 {
        match self.scored.len {
            0 => self.sample_from,
            _ => self.sample_from.min(self.scored.start),
        }
    }
}

/// The immutable snapshot of what one step runs. The block tables are in the step's plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Batch {
    /// The step.
    pub step: StepId,
    /// What it consists of.
    pub kind: StepKind,
    /// All rows' input tokens, row after row, or [`IN_FLIGHT`].
    pub tokens: Vec<Token>,
    /// The sequences, in order.
    pub rows: Vec<BatchRow>,
    /// Parents of all tree drafts.
    pub parents: Vec<i32>,
    /// Draft tokens that every decode row has room for in this step.
    pub spec_steps: u32,
    /// Whether the logits themselves are wanted beside the sampled tokens, as the model yields them, before any processor.
    pub logits: bool,
}

impl Batch {
    /// Empties it for the next step, keeping its memory.
    pub fn reset(&mut self, step: StepId) {
        self.step = step;
        self.kind = StepKind::Decode;
        self.tokens.clear();
        self.rows.clear();
        self.parents.clear();
        self.spec_steps = 0;
        self.logits = false;
    }

    /// Whether it is a dummy run.
    pub fn is_dummy(&self) -> bool {
        self.kind == StepKind::Dummy
    }

    /// Tokens over all rows.
    pub fn total_tokens(&self) -> usize {
        self.tokens.len()
    }

    /// Rows and tokens of one phase.
    pub fn count(&self, phase: Phase) -> (usize, usize) {
        let rows = self.rows.iter().filter(|row| row.phase == phase);
        rows.fold((0, 0), |(n, tokens), row| (n + 1, tokens + row.tokens.len as usize))
    }
}
