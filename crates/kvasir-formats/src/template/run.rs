//! The tree-walking interpreter: state, scopes, statements and loops.

use super::{
    Limits,
    access::iterate,
    alive,
    ast::{Args, ExprKind, For, Stmt, StmtKind, Target},
    budget::{SCOPE, VALUES_PER_FUEL, VARIABLE},
    fault::{Fault, Run},
    filters,
    repr::write_str,
    value::{Key, Value},
};
use indexmap::IndexMap;
use serde_json::{Map, Value as Json};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// State of one rendering. Scopes, namespaces and loops are table entries referred to by index, so
/// values cannot form cycles.
pub(super) struct Interp {
    pub(super) scopes: Vec<Scope>,
    pub(super) namespaces: Vec<IndexMap<Key, Value>>,
    pub(super) loops: Vec<LoopState>,
    pub(super) cyclers: Vec<(Vec<Value>, usize)>,
    pub(super) joiners: Vec<(String, bool)>,
    pub(super) limits: Limits,
    pub(super) fuel: u64,
    /// Upper bound on live bytes: the last recount plus everything allocated since.
    pub(super) bytes: usize,
    /// Bytes allocated by running statements, excluding nested statements that have ended.
    pub(super) unfinished: usize,
    /// Bytes of output and of the text that blocks and macros are still producing.
    pub(super) written: usize,
    /// Addresses of the caller's input values, excluded from the memory count.
    pub(super) inputs: HashSet<usize>,
    pub(super) depth: usize,
    pub(super) now: i64,
}

#[derive(Default)]
pub(super) struct Scope {
    pub(super) vars: HashMap<Arc<str>, Value>,
    parent: Option<usize>,
    /// Whether a macro captured this scope; it then outlives its block.
    captured: bool,
}

/// A running loop.
///
/// A filtered loop looks ahead only as far as requested, since the filter may depend on effects of
/// the body.
pub(super) struct LoopState {
    /// Items that passed the filter so far.
    pub(super) items: Vec<Value>,
    /// Items not yet filtered.
    pub(super) rest: std::vec::IntoIter<Value>,
    pub(super) index: usize,
    pub(super) depth: usize,
    pub(super) changed: Option<Vec<Value>>,
    pub(super) node: Arc<For>,
    pub(super) scope: usize,
}

/// Evaluated positional and named arguments.
#[derive(Default)]
pub(super) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Given {
    /// The argument at this position or of this name.
    pub(super) fn get(&self, place: usize, name: &str) -> Option<&Value> {
        self.positional.get(place).or_else(|| self.named(name))
    }

    pub(super) fn named(&self, name: &str) -> Option<&Value> {
        self.named.iter().find(|(n, _)| &**n == name).map(|(_, v)| v)
    }
}

enum Flow {
    Next,
    Break,
    Continue,
}

pub(super) fn render(
    body: &[Stmt],
    variables: &Map<String, Json>,
    now: i64,
    mut limits: Limits,
) -> Run<String> {
    let each = limits.fuel / VALUES_PER_FUEL;
    limits.fuel = limits.fuel.saturating_add(each.saturating_mul(alive::count(variables.values())));
    let mut interp = Interp {
        scopes: vec![Scope::default()],
        namespaces: Vec::new(),
        loops: Vec::new(),
        cyclers: Vec::new(),
        joiners: Vec::new(),
        limits,
        fuel: limits.fuel,
        bytes: 0,
        unfinished: 0,
        written: 0,
        inputs: HashSet::new(),
        depth: 0,
        now,
    };
    for (name, value) in variables {
        interp.assign_name(0, name.as_str().into(), Value::from_json(value)?)?;
    }
    let scope = interp.open_scope(0)?;
    let mut out = String::new();
    interp.exec(body, scope, &mut out)?;
    Ok(out)
}

impl Interp {
    pub(super) fn open_scope(&mut self, parent: usize) -> Run<usize> {
        self.room(SCOPE)?;
        self.scopes.push(Scope { parent: Some(parent), ..Scope::default() });
        Ok(self.scopes.len() - 1)
    }

    pub(super) fn close_scope(&mut self, scope: usize) {
        if scope + 1 == self.scopes.len() && !self.scopes.last().is_some_and(|s| s.captured) {
            self.scopes.pop();
        }
    }

    pub(super) fn capture(&mut self, scope: usize) {
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.captured = true;
        }
    }

    pub(super) fn assign_name(&mut self, scope: usize, name: Arc<str>, value: Value) -> Run<()> {
        self.room(VARIABLE)?;
        if let Some(scope) = self.scopes.get_mut(scope) {
            scope.vars.insert(name, value);
        }
        Ok(())
    }

    pub(super) fn lookup(&self, mut scope: usize, name: &str) -> Value {
        while let Some(s) = self.scopes.get(scope) {
            if let Some(value) = s.vars.get(name) {
                return value.clone();
            }
            match s.parent {
                Some(parent) => scope = parent,
                None => break,
            }
        }
        super::calls::global(name).unwrap_or_else(|| Value::undefined(&format!("'{name}'")))
    }

    fn emit(&mut self, value: &Value, out: &mut String) -> Run<()> {
        let before = out.len();
        write_str(value, out);
        self.check_output(before, out)
    }

    fn check_output(&mut self, before: usize, out: &str) -> Run<()> {
        if out.len() > self.limits.value_bytes {
            return Err(Fault::new(format!("the output is longer than {} bytes", self.limits.value_bytes)));
        }
        self.written += out.len() - before;
        self.room(out.len() - before)
    }

    pub(super) fn run_body(&mut self, body: &[Stmt], scope: usize) -> Run<String> {
        self.finishing(|i| {
            let mut out = String::new();
            i.exec(body, scope, &mut out)?;
            i.written -= out.len();
            Ok(out)
        })
    }

    fn exec(&mut self, body: &[Stmt], scope: usize, out: &mut String) -> Run<Flow> {
        for stmt in body {
            let run = |i: &mut Self| i.finishing(|i| i.statement(stmt, scope, out));
            let flow = self.deeper(run).map_err(|e| e.on(stmt.line))?;
            if !matches!(flow, Flow::Next) {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, stmt: &Stmt, scope: usize, out: &mut String) -> Run<Flow> {
        match &stmt.kind {
            StmtKind::Text(text) => {
                let before = out.len();
                out.push_str(text);
                self.check_output(before, out)?;
            }
            StmtKind::Print(expr) => {
                let value = self.eval(expr, scope)?;
                self.emit(&value, out)?;
            }
            StmtKind::If(branches, otherwise) => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.truth() {
                        return self.exec(body, scope, out);
                    }
                }
                return self.exec(otherwise, scope, out);
            }
            StmtKind::For(node) => {
                let value = self.eval(&node.iter, scope)?.plain();
                self.run_loop(node, value, scope, 1, out)?;
            }
            StmtKind::Set(target, expr) => {
                let value = self.eval(expr, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock(target, filters, body) => {
                let inner = self.open_scope(scope)?;
                let text = self.run_body(body, inner)?;
                self.close_scope(inner);
                let value = self.filter_text(text, filters, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::FilterBlock(filters, body) => {
                let inner = self.open_scope(scope)?;
                let text = self.run_body(body, inner)?;
                self.close_scope(inner);
                let value = self.filter_text(text, filters, scope)?;
                self.emit(&value, out)?;
            }
            StmtKind::Macro(node) => {
                self.capture(scope);
                self.assign_name(scope, node.name.clone(), Value::Macro(node.clone(), scope))?;
            }
            StmtKind::CallBlock(caller, call) => {
                self.capture(scope);
                let ExprKind::Call(callee, args) = &call.kind else { return Ok(Flow::Next) };
                let callee = self.eval(callee, scope)?;
                let mut given = self.args(args, scope)?;
                given.named.push(("caller".into(), Value::Macro(caller.clone(), scope)));
                let value = self.call(&callee, given)?;
                self.emit(&value, out)?;
            }
            StmtKind::With(bindings, body) => {
                let inner = self.open_scope(scope)?;
                for (target, expr) in bindings {
                    let value = self.eval(expr, scope)?;
                    self.assign(target, value, inner)?;
                }
                let flow = self.exec(body, inner, out)?;
                self.close_scope(inner);
                return Ok(flow);
            }
            StmtKind::Scoped(body) => {
                let inner = self.open_scope(scope)?;
                let flow = self.exec(body, inner, out)?;
                self.close_scope(inner);
                return Ok(flow);
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn filter_text(&mut self, text: String, filters: &[(Arc<str>, Args)], scope: usize) -> Run<Value> {
        let mut value = self.text(text)?;
        for (name, args) in filters {
            let given = self.args(args, scope)?;
            value = filters::apply(self, name, value, &given)?;
        }
        Ok(value)
    }

    pub(super) fn run_loop(
        &mut self,
        node: &Arc<For>,
        over: Value,
        scope: usize,
        depth: usize,
        out: &mut String,
    ) -> Run<()> {
        let (id, rest) = (self.loops.len(), iterate(self, &over)?.into_iter());
        let state =
            LoopState { items: Vec::new(), rest, index: 0, depth, changed: None, node: node.clone(), scope };
        self.loops.push(state);
        let (mut index, mut reached_end) = (0, false);
        while self.look_ahead(id, index)? {
            self.burn()?;
            let flow = self.finishing(|i| i.round(id, index, scope, out))?;
            index += 1;
            reached_end |= matches!(flow, Flow::Next);
            if matches!(flow, Flow::Break) {
                break;
            }
        }
        self.loops.truncate(id);
        if !reached_end {
            // The else branch also runs if every iteration ended early by `continue` or `break`.
            let inner = self.open_scope(scope)?;
            self.exec(&node.otherwise, inner, out)?;
            self.close_scope(inner);
        }
        Ok(())
    }

    /// Runs one iteration of a loop.
    fn round(&mut self, id: usize, index: usize, scope: usize, out: &mut String) -> Run<Flow> {
        let Some(state) = self.loops.get_mut(id) else { return Ok(Flow::Break) };
        state.index = index;
        let (node, item) = (state.node.clone(), state.items.get(index).cloned().unwrap_or(Value::None));
        let inner = self.open_scope(scope)?;
        self.assign_name(inner, "loop".into(), Value::Loop(id))?;
        self.assign(&node.target, item, inner)?;
        let flow = self.exec(&node.body, inner, out)?;
        self.close_scope(inner);
        Ok(flow)
    }

    /// Whether the loop has an item at `index`; evaluates the filter as far as needed.
    pub(super) fn look_ahead(&mut self, id: usize, index: usize) -> Run<bool> {
        loop {
            let Some(state) = self.loops.get_mut(id) else { return Ok(false) };
            if state.items.len() > index {
                return Ok(true);
            }
            let Some(item) = state.rest.next() else { return Ok(false) };
            let (node, scope) = (state.node.clone(), state.scope);
            let keep = match &node.filter {
                None => true,
                Some(filter) => self.finishing(|i| {
                    let inner = i.open_scope(scope)?;
                    i.assign(&node.target, item.clone(), inner)?;
                    let keep = i.eval(filter, inner)?.truth();
                    i.close_scope(inner);
                    Ok(keep)
                })?,
            };
            if let Some(state) = self.loops.get_mut(id).filter(|_| keep) {
                state.items.push(item);
            }
        }
    }

    fn assign(&mut self, target: &Target, value: Value, scope: usize) -> Run<()> {
        match target {
            Target::Name(name) => self.assign_name(scope, name.clone(), value)?,
            Target::Attr(object, name) => match self.lookup(scope, object) {
                Value::Namespace(id) => {
                    self.room(VARIABLE)?;
                    if let Some(namespace) = self.namespaces.get_mut(id) {
                        namespace.insert(Key(Value::Str(name.clone())), value);
                    }
                }
                _ => return Err(Fault::new("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => {
                let values = iterate(self, &value)?;
                if values.len() != targets.len() {
                    let why = format!("expected {} values to unpack, got {}", targets.len(), values.len());
                    return Err(Fault::new(why));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }
}
