//! Chat templates: a sandboxed Jinja2 interpreter, compatible with Transformers'
//! `apply_chat_template`.
//!
//! ```
//! use serde_json::{Map, json};
//! # fn main() -> Result<(), kvasir_template::TemplateError> {
//! let template = kvasir_template::ChatTemplate::new("{% for m in messages %}<{{ m.role }}>{% endfor %}")?;
//! let variables = Map::from_iter([("messages".to_owned(), json!([{"role": "user"}]))]);
//! assert_eq!(template.render(&variables, 0)?, "<user>");
//! # Ok(()) }
//! ```
//!
//! In reading order: `syntax` (tokens, statements, expressions), `values` (Python's values and how
//! they print), `state` (scopes, fuel and memory of one rendering), `builtins` (operators, filters,
//! tests, methods), `interpreter` (the tree walk).
//!
//! Templates come with models and are untrusted. A run has limited fuel, value size, total memory
//! and recursion depth (`state::budget`); it reads no files and no clock. Undefined values, Python's
//! formatting and the immutable sandbox follow the reference renderer. Guarded by
//! `tests/templates.rs` and the `template` fuzz target.

#![forbid(unsafe_code)]

pub(crate) mod builtins;
mod error;
pub(crate) mod interpreter;
mod state;
pub(crate) mod syntax;
pub(crate) mod values;

pub use crate::error::TemplateError;
pub use crate::state::budget::Limits;
pub use crate::values::time::strftime;

use serde_json::{Map, Value as Json};
use std::sync::{Arc, atomic::AtomicBool};

/// Maximum template source, in bytes. The longest published ones have about 30,000.
const MAX_SOURCE: usize = 4 << 20;
/// Stack size. Compilation and rendering run on their own thread, since the template determines the
/// recursion depth.
const STACK: usize = 64 << 20;

/// A compiled chat template. Rendering is reentrant.
#[derive(Debug)]
pub struct ChatTemplate {
    body: Vec<crate::syntax::ast::Stmt>,
    limits: Limits,
}

impl ChatTemplate {
    /// Compiles a template. The error names its line.
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE {
            return Err(TemplateError::new(format!("is longer than {MAX_SOURCE} bytes")));
        }
        let body = on_own_stack(|| crate::syntax::parser::parse(source))?;
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
    pub fn render(&self, variables: &Map<String, Json>, now: i64) -> Result<String, TemplateError> {
        self.render_cancelable(variables, now, &Arc::default())
    }

    /// [`render`](Self::render), which fails soon after `canceled` is set.
    pub fn render_cancelable(
        &self,
        variables: &Map<String, Json>,
        now: i64,
        canceled: &Arc<AtomicBool>,
    ) -> Result<String, TemplateError> {
        let canceled = canceled.clone();
        on_own_stack(|| crate::interpreter::run::render(&self.body, variables, now, self.limits, canceled))
    }
}

fn on_own_stack<T: Send>(work: impl FnOnce() -> Result<T, TemplateError> + Send) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK);
        let thread = thread.spawn_scoped(scope, work).map_err(|e| TemplateError::new(e.to_string()))?;
        thread.join().unwrap_or_else(|_| Err(TemplateError::new("the renderer failed")))
    })
}
