//! Chat templates: a sandboxed Jinja2 interpreter, compatible with Transformers'
//! `apply_chat_template`.
//!
//! Pipeline: `lexer` (tokens), `parser` and `expressions` (AST), `run` and `evaluate` (tree-walking
//! interpreter).
//!
//! Templates come with models and are untrusted. A run has limited fuel, value size, total memory
//! and recursion depth (`budget`); it reads no files and no clock. Undefined values, Python's
//! formatting and the immutable sandbox follow the reference renderer. Guarded by
//! `tests/templates.rs` and the `template` fuzz target.

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

/// Maximum template source, in bytes. The longest published ones have about 30,000.
const MAX_SOURCE: usize = 4 << 20;
/// Stack size. Compilation and rendering run on their own thread, since the template determines the
/// recursion depth.
const STACK: usize = 64 << 20;

/// Resource limits of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Fuel: number of expressions and statements. Grows with the input variables: see
    /// `VALUES_PER_FUEL`.
    pub fuel: u64,
    /// Maximum bytes of one value, and of the output.
    pub value_bytes: usize,
    /// Maximum bytes live at once. Released memory only costs fuel: a chat concatenated in one
    /// variable allocates quadratically in its length.
    pub total_bytes: usize,
    /// Maximum nesting of calls and expressions.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fuel: 20_000_000, value_bytes: 16 << 20, total_bytes: 256 << 20, depth: 1_000 }
    }
}

/// A compiled chat template. Rendering is reentrant.
#[derive(Debug)]
pub struct ChatTemplate {
    body: Vec<ast::Stmt>,
    limits: Limits,
}

impl ChatTemplate {
    /// Compiles a template. The error names its line.
    pub fn new(source: &str) -> Result<Self> {
        if source.len() > MAX_SOURCE {
            return Err(Error::at("template", format!("is longer than {MAX_SOURCE} bytes")));
        }
        let body = on_own_stack(|| parser::parse(source))??;
        Ok(Self { body, limits: Limits::default() })
    }

    /// Replaces the default limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Renders with these variables. `now` (Unix time in seconds, UTC) is the clock of
    /// `strftime_now`.
    ///
    /// Spawns a thread for the duration of the call.
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
