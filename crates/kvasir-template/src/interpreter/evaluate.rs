//! The expression evaluator.

use crate::builtins::iterate::iterate;
use crate::builtins::{is_tests, operators};
use crate::error::{Run, TemplateError};
use crate::state::{CallArgs, Interp};
use crate::syntax::ast::{Args, Compare, Expr, ExprKind};
use crate::values::repr::write_str;
use crate::values::value::Value;
use indexmap::IndexMap;

impl Interp {
    pub(crate) fn args(&mut self, args: &Args, scope: usize) -> Run<CallArgs> {
        let mut given = CallArgs::default();
        for expr in &args.positional {
            given.positional.push(self.eval(expr, scope)?.plain());
        }
        if let Some(star) = &args.star {
            let value = self.eval(star, scope)?;
            given.positional.extend(iterate(self, &value)?);
        }
        for (name, expr) in &args.named {
            let value = self.eval(expr, scope)?.plain();
            given.named.push((name.clone(), value));
        }
        if let Some(star_star) = &args.star_star {
            let Value::Dict(dict) = self.eval(star_star, scope)? else {
                return Err(TemplateError::new("argument after ** must be a mapping"));
            };
            for (key, value) in &dict.map {
                let Value::Str(name) = &key.0 else {
                    return Err(TemplateError::new("keywords must be strings"));
                };
                given.named.push((name.clone(), value.clone()));
            }
        }
        Ok(given)
    }

    pub(crate) fn eval(&mut self, expr: &Expr, scope: usize) -> Run<Value> {
        self.deeper(|i| i.expression(expr, scope)).map_err(|e| e.on(expr.line))
    }

    fn expression(&mut self, expr: &Expr, scope: usize) -> Run<Value> {
        Ok(match &expr.kind {
            ExprKind::None => Value::None,
            ExprKind::Bool(b) => Value::Bool(*b),
            ExprKind::Int(n) => Value::Int(*n),
            ExprKind::Float(f) => Value::Float(*f),
            ExprKind::Str(s) => Value::Str(s.clone()),
            ExprKind::Name(name) => self.lookup(scope, name),
            ExprKind::List(items) => Value::list(self.all(items, scope)?)?,
            ExprKind::Tuple(items) => Value::tuple(self.all(items, scope)?)?,
            ExprKind::Dict(pairs) => self.dict(pairs, scope)?,
            ExprKind::Attr(object, name) => {
                let object = self.eval(object, scope)?;
                self.attr(&object, name)?
            }
            ExprKind::Item(object, key) => {
                let object = self.eval(object, scope)?.plain();
                let key = self.eval(key, scope)?.plain();
                self.item(&object, &key)?
            }
            ExprKind::Slice(object, parts) => {
                let object = self.eval(object, scope)?.plain();
                let bounds = self.bounds(parts, scope)?;
                self.slice(&object, &bounds)?
            }
            ExprKind::Call(callee, args) => {
                let callee = self.eval(callee, scope)?;
                let given = self.args(args, scope)?;
                self.call(&callee, given)?
            }
            ExprKind::Filter(value, name, args) => {
                let value = self.eval(value, scope)?;
                let given = self.args(args, scope)?;
                self.apply_filter(name, value, &given)?
            }
            ExprKind::Test { value, name, args, negated } => {
                let value = self.eval(value, scope)?.plain();
                let given = self.args(args, scope)?;
                Value::Bool(is_tests::apply(self, name, &value, &given)? != *negated)
            }
            _ => return self.operation(expr, scope),
        })
    }

    /// Evaluates operator expressions.
    fn operation(&mut self, expr: &Expr, scope: usize) -> Run<Value> {
        Ok(match &expr.kind {
            ExprKind::Not(value) => Value::Bool(!self.eval(value, scope)?.truth()),
            ExprKind::Neg(value) => operators::negate(&self.eval(value, scope)?)?,
            ExprKind::Pos(value) => operators::plus(self.eval(value, scope)?)?,
            ExprKind::And(a, b) => {
                let left = self.eval(a, scope)?;
                if left.truth() { self.eval(b, scope)? } else { left }
            }
            ExprKind::Or(a, b) => {
                let left = self.eval(a, scope)?;
                if left.truth() { left } else { self.eval(b, scope)? }
            }
            ExprKind::Binary(op, a, b) => {
                let left = self.eval(a, scope)?;
                let right = self.eval(b, scope)?;
                operators::binary(self, *op, &left, &right)?
            }
            ExprKind::Concat(parts) => self.concat(parts, scope)?,
            ExprKind::Compare(first, rest) => self.compare(first, rest, scope)?,
            ExprKind::If { test, then, other } => {
                if self.eval(test, scope)?.truth() {
                    self.eval(then, scope)?
                } else {
                    match other {
                        Some(other) => self.eval(other, scope)?,
                        None => Value::undefined("the inline if-expression without else"),
                    }
                }
            }
            _ => return Err(TemplateError::new("an expression that is none")),
        })
    }

    fn dict(&mut self, pairs: &[(Expr, Expr)], scope: usize) -> Run<Value> {
        let mut map = IndexMap::new();
        for (key, value) in pairs {
            let key = self.eval(key, scope)?.plain().key()?;
            map.insert(key, self.eval(value, scope)?.plain());
        }
        self.room_for(map.len())?;
        Value::dict(map)
    }

    fn bounds(&mut self, parts: &[Option<Expr>; 3], scope: usize) -> Run<[Value; 3]> {
        let mut bounds = [Value::None, Value::None, Value::None];
        for (bound, part) in bounds.iter_mut().zip(parts) {
            if let Some(part) = part {
                *bound = self.eval(part, scope)?;
            }
        }
        Ok(bounds)
    }

    fn concat(&mut self, parts: &[Expr], scope: usize) -> Run<Value> {
        let mut out = String::new();
        for part in parts {
            let value = self.eval(part, scope)?;
            write_str(&value, &mut out);
            if self.fits(out.len()).is_err() {
                break; // `text` below reports the error
            }
        }
        self.text(out)
    }

    fn all(&mut self, items: &[Expr], scope: usize) -> Run<Vec<Value>> {
        self.room_for(items.len())?;
        items.iter().map(|item| self.eval(item, scope).map(Value::plain)).collect()
    }

    fn compare(&mut self, first: &Expr, rest: &[(Compare, Expr)], scope: usize) -> Run<Value> {
        let mut left = self.eval(first, scope)?.plain();
        for (op, right) in rest {
            let right = self.eval(right, scope)?.plain();
            if !operators::compare(self, *op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }
}
