//! Runs a syntax tree over the state of one rendering: statements, expressions and calls.

pub(crate) mod calls;
pub(crate) mod evaluate;
pub(crate) mod run;
