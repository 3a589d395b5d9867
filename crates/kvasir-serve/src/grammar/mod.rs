//! Structured output (constrained decoding): JSON Schema, grammars, regular expressions, choices
//! and tool calls.
//!
//! Pipeline: a [`Shape`] states the required form, [`Vocabulary::compile`] compiles it once per
//! request into a [`Constraint`](kvasir_sample::Constraint), and each sequence follows that
//! constraint with a matcher of its own. Token masks are computed on helper threads while the step
//! that needs them runs.
//!
//! Built on `llguidance`. `benches/masks.rs` measures the cost of a mask per token;
//! `crates/kvasir-cli/tests/forms` checks answers against random schemas.

mod budget;
mod call_grammars;
mod closed;
mod ebnf;
mod follow;
mod helper;
mod lark;
mod limits;
mod matcher_watchdog;
mod spec;
mod vocabulary;

pub use budget::Budget;
pub use call_grammars::{BehindLast, CallGrammars, CallsBeginning};
pub(crate) use lark::text_patterns;
pub use spec::{Calls, Part, Raw, Shape};
pub use vocabulary::{Refused, Vocabulary};
