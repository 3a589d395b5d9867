//! The state of one rendering: scopes, loops, namespaces, and what they have consumed.

pub(crate) mod budget;
pub(crate) mod live_memory;

use crate::error::Run;
use crate::state::budget::Limits;
use crate::state::budget::{SCOPE, VARIABLE};
use crate::syntax::ast::For;
use crate::values::value::{Key, Value};
use indexmap::IndexMap;
use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, atomic::AtomicBool},
};

/// State of one rendering. Scopes, namespaces and loops are table entries referred to by index, so
/// values cannot form cycles.
pub(crate) struct Interp {
    pub(crate) scopes: Vec<Scope>,
    pub(crate) namespaces: Vec<IndexMap<Key, Value>>,
    pub(crate) loops: Vec<LoopState>,
    pub(crate) cyclers: Vec<(Vec<Value>, usize)>,
    pub(crate) joiners: Vec<(String, bool)>,
    pub(crate) limits: Limits,
    pub(crate) fuel: u64,
    /// Set by the caller to end the run.
    pub(crate) canceled: Arc<AtomicBool>,
    /// Upper bound on live bytes: the last recount plus everything allocated since.
    pub(crate) bytes: usize,
    /// Bytes allocated by running statements, excluding nested statements that have ended.
    pub(crate) unfinished: usize,
    /// Bytes of output and of the text that blocks and macros are still producing.
    pub(crate) written: usize,
    /// Addresses of the caller's input values, excluded from the memory count.
    pub(crate) inputs: HashSet<usize>,
    pub(crate) depth: usize,
    pub(crate) now: i64,
}

#[derive(Default)]
pub(crate) struct Scope {
    pub(crate) vars: HashMap<Arc<str>, Value>,
    pub(crate) parent: Option<usize>,
    /// Whether a macro captured this scope; it then outlives its block.
    captured: bool,
}

/// A running loop.
///
/// A filtered loop looks ahead only as far as requested, since the filter may depend on effects of
/// the body.
pub(crate) struct LoopState {
    /// Items that passed the filter so far.
    pub(crate) items: Vec<Value>,
    /// Items not yet filtered.
    pub(crate) rest: std::vec::IntoIter<Value>,
    pub(crate) index: usize,
    pub(crate) depth: usize,
    pub(crate) changed: Option<Vec<Value>>,
    pub(crate) node: Arc<For>,
    pub(crate) scope: usize,
}

/// Evaluated positional and named arguments.
#[derive(Default)]
pub(crate) struct CallArgs {
    pub(crate) positional: Vec<Value>,
    pub(crate) named: Vec<(Arc<str>, Value)>,
}

impl CallArgs {
    /// The argument at this position or of this name.
    pub(crate) fn get(&self, place: usize, name: &str) -> Option<&Value> {
        self.positional.get(place).or_else(|| self.named(name))
    }

    pub(crate) fn named(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(n, _)| &**n == name).map(|(_, v)| v)
    }
}

impl Interp {
    /// An empty state with one scope.
    pub(crate) fn new(limits: Limits, now: i64, canceled: Arc<AtomicBool>) -> Self {
        Self {
            scopes: vec![Scope::default()],
            namespaces: Vec::new(),
            loops: Vec::new(),
            cyclers: Vec::new(),
            joiners: Vec::new(),
            limits,
            fuel: limits.fuel,
            canceled,
            bytes: 0,
            unfinished: 0,
            written: 0,
            inputs: HashSet::new(),
            depth: 0,
            now,
        }
    }

    pub(crate) fn open_scope(&mut self, parent: usize) -> Run<usize> {
        self.room(SCOPE)?;
        self.scopes.push(Scope { parent: Some(parent), ..Scope::default() });
        Ok(self.scopes.len() - 1)
    }

    pub(crate) fn close_scope(&mut self, scope: usize) {
        if scope + 1 == self.scopes.len() && !self.scopes.last().is_some_and(|s| s.captured) {
            self.scopes.pop();
        }
    }

    pub(crate) fn capture(&mut self, scope: usize) {
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.captured = true;
        }
    }

    pub(crate) fn assign_name(&mut self, scope: usize, name: Arc<str>, value: Value) -> Run<()> {
        self.room(VARIABLE)?;
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.vars.insert(name, value);
        }
        Ok(())
    }
}
