//! Tokens into statements and expressions, with Jinja's precedences.

use super::{
    ast::{Args, Binary, Compare, Expr, ExprKind, For, Macro, Stmt, StmtKind, Target},
    fault::{Fault, Run},
    filters,
    lexer::{Token, lex},
    tests,
};
use std::sync::Arc;

/// How deep brackets and blocks may nest.
const MAX_NESTING: usize = 96;

pub(super) fn parse(source: &str) -> Run<Vec<Stmt>> {
    let mut parser =
        Parser { tokens: lex(source)?, at: 0, nesting: 0, in_loop: 0, seen: Vec::new(), unknown: Vec::new() };
    let body = parser.statements(&[])?;
    match parser.unknown.into_iter().next() {
        Some(fault) => Err(fault),
        None => Ok(body),
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    nesting: usize,
    in_loop: usize,
    /// Names read, so that a macro knows whether it takes further arguments.
    seen: Vec<Arc<str>>,
    /// Filters and tests that do not exist. Inside an `if` that is an error only when it is reached.
    unknown: Vec<Fault>,
}

impl Parser {
    fn token(&self) -> &Token {
        self.tokens.get(self.at).map_or(&Token::Eof, |t| &t.0)
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    fn next(&mut self) -> Token {
        let token = self.token().clone();
        self.at += 1;
        token
    }

    fn fail<T>(&self, why: impl Into<String>) -> Run<T> {
        Err(Fault::at(self.line(), why))
    }

    fn unexpected<T>(&self, wanted: &str) -> Run<T> {
        let got = match self.token() {
            Token::Eof => "the end".to_owned(),
            Token::Name(name) => format!("{name:?}"),
            Token::Op(op) => format!("{op:?}"),
            Token::BlockEnd | Token::VarEnd => "the end of the tag".to_owned(),
            other => format!("{other:?}"),
        };
        self.fail(format!("expected {wanted}, got {got}"))
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(n) if n == name)
    }

    fn is_op(&self, op: &str) -> bool {
        matches!(self.token(), Token::Op(o) if *o == op)
    }

    fn skip_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn skip_op(&mut self, op: &str) -> bool {
        let found = self.is_op(op);
        self.at += usize::from(found);
        found
    }

    fn expect_op(&mut self, op: &str) -> Run<()> {
        if self.skip_op(op) { Ok(()) } else { self.unexpected(&format!("{op:?}")) }
    }

    fn expect_name(&mut self) -> Run<Arc<str>> {
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

    /// Runs `inner` one level deeper.
    fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Run<T>) -> Run<T> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return self.fail(format!("nested deeper than {MAX_NESTING}"));
        }
        let out = inner(self);
        self.nesting -= 1;
        out
    }

    /// Statements up to one of the closing names, which is left to be read; up to the end if there are none.
    fn statements(&mut self, closing: &[&str]) -> Run<Vec<Stmt>> {
        self.nested(|p| {
            let mut out = Vec::new();
            loop {
                let line = p.line();
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

    /// The statements of a block that ends with `end`, which is read too.
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

    /// An assignment's left side, possibly a tuple, up to `=`, a closing bracket or one of the names.
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

    /// One expression, or several with commas between: a tuple.
    fn tuple(&mut self, conditional: bool, ends: &[&str]) -> Run<Expr> {
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

    pub(super) fn expression(&mut self) -> Run<Expr> {
        self.nested(|p| {
            let known = p.unknown.len();
            let mut then = p.or()?;
            while p.is_name("if") {
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
        }
    }

    fn dotted(&mut self) -> Run<Arc<str>> {
        let mut name = self.expect_name()?.to_string();
        while self.skip_op(".") {
            name = format!("{name}.{}", self.expect_name()?);
        }
        Ok(name.into())
    }

    fn filter(&mut self) -> Run<(Arc<str>, Args)> {
        let name = self.dotted()?;
        if !filters::known(&name) {
            self.unknown.push(Fault::at(self.line(), format!("no filter named {name:?}")));
        }
        let args = if self.skip_op("(") { self.args()? } else { Args::default() };
        Ok((name, args))
    }

    /// Filters of a block: the first without a bar if `bare`.
    fn filter_chain(&mut self, bare: bool) -> Run<Vec<(Arc<str>, Args)>> {
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
        if !tests::known(&name) {
            self.unknown.push(Fault::at(self.line(), format!("no test named {name:?}")));
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
            // `x is defined if y`, `x is none not in z`: words of the language, not arguments.
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
