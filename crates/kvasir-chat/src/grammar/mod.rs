//! Structured output (constrained decoding): JSON Schema, grammars, regular expressions, choices
//! and tool calls.
//!
//! Pipeline: a [`Shape`] states the required form, [`Vocabulary::compile`] compiles it once per
//! request into a [`Constraint`](kvasir_sample::Constraint), and each sequence follows that
//! constraint with a matcher of its own. Token masks are computed on helper threads while the step
//! that needs them runs.
//!
//! Knows no request, no dialect and no socket; builds on `scan` and on the `llguidance` library.
//! `benches/masks.rs` measures the cost of a mask per token; `structured_output` of `kvasir-cli` checks
//! answers against random schemas.

pub(crate) mod answer_classifier;
pub(crate) mod answer_constraint;
pub(crate) mod call_grammars;
pub(crate) mod call_scanner;
pub(crate) mod closed_objects;
pub(crate) mod ebnf;
pub(crate) mod format_or_calls;
pub(crate) mod lark;
pub(crate) mod limits;
pub(crate) mod mask_threads;
pub(crate) mod matcher_state;
pub(crate) mod matcher_watchdog;
pub(crate) mod reasoning_budget;
pub(crate) mod rehearsal;
pub(crate) mod spec;
pub(crate) mod token_rules;
pub(crate) mod token_text;
pub(crate) mod vocabulary;

pub use crate::grammar::answer_classifier::AnswerClassifier;
pub use crate::grammar::call_grammars::{BehindLast, CallGrammars, CallsBeginning};
pub use crate::grammar::reasoning_budget::ReasoningBudget;
pub use crate::grammar::spec::{Calls, Part, Raw, Shape};
pub use crate::grammar::token_rules::TokenRules;
pub use crate::grammar::vocabulary::{GrammarError, Vocabulary};
