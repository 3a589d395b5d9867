//! Recursive descent parser for statements; expressions are in `expressions`.

use crate::error::{Run, TemplateError};
use crate::syntax::ast::{Expr, ExprKind, For, Macro, Stmt, StmtKind, Target};
use crate::syntax::lexer::{Token, lex};
use std::sync::Arc;

/// Maximum nesting of brackets and blocks.
const MAX_NESTING: usize = 96;
/// Maximum chain links per tag (`a + b + c`, `a.b.c`, `a | f | g`).
///
/// Each link is one AST level, and the AST is dropped recursively.
const MAX_LINKS: usize = 2_000;

pub(crate) fn parse(source: &str) -> Run<Vec<Stmt>> {
    let mut parser = Parser {
        tokens: lex(source)?,
        at: 0,
        nesting: 0,
        links: 0,
        in_loop: 0,
        seen: Vec::new(),
        unknown: Vec::new(),
    };
    let body = parser.statements(&[])?;
    match parser.unknown.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(body),
    }
}

pub(crate) struct Parser {
    pub(crate) tokens: Vec<(Token, usize)>,
    pub(crate) at: usize,
    nesting: usize,
    /// Chain links in the current tag.
    links: usize,
    in_loop: usize,
    /// Names used so far; tells whether a macro accepts `varargs` or `kwargs`.
    pub(crate) seen: Vec<Arc<str>>,
    /// Unknown filters and tests. Inside an `if` they are an error only when reached.
    pub(crate) unknown: Vec<TemplateError>,
}

impl Parser {
    pub(crate) fn token(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::Eof, |t| &t.0)
    }

    pub(crate) fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    pub(crate) fn next(&mut self) -> Token {
        let token = self.token().clone();
        self.at += 1;
        token
    }

    pub(crate) fn fail<T>(&self, why: impl Into<String>) -> Run<T> {
        Err(TemplateError::at(self.line(), why))
    }

    pub(crate) fn unexpected<T>(&self, wanted: &str) -> Run<T> {
        let got = match self.token() {
            Token::Eof => "the end".to_owned(),
            Token::Name(name) => format!("{name:?}"),
            Token::Op(op) => format!("{op:?}"),
            Token::BlockEnd | Token::VarEnd => "the end of the tag".to_owned(),
            other => format!("{other:?}"),
        };
        self.fail(format!("expected {wanted}, got {got}"))
    }

    pub(crate) fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(n) if n == name)
    }

    pub(crate) fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Token::Op(o) if *o == op)
    }

    pub(crate) fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect_op(&mut self, op: &str) -> Run<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("{op:?}")) }
    }

    pub(crate) fn expect_name(&mut self) -> Run<Arc<str>> {
        match self.token().clone() {
            Token::Name(name) => {
                self.at += 1;
                Ok(name.into())
            }
            _ => self.unexpected("a name"),
        }
    }

    fn block_end(&mut self) -> Run<()> {
        if *self.token() == Token::BlockEnd {
            self.at += 1;
            Ok(())
        } else {
            self.unexpected("the end of the block")
        }
    }

    /// Runs `inner` one nesting level deeper.
    pub(crate) fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.fail(format!("nested deeper than {MAX_NESTING}"));
        }
        let out = inner(self);
        self.nesting -= 1;
        out
    }

    /// Counts one more chain link.
    pub(crate) fn link(&mut self) -> Run<()> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return self.fail(format!("more than {MAX_LINKS} operators, attributes and filters in a row"));
        }
        Ok(())
    }

    /// Parses statements up to one of the closing names, which is not consumed, or to the end if
    /// there are none.
    fn statements(&mut self, closing: &[&str]) -> Run<Vec<Stmt>> {
        self.nested(|p| {
            let mut out = Vec::new();
            loop {
                let line = p.line();
                p.links = 0;
                match p.next() {
                    Token::Eof if closing.is_empty() => return Ok(out),
                    Token::Eof => {
                        return p.fail(format!("the template ends before {:?}", closing.join(" or ")));
                    }
                    Token::Data(text) => out.push(Stmt { line, kind: StmtKind::Text(text.into()) }),
                    Token::VarBegin => {
                        let value = p.tuple(true, &[])?;
                        if p.next() != Token::VarEnd {
                            p.at -= 1;
                            return p.unexpected("the end of the print");
                        }
                        out.push(Stmt { line, kind: StmtKind::Print(value) });
                    }
                    Token::BlockBegin => {
                        if closing.iter().any(|name| p.is_name(name)) {
                            return Ok(out);
                        }
                        let kind = p.statement()?;
                        out.push(Stmt { line, kind });
                    }
                    other => return p.fail(format!("unexpected {other:?}")),
                }
            }
        })
    }

    /// Parses a block body and its `end` tag.
    fn body(&mut self, end: &str) -> Run<Vec<Stmt>> {
        let out = self.statements(&[end])?;
        self.at += 1;
        self.block_end()?;
        Ok(out)
    }

    fn statement(&mut self) -> Run<StmtKind> {
        let name = self.expect_name()?;
        match &*name {
            "if" => self.parse_if(),
            "for" => self.parse_for(),
            "set" => self.parse_set(),
            "macro" => self.parse_macro(),
            "call" => self.parse_call(),
            "filter" => {
                let filters = self.filter_chain(true)?;
                self.block_end()?;
                Ok(StmtKind::FilterBlock(filters, self.body("endfilter")?))
            }
            "with" => self.parse_with(),
            "generation" => {
                self.block_end()?;
                Ok(StmtKind::Scoped(self.body("endgeneration")?))
            }
            "block" => {
                self.expect_name()?;
                self.block_end()?;
                let body = self.statements(&["endblock"])?;
                self.at += 1;
                if matches!(self.token(), Token::Name(_)) {
                    self.at += 1;
                }
                self.block_end()?;
                Ok(StmtKind::Scoped(body))
            }
            "break" | "continue" => {
                if self.in_loop == 0 {
                    return self.fail(format!("{name} outside of a loop"));
                }
                self.block_end()?;
                Ok(if &*name == "break" { StmtKind::Break } else { StmtKind::Continue })
            }
            "include" | "import" | "from" | "extends" => {
                self.fail(format!("{name}: a chat template is one file and reads no other"))
            }
            other => {
                self.at -= 1;
                self.fail(format!("unknown tag {other:?}"))
            }
        }
    }

    fn parse_if(&mut self) -> Run<StmtKind> {
        let known = self.unknown.len();
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(false, &[])?;
            self.block_end()?;
            branches.push((test, self.statements(&["elif", "else", "endif"])?));
            if self.skip_name("elif") {
                continue;
            }
            if self.skip_name("else") {
                self.block_end()?;
                otherwise = self.statements(&["endif"])?;
            }
            self.at += 1;
            self.block_end()?;
            break;
        }
        self.unknown.truncate(known);
        Ok(StmtKind::If(branches, otherwise))
    }

    fn parse_for(&mut self) -> Run<StmtKind> {
        let target = self.target(&["in"], false)?;
        if !self.skip_name("in") {
            return self.unexpected("\"in\"");
        }
        let iter = self.tuple(false, &["recursive"])?;
        let filter = if self.skip_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_name("recursive");
        self.block_end()?;
        self.in_loop += 1;
        let body = self.statements(&["endfor", "else"])?;
        self.in_loop -= 1;
        let mut otherwise = Vec::new();
        if self.skip_name("else") {
            self.block_end()?;
            otherwise = self.statements(&["endfor"])?;
        }
        self.at += 1;
        self.block_end()?;
        Ok(StmtKind::For(Arc::new(For { target, iter, filter, recursive, body, otherwise })))
    }

    fn parse_set(&mut self) -> Run<StmtKind> {
        let target = self.target(&[], true)?;
        if self.skip_op("=") {
            let value = self.tuple(true, &[])?;
            self.block_end()?;
            return Ok(StmtKind::Set(target, value));
        }
        let filters = self.filter_chain(false)?;
        self.block_end()?;
        Ok(StmtKind::SetBlock(target, filters, self.body("endset")?))
    }

    fn parse_macro(&mut self) -> Run<StmtKind> {
        let name = self.expect_name()?;
        self.expect_op("(")?;
        let params = self.params()?;
        self.block_end()?;
        Ok(StmtKind::Macro(Arc::new(self.finish_macro(name, params, "endmacro")?)))
    }

    fn finish_macro(
        &mut self,
        name: Arc<str>,
        params: Vec<(Arc<str>, Option<Expr>)>,
        end: &str,
    ) -> Run<Macro> {
        let (outer, outer_loop) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.in_loop));
        let body = self.body(end)?;
        let names = |name: &str, seen: &[Arc<str>]| seen.iter().any(|s| &**s == name);
        let (takes_varargs, takes_kwargs) = (names("varargs", &self.seen), names("kwargs", &self.seen));
        self.seen.extend(outer);
        self.in_loop = outer_loop;
        Ok(Macro { name, params, body, takes_varargs, takes_kwargs })
    }

    fn params(&mut self) -> Run<Vec<(Arc<str>, Option<Expr>)>> {
        let mut out: Vec<(Arc<str>, Option<Expr>)> = Vec::new();
        while !self.skip_op(")") {
            if !out.is_empty() {
                self.expect_op(",")?;
                if self.skip_op(")") {
                    break;
                }
            }
            let name = self.expect_name()?;
            let default = if self.skip_op("=") { Some(self.expression()?) } else { None };
            if default.is_none() && out.last().is_some_and(|p| p.1.is_some()) {
                return self.fail("a parameter without default after one with");
            }
            out.push((name, default));
        }
        Ok(out)
    }

    fn parse_call(&mut self) -> Run<StmtKind> {
        let params = if self.skip_op("(") { self.params()? } else { Vec::new() };
        let call = self.expression()?;
        if !matches!(call.kind, ExprKind::Call(..)) {
            return self.fail("expected a call");
        }
        self.block_end()?;
        let body = self.finish_macro("caller".into(), params, "endcall")?;
        Ok(StmtKind::CallBlock(Arc::new(body), call))
    }

    fn parse_with(&mut self) -> Run<StmtKind> {
        let mut bindings = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !bindings.is_empty() {
                self.expect_op(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_op("=")?;
            bindings.push((target, self.expression()?));
        }
        self.block_end()?;
        Ok(StmtKind::With(bindings, self.body("endwith")?))
    }

    /// Parses an assignment target, possibly a tuple, up to `=`, a closing bracket or one of
    /// `ends`.
    fn target(&mut self, ends: &[&str], attributes: bool) -> Run<Target> {
        let mut all = Vec::new();
        let mut is_tuple = false;
        loop {
            if ends.iter().any(|e| self.is_name(e)) || self.is_op("=") || self.is_op(")") {
                break;
            }
            if self.skip_op("(") {
                let inner = self.nested(|p| p.target(&[], attributes))?;
                self.expect_op(")")?;
                all.push(inner);
            } else {
                let name = self.expect_name()?;
                if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
                    return self.fail(format!("cannot assign to {name}"));
                }
                if attributes && self.skip_op(".") {
                    all.push(Target::Attr(name, self.expect_name()?));
                } else {
                    all.push(Target::Name(name));
                }
            }
            if !self.skip_op(",") {
                break;
            }
            is_tuple = true;
        }
        match (all.pop(), is_tuple) {
            (Some(one), false) => Ok(one),
            (Some(last), true) => {
                all.push(last);
                Ok(Target::Tuple(all))
            }
            (None, _) => self.unexpected("a name to assign to"),
        }
    }
}
