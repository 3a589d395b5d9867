//! Chat templates: the Jinja that Transformers renders, as an interpreter of our own.
//!
//! Templates come with models and are not trusted. A run has fuel, a limit on every value and on all that are there
//! at once, and a limit on depth; it reads no file and no clock. Semantics are those of the reference renderer's
//! sandbox: undefined values, Python's printing, and the refusal to change a list or mapping in place.

mod access;
mod alive;
mod ast;
mod braces;
mod budget;
mod calls;
mod evaluate;
mod expressions;
mod fault;
mod filters;
mod format;
mod json;
mod lexer;
mod methods;
mod numbers;
mod ops;
mod parser;
mod repr;
mod run;
mod sequences;
mod signatures;
mod sorting;
mod tests;
mod text_methods;
mod time;
mod value;

use crate::{Error, Result};
use fault::Fault;
use serde_json::{Map, Value as Json};

/// Largest template text, in bytes. The longest published ones have some 30,000.
const MAX_SOURCE: usize = 4 << 20;
/// A run has a thread of its own, because the depth of recursion is the template's choice.
const STACK: usize = 64 << 20;

/// What a run may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Steps: expressions and statements. Large variables give more of them: see `VALUES_PER_FUEL`.
    pub fuel: u64,
    /// Bytes of one value, and of the output.
    pub value_bytes: usize,
    /// Bytes that a run may hold at once. What it made and let go again counts as work only: a chat that is put
    /// together in one variable, message after message, makes bytes by the square of its length.
    pub total_bytes: usize,
    /// Depth of calls and expressions in each other.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fuel: 20_000_000, value_bytes: 16 << 20, total_bytes: 256 << 20, depth: 1_000 }
    }
}

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    body: Vec<ast::Stmt>,
    limits: Limits,
}

impl ChatTemplate {
    /// Compiles a template; an error names its line.
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::at("template", format!("is longer than {MAX_SOURCE} bytes")));
        }
        let body = on_own_stack(|| parser::parse(source))??;
        Ok(Self { body, limits: Limits::default() })
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Renders with these variables. `now` (seconds since 1970, UTC) is what `strftime_now` tells.
    pub fn render(&self, variables: &Map<String, Json>, now: i64) -> Result<String> {
        Ok(on_own_stack(|| run::render(&self.body, variables, now, self.limits))??)
    }
}

fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, Fault> + Send) -> Result<Result<T, Fault>> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|e| Error::at("template", e))?;
        thread.join().map_err(|_| Error::at("template", "the renderer failed"))
    })
}
