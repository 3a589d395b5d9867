//! Drafts for speculative decoding: what to propose, before the target model verifies it.
//!
//! - [`NgramIndex`] and [`SuffixAutomaton`] find what followed earlier occurrences of the context;
//!   no model is needed.
//! - [`ModelDrafter`] runs a draft program behind the target, in the same executor: an EAGLE-3 head, a
//!   multi-token-prediction (MTP) layer, or a smaller model.
//!
//! In reading order: `suffix_automaton`, `ngram`; `tree`, `plan`, `written` → `model`.
//!
//! This crate knows tokens, plans and logits. It must not know a request, a policy or a kernel.

#![forbid(unsafe_code)]

pub(crate) mod model;
pub(crate) mod ngram;
pub(crate) mod plan;
pub(crate) mod suffix_automaton;
pub(crate) mod tree;
pub(crate) mod written;

pub use crate::model::{DraftModelKind, Forward, ModelDrafter};
pub use crate::ngram::NgramIndex;
pub use crate::suffix_automaton::{State, SuffixAutomaton};
pub use crate::tree::TreeShape;
