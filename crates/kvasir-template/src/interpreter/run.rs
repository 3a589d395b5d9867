//! The tree-walking interpreter: statements and loops.

use crate::builtins::iterate::iterate;
use crate::error::{Run, TemplateError};
use crate::interpreter::calls::global;
use crate::state::budget::Limits;
use crate::state::budget::VARIABLE;
use crate::state::{Interp, LoopState, live_memory};
use crate::syntax::ast::{Args, ExprKind, For, Stmt, StmtKind, Target};
use crate::values::repr::write_str;
use crate::values::value::{Key, Value};
use serde_json::{Map, Value as Json};
use std::sync::{Arc, atomic::AtomicBool};

enum Flow {
    Next,
    Break,
    Continue,
}

pub(crate) fn render(
    body: &[Stmt],
    variables: &Map<String, Json>,
    now: i64,
    mut limits: Limits,
    canceled: Arc<AtomicBool>,
) -> Run<String> {
    let more = limits.fuel_per_value.saturating_mul(live_memory::count(variables.values()));
    limits.fuel = limits.fuel.saturating_add(more).min(limits.max_fuel);
    let mut interp = Interp::new(limits, now, canceled);
    for (name, value) in variables {
        interp.assign_name(0, name.as_str().into(), Value::from_json(value)?)?;
    }
    let scope = interp.open_scope(0)?;
    let mut out = String::new();
    interp.exec(body, scope, &mut out)?;
    Ok(out)
}

impl Interp {
    pub(crate) fn lookup(&self, mut scope: usize, name: &str) -> Value {
        while let Some(s) = self.scopes.get(scope) {
            if let Some(value) = s.vars.get(name) {
                return value.clone();
            }
            match s.parent {
                Some(parent) => scope = parent,
                None => break,
            }
        }
        global(name).unwrap_or_else(|| Value::undefined(&format!("'{name}'")))
    }

    fn emit(&mut self, value: &Value, out: &mut String) -> Run<()> {
        let before = out.len();
        write_str(value, out);
        self.check_output(before, out)
    }

    fn check_output(&mut self, before: usize, out: &str) -> Run<()> {
        if out.len() > self.limits.value_bytes {
            return Err(TemplateError::new(format!(
                "the output is longer than {} bytes",
                self.limits.value_bytes
            )));
        }
        self.written += out.len() - before;
        self.room(out.len() - before)
    }

    pub(crate) fn run_body(&mut self, body: &[Stmt], scope: usize) -> Run<String> {
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
            value = self.apply_filter(name, value, &given)?;
        }
        Ok(value)
    }

    pub(crate) fn run_loop(
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
    pub(crate) fn look_ahead(&mut self, id: usize, index: usize) -> Run<bool> {
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
                _ => return Err(TemplateError::new("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => {
                let values = iterate(self, &value)?;
                if values.len() != targets.len() {
                    let why = format!("expected {} values to unpack, got {}", targets.len(), values.len());
                    return Err(TemplateError::new(why));
                }
                for (target, value) in targets.iter().zip(values) {
                    self.assign(target, value, scope)?;
                }
            }
        }
        Ok(())
    }
}
