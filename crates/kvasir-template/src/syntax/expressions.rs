//! Recursive descent parser for expressions, with Jinja's operator precedence.

use crate::error::{Run, TemplateError};
use crate::syntax::ast::{Args, Binary, Compare, Expr, ExprKind};
use crate::syntax::lexer::Token;
use crate::syntax::names::{is_filter, is_test};
use crate::syntax::parser::Parser;
use std::sync::Arc;

impl Parser {
    /// An expression, or a tuple if commas follow.
    pub(crate) fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Run<Expr> {
        let line = self.line();
        let first = self.conditional_or(conditional)?;
        if !self.is_op(",") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_op(",") {
            let end = matches!(self.token(), Token::BlockEnd | Token::VarEnd) || self.is_op(")");
            if end || ends.iter().any(|e| self.is_name(e)) {
                break;
            }
            all.push(self.conditional_or(conditional)?);
        }
        Ok(Expr { line, kind: ExprKind::Tuple(all) })
    }

    fn conditional_or(&mut self, conditional: bool) -> Run<Expr> {
        if conditional { self.expression() } else { self.nested(Self::or) }
    }

    pub(crate) fn expression(&mut self) -> Run<Expr> {
        self.nested(|p| {
            let known = p.unknown.len();
            let mut then = p.or()?;
            while p.is_name("if") {
                p.link()?;
                let line = p.line();
                p.at += 1;
                let test = p.or()?;
                let other = if p.skip_name("else") { Some(Box::new(p.expression()?)) } else { None };
                p.unknown.truncate(known);
                let kind = ExprKind::If { test: Box::new(test), then: Box::new(then), other };
                then = Expr { line, kind };
            }
            Ok(then)
        })
    }

    fn or(&mut self) -> Run<Expr> {
        let mut left = self.and()?;
        while self.is_name("or") {
            self.link()?;
            let line = self.line();
            self.at += 1;
            let right = self.and()?;
            left = Expr { line, kind: ExprKind::Or(Box::new(left), Box::new(right)) };
        }
        Ok(left)
    }

    fn and(&mut self) -> Run<Expr> {
        let mut left = self.not()?;
        while self.is_name("and") {
            self.link()?;
            let line = self.line();
            self.at += 1;
            let right = self.not()?;
            left = Expr { line, kind: ExprKind::And(Box::new(left), Box::new(right)) };
        }
        Ok(left)
    }

    fn not(&mut self) -> Run<Expr> {
        let line = self.line();
        if self.skip_name("not") {
            let value = self.nested(Self::not)?;
            return Ok(Expr { line, kind: ExprKind::Not(Box::new(value)) });
        }
        self.compare()
    }

    fn compare(&mut self) -> Run<Expr> {
        let line = self.line();
        let left = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let op = match self.token() {
                Token::Op("==") => Compare::Eq,
                Token::Op("!=") => Compare::Ne,
                Token::Op("<") => Compare::Lt,
                Token::Op("<=") => Compare::Le,
                Token::Op(">") => Compare::Gt,
                Token::Op(">=") => Compare::Ge,
                Token::Name(n) if n == "in" => Compare::In,
                Token::Name(n) if n == "not" => {
                    let follows = self.tokens.get(self.at + 1).map(|t| &t.0);
                    if !matches!(follows, Some(Token::Name(n)) if n == "in") {
                        break;
                    }
                    self.at += 1;
                    Compare::NotIn
                }
                _ => break,
            };
            self.at += 1;
            rest.push((op, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(left);
        }
        Ok(Expr { line, kind: ExprKind::Compare(Box::new(left), rest) })
    }

    fn binary(&mut self, ops: &[(&str, Binary)], inner: fn(&mut Self) -> Run<Expr>) -> Run<Expr> {
        let mut left = inner(self)?;
        while let Some((_, op)) = ops.iter().find(|(op, _)| self.is_op(op)) {
            self.link()?;
            let line = self.line();
            self.at += 1;
            let right = inner(self)?;
            left = Expr { line, kind: ExprKind::Binary(*op, Box::new(left), Box::new(right)) };
        }
        Ok(left)
    }

    fn sum(&mut self) -> Run<Expr> {
        self.binary(&[("+", Binary::Add), ("-", Binary::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Run<Expr> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_op("~") {
            return Ok(first);
        }
        let mut all = vec![first];
        while self.skip_op("~") {
            all.push(self.product()?);
        }
        Ok(Expr { line, kind: ExprKind::Concat(all) })
    }

    fn product(&mut self) -> Run<Expr> {
        let ops = [("*", Binary::Mul), ("//", Binary::FloorDiv), ("/", Binary::Div), ("%", Binary::Mod)];
        self.binary(&ops, Self::power)
    }

    fn power(&mut self) -> Run<Expr> {
        self.binary(&[("**", Binary::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, with_filters: bool) -> Run<Expr> {
        let line = self.line();
        let value = if self.skip_op("-") {
            let value = self.nested(|p| p.unary(false))?;
            Expr { line, kind: ExprKind::Neg(Box::new(value)) }
        } else if self.skip_op("+") {
            let value = self.nested(|p| p.unary(false))?;
            Expr { line, kind: ExprKind::Pos(Box::new(value)) }
        } else {
            self.nested(Self::primary)?
        };
        let value = self.postfix(value)?;
        if with_filters { self.filters(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Run<Expr> {
        let line = self.line();
        let kind = match self.next() {
            Token::Name(name) => match name.as_str() {
                "true" | "True" => ExprKind::Bool(true),
                "false" | "False" => ExprKind::Bool(false),
                "none" | "None" => ExprKind::None,
                _ => {
                    let name: Arc<str> = name.into();
                    self.seen.push(name.clone());
                    ExprKind::Name(name)
                }
            },
            Token::Str(mut text) => {
                while let Token::Str(more) = self.token() {
                    text.push_str(more);
                    self.at += 1;
                }
                ExprKind::Str(text.into())
            }
            Token::Int(v) => ExprKind::Int(v),
            Token::Float(v) => ExprKind::Float(v),
            Token::Op("(") => {
                if self.skip_op(")") {
                    ExprKind::Tuple(Vec::new())
                } else {
                    let inner = self.tuple(true, &[])?;
                    self.expect_op(")")?;
                    return Ok(inner);
                }
            }
            Token::Op("[") => ExprKind::List(self.list("]")?),
            Token::Op("{") => self.dict()?,
            _ => {
                self.at -= 1;
                return self.unexpected("an expression");
            }
        };
        Ok(Expr { line, kind })
    }

    fn list(&mut self, end: &str) -> Run<Vec<Expr>> {
        let mut out = Vec::new();
        while !self.skip_op(end) {
            if !out.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(end) {
                    break;
                }
            }
            out.push(self.expression()?);
        }
        Ok(out)
    }

    fn dict(&mut self) -> Run<ExprKind> {
        let mut out = Vec::new();
        while !self.skip_op("}") {
            if !out.is_empty() {
                self.expect_op(",")?;
                if self.skip_op("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_op(":")?;
            out.push((key, self.expression()?));
        }
        Ok(ExprKind::Dict(out))
    }

    fn postfix(&mut self, mut value: Expr) -> Run<Expr> {
        loop {
            let line = self.line();
            let kind = if self.skip_op(".") {
                match self.next() {
                    Token::Name(name) => ExprKind::Attr(Box::new(value), name.into()),
                    Token::Int(index) => {
                        let index = Expr { line, kind: ExprKind::Int(index) };
                        ExprKind::Item(Box::new(value), Box::new(index))
                    }
                    _ => {
                        self.at -= 1;
                        return self.unexpected("an attribute");
                    }
                }
            } else if self.skip_op("[") {
                self.subscript(value)?
            } else if self.skip_op("(") {
                ExprKind::Call(Box::new(value), self.args()?)
            } else {
                return Ok(value);
            };
            value = Expr { line, kind };
            self.link()?;
        }
    }

    fn subscript(&mut self, value: Expr) -> Run<ExprKind> {
        let line = self.line();
        let mut all = Vec::new();
        loop {
            let first = if self.is_op(":") { None } else { Some(self.expression()?) };
            if first.is_none() || self.is_op(":") {
                let mut parts = [first, None, None];
                for part in &mut parts[1..] {
                    if !self.skip_op(":") {
                        break;
                    }
                    if !(self.is_op(":") || self.is_op("]")) {
                        *part = Some(self.expression()?);
                    }
                }
                self.expect_op("]")?;
                return Ok(ExprKind::Slice(Box::new(value), Box::new(parts)));
            }
            all.extend(first);
            if !self.skip_op(",") {
                break;
            }
        }
        self.expect_op("]")?;
        let index = match (all.pop(), all.is_empty()) {
            (Some(one), true) => one,
            (last, _) => {
                all.extend(last);
                Expr { line, kind: ExprKind::Tuple(all) }
            }
        };
        Ok(ExprKind::Item(Box::new(value), Box::new(index)))
    }

    fn args(&mut self) -> Run<Args> {
        let mut args = Args::default();
        let mut first = true;
        while !self.skip_op(")") {
            if !first {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            first = false;
            if self.skip_op("**") {
                args.star_star = Some(Box::new(self.expression()?));
            } else if self.skip_op("*") {
                args.star = Some(Box::new(self.expression()?));
            } else {
                let assigned = matches!(self.tokens.get(self.at + 1), Some((Token::Op("="), _)));
                if assigned && matches!(self.token(), Token::Name(_)) {
                    let name = self.expect_name()?;
                    self.at += 1;
                    args.named.push((name, self.expression()?));
                } else if args.named.is_empty() && args.star_star.is_none() {
                    args.positional.push(self.expression()?);
                } else {
                    return self.fail("a positional argument after a named one");
                }
            }
        }
        Ok(args)
    }

    fn filters(&mut self, mut value: Expr) -> Run<Expr> {
        loop {
            let line = self.line();
            let kind = if self.skip_op("|") {
                let (name, args) = self.filter()?;
                ExprKind::Filter(Box::new(value), name, args)
            } else if self.skip_name("is") {
                self.test(value)?
            } else if self.skip_op("(") {
                ExprKind::Call(Box::new(value), self.args()?)
            } else {
                return Ok(value);
            };
            value = Expr { line, kind };
            self.link()?;
        }
    }

    fn dotted(&mut self) -> Run<Arc<str>> {
        let mut name = self.expect_name()?.to_string();
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(name.into())
    }

    pub(crate) fn filter(&mut self) -> Run<(Arc<str>, Args)> {
        let name = self.dotted()?;
        if !is_filter(&name) {
            self.unknown.push(TemplateError::at(self.line(), format!("no filter named {name:?}")));
        }
        let args = if self.skip_op("(") { self.args()? } else { Args::default() };
        Ok((name, args))
    }

    /// A filter chain of a block; if `bare`, the first filter has no leading `|`.
    pub(crate) fn filter_chain(&mut self, bare: bool) -> Run<Vec<(Arc<str>, Args)>> {
        let mut out = Vec::new();
        if bare {
            out.push(self.filter()?);
        }
        while self.skip_op("|") {
            out.push(self.filter()?);
        }
        Ok(out)
    }

    fn test(&mut self, value: Expr) -> Run<ExprKind> {
        let negated = self.skip_name("not");
        let name = self.dotted()?;
        if !is_test(&name) {
            self.unknown.push(TemplateError::at(self.line(), format!("no test named {name:?}")));
        }
        let mut args = Args::default();
        if self.skip_op("(") {
            args = self.args()?;
        } else {
            let starts = match self.token() {
                Token::Name(n) => {
                    if n == "is" {
                        return self.fail("tests cannot be chained with is");
                    }
                    !matches!(n.as_str(), "else" | "or" | "and")
                }
                Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("(" | "[" | "{") => true,
                _ => false,
            };
            // `if`, `in`, `not` and `recursive` are keywords here, not the test's argument.
            if starts
                && !(self.is_name("if")
                    || self.is_name("in")
                    || self.is_name("not")
                    || self.is_name("recursive"))
            {
                let arg = self.nested(Self::primary)?;
                args.positional.push(self.postfix(arg)?);
            }
        }
        Ok(ExprKind::Test { value: Box::new(value), name, args, negated })
    }
}
