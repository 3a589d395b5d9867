//! From source to syntax tree: tokens, statements, expressions, and the names that they may use.

pub(crate) mod ast;
pub(crate) mod expressions;
pub(crate) mod lexer;
pub(crate) mod names;
pub(crate) mod parser;
