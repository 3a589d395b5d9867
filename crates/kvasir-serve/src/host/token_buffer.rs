//! Buffer between the engine's thread and the reader of one answer.
//!
//! Output accumulates until it is read, so a slow reader gets more at once. Buffers are reused.

use kvasir_engine::Summary;
use kvasir_exec::TokenLogprobs;
use kvasir_kv::Token;
use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    task::Waker,
    time::Instant,
};

/// Output of one answer since it was last read. Its buffers are reused.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOutput {
    /// New tokens.
    pub tokens: Vec<Token>,
    /// Their log-probabilities, if requested.
    pub logprobs: Vec<TokenLogprobs>,
    /// Log-probabilities of the prompt's tokens from the second on, with the first output if
    /// requested.
    pub scores: Vec<TokenLogprobs>,
    /// Hidden state of the prompt's last token, with the first output if requested.
    pub hidden: Vec<f32>,
    /// The outcome, with the last output.
    pub ended: Option<Summary>,
}

impl RequestOutput {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.logprobs.clear();
        self.scores.clear();
        self.hidden.clear();
        self.ended = None;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.scores.is_empty() && self.ended.is_none()
    }
}

/// Accumulates an answer's output, and holds the waker of its reader.
#[derive(Default)]
pub(crate) struct TokenBuffer {
    pub(crate) output: RequestOutput,
    pub(crate) waker: Option<Waker>,
    /// No more output: the engine has stopped.
    pub(crate) closed: bool,
    /// Time of the last delivery, for inter-token latency.
    pub(crate) delivered_at: Option<Instant>,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder of these locks can leave them half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
