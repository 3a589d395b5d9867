//! What templates call: operators, attribute access, filters, tests and methods.
//!
//! Each function takes the state of the rendering, and charges it for the memory and steps that it takes.

pub(crate) mod access;
pub(crate) mod filters;
pub(crate) mod format;
pub(crate) mod is_tests;
pub(crate) mod iterate;
pub(crate) mod methods;
pub(crate) mod numbers;
pub(crate) mod operators;
pub(crate) mod sequences;
pub(crate) mod signatures;
pub(crate) mod str_format;
pub(crate) mod text_methods;
