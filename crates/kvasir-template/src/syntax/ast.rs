//! The abstract syntax tree (AST) of templates.

use std::sync::Arc;

/// An expression with its source line.
#[derive(Debug)]
pub(crate) struct Expr {
    pub(crate) line: usize,
    pub(crate) kind: ExprKind,
}

#[derive(Debug)]
pub(crate) enum ExprKind {
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
pub(crate) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Mod,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compare {
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
pub(crate) struct Args {
    pub(crate) positional: Vec<Expr>,
    pub(crate) named: Vec<(Arc<str>, Expr)>,
    pub(crate) star: Option<Box<Expr>>,
    pub(crate) star_star: Option<Box<Expr>>,
}

/// Left-hand side of an assignment.
#[derive(Debug)]
pub(crate) enum Target {
    Name(Arc<str>),
    Attr(Arc<str>, Arc<str>),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(crate) struct Stmt {
    pub(crate) line: usize,
    pub(crate) kind: StmtKind,
}

#[derive(Debug)]
pub(crate) enum StmtKind {
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
pub(crate) struct For {
    pub(crate) target: Target,
    pub(crate) iter: Expr,
    pub(crate) filter: Option<Expr>,
    pub(crate) recursive: bool,
    pub(crate) body: Vec<Stmt>,
    pub(crate) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(crate) struct Macro {
    pub(crate) name: Arc<str>,
    pub(crate) params: Vec<(Arc<str>, Option<Expr>)>,
    pub(crate) body: Vec<Stmt>,
    /// Whether the body uses `varargs` and `kwargs`, so that extra arguments are accepted.
    pub(crate) takes_varargs: bool,
    pub(crate) takes_kwargs: bool,
}
