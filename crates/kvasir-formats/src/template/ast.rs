//! The abstract syntax tree (AST) of templates.

use std::sync::Arc;

/// An expression with its source line.
#[derive(Debug)]
pub(super) struct Expr {
    pub(super) line: usize,
    pub(super) kind: ExprKind,
}

#[derive(Debug)]
pub(super) enum ExprKind {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Name(Arc<str>),
    List(Vec<Expr>),
    Tuple(Vec<Expr>),
    Dict(Vec<(Expr, Expr)>),
    Attr(Box<Expr>, Arc<str>),
    Item(Box<Expr>, Box<Expr>),
    Slice(Box<Expr>, Box<[Option<Expr>; 3]>),
    Call(Box<Expr>, Args),
    Filter(Box<Expr>, Arc<str>, Args),
    Test { value: Box<Expr>, name: Arc<str>, args: Args, negated: bool },
    Not(Box<Expr>),
    Neg(Box<Expr>),
    Pos(Box<Expr>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Compare, Expr)>),
    If { test: Box<Expr>, then: Box<Expr>, other: Option<Box<Expr>> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}

/// Arguments of a call, filter or test.
#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(Arc<str>, Expr)>,
    pub(super) star: Option<Box<Expr>>,
    pub(super) star_star: Option<Box<Expr>>,
}

/// Left-hand side of an assignment.
#[derive(Debug)]
pub(super) enum Target {
    Name(Arc<str>),
    Attr(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) struct Stmt {
    pub(super) line: usize,
    pub(super) kind: StmtKind,
}

#[derive(Debug)]
pub(super) enum StmtKind {
    Text(Arc<str>),
    Print(Expr),
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    For(Arc<For>),
    Set(Target, Expr),
    SetBlock(Target, Vec<(Arc<str>, Args)>, Vec<Stmt>),
    Macro(Arc<Macro>),
    CallBlock(Arc<Macro>, Expr),
    FilterBlock(Vec<(Arc<str>, Args)>, Vec<Stmt>),
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    Scoped(Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) iter: Expr,
    pub(super) filter: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: Arc<str>,
    pub(super) params: Vec<(Arc<str>, Option<Expr>)>,
    pub(super) body: Vec<Stmt>,
    /// Whether the body uses `varargs` and `kwargs`, so that extra arguments are accepted.
    pub(super) takes_varargs: bool,
    pub(super) takes_kwargs: bool,
}
