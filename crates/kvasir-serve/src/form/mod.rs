//! Answers that must have a form: a JSON schema, a grammar, a regular expression, one of several texts, calls of tools.
//!
//! A [`Shape`] says what is asked for, [`Vocabulary::compile`] makes a [`Constraint`](kvasir_sample::Constraint) of it once per request, and each
//! sequence follows that constraint on its own. What tokens may come next is worked out on a side thread while the step that
//! needs it runs.

mod budget;
mod call_grammars;
mod closed;
mod ebnf;
mod follow;
mod helper;
mod limits;
mod shape;
mod vocabulary;
mod warden;

pub use budget::Budget;
pub use call_grammars::{BehindLast, CallGrammars, CallsBeginning};
pub(crate) use shape::text_patterns;
pub use shape::{Calls, Part, Raw, Shape};
pub use vocabulary::{Refused, Vocabulary};
