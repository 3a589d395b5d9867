//! Immutable Python-like values of templates.
//!
//! In-place mutation (`append`, `pop`, …) is refused, as in the reference renderer's sandbox.
//! Values are reference counted and cannot form cycles.

use crate::error::{Run, TemplateError};
use crate::syntax::ast::Macro;
use indexmap::IndexMap;
use std::{
    cmp::Ordering,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// Maximum nesting of lists and mappings.
const MAX_DEPTH: u32 = 200;
/// Maximum expanded size of a list or mapping, with shared parts counted at every occurrence.
///
/// A list that contains another one twice costs little memory, but printing it doubles the work per
/// level.
const MAX_SIZE: usize = 16 << 20;
/// Expanded size of a value besides its text.
const NODE: usize = 16;

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Undefined(Missing),
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    /// Markup from `safe` and `escape`. Concatenation escapes a plain operand; otherwise it acts as
    /// a string.
    Safe(Arc<str>),
    List(Arc<List>),
    Tuple(Arc<List>),
    Dict(Arc<Dict>),
    /// Iterable but not indexable: a generator, or a mapping's keys, values or items.
    View(Arc<List>, View),
    /// Indices into the interpreter's tables, here and below.
    Namespace(usize),
    Loop(usize),
    Cycler(usize),
    Joiner(usize),
    /// A macro and its defining scope.
    Macro(Arc<Macro>, usize),
    /// A global function.
    Function(&'static str),
    /// A bound method.
    Method(Arc<(Value, Arc<str>)>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// Always truthy, and without a length.
    Generator,
    Keys,
    Values,
    Items,
}

/// The reason why a value is undefined.
#[derive(Debug, Clone)]
pub(crate) struct Missing {
    pub(crate) name: Arc<str>,
    /// The attribute exists but the sandbox refuses access.
    pub(crate) unsafe_access: bool,
}

#[derive(Debug)]
pub(crate) struct List {
    pub(crate) items: Vec<Value>,
    depth: u32,
    size: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Dict {
    pub(crate) map: IndexMap<Key, Value>,
    depth: u32,
    size: usize,
}

/// A value as mapping key: 1, 1.0 and true are equal.
#[derive(Debug, Clone)]
pub(crate) struct Key(pub(crate) Value);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash(&self.0, state);
    }
}

fn hash(value: &Value, state: &mut impl Hasher) {
    match value {
        Value::Str(s) => s.hash(state),
        Value::Tuple(t) => t.items.iter().for_each(|item| hash(item, state)),
        // Views and methods equal nothing, not even themselves.
        Value::View(l, _) => Arc::as_ptr(l).hash(state),
        Value::Method(m) => Arc::as_ptr(m).hash(state),
        other => match other.number() {
            Some(n) => (n + 0.0).to_bits().hash(state), // -0.0 equals 0.0
            None => state.write_u8(0),
        },
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.0.equals(&other.0)
    }
}

impl Eq for Key {}

fn within(depth: u32, size: usize) -> Run<()> {
    if depth > MAX_DEPTH {
        return Err(TemplateError::new(format!("values nest deeper than {MAX_DEPTH}")));
    }
    if size > MAX_SIZE {
        return Err(TemplateError::new(format!("a value that holds more than {MAX_SIZE} bytes")));
    }
    Ok(())
}

impl Value {
    pub(crate) fn undefined(name: &str) -> Self {
        Self::Undefined(Missing { name: name.into(), unsafe_access: false })
    }

    pub(crate) fn str(text: impl AsRef<str>) -> Self {
        Self::Str(text.as_ref().into())
    }

    /// Converts a safe string to a plain one.
    pub(crate) fn plain(self) -> Self {
        if let Self::Safe(s) = self { Self::Str(s) } else { self }
    }

    fn depth(&self) -> u32 {
        match self {
            Self::List(l) | Self::Tuple(l) | Self::View(l, _) => l.depth,
            Self::Dict(d) => d.depth,
            Self::Method(m) => m.0.depth(),
            _ => 0,
        }
    }

    /// Approximate cost of comparing or printing the value: its expanded size.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Str(s) | Self::Safe(s) => NODE + s.len(),
            Self::List(l) | Self::Tuple(l) | Self::View(l, _) => l.size,
            Self::Dict(d) => d.size,
            _ => NODE,
        }
    }

    fn seq(items: Vec<Self>) -> Run<Arc<List>> {
        let depth = items.iter().map(Self::depth).max().unwrap_or(0) + 1;
        let size = items.iter().fold(NODE, |sum, v| sum.saturating_add(v.size()));
        within(depth, size)?;
        Ok(Arc::new(List { items, depth, size }))
    }

    pub(crate) fn list(items: Vec<Self>) -> Run<Self> {
        Self::seq(items).map(Self::List)
    }

    pub(crate) fn tuple(items: Vec<Self>) -> Run<Self> {
        Self::seq(items).map(Self::Tuple)
    }

    pub(crate) fn generator(items: Vec<Self>) -> Run<Self> {
        Self::seq(items).map(|l| Self::View(l, View::Generator))
    }

    pub(crate) fn view(items: Vec<Self>, view: View) -> Run<Self> {
        Self::seq(items).map(|l| Self::View(l, view))
    }

    pub(crate) fn dict(map: IndexMap<Key, Self>) -> Run<Self> {
        let all = || map.iter().flat_map(|(k, v)| [&k.0, v]);
        let depth = all().map(Self::depth).max().unwrap_or(0) + 1;
        let size = all().fold(NODE, |sum, v| sum.saturating_add(v.size()));
        within(depth, size)?;
        Ok(Self::Dict(Arc::new(Dict { map, depth, size })))
    }

    pub(crate) fn from_json(json: &serde_json::Value) -> Run<Self> {
        Ok(match json {
            serde_json::Value::Null => Self::None,
            serde_json::Value::Bool(b) => Self::Bool(*b),
            serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(n), _) => Self::Int(n.into()),
                (None, Some(n)) => Self::Int(n.into()),
                _ => Self::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(s) => Self::str(s),
            serde_json::Value::Array(a) => Self::list(a.iter().map(Self::from_json).collect::<Run<_>>()?)?,
            serde_json::Value::Object(o) => {
                let pair = |(k, v): (&String, _)| Ok((Key(Self::str(k)), Self::from_json(v)?));
                Self::dict(o.iter().map(pair).collect::<Run<_>>()?)?
            }
        })
    }

    pub(crate) fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let Self::Str(s) | Self::Safe(s) = self { Some(s) } else { None }
    }

    /// Integer value; booleans count as 0 and 1.
    pub(crate) fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(n) => Some(*n),
            Self::Bool(b) => Some((*b).into()),
            _ => None,
        }
    }

    /// Numeric value as a float.
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Self::Float(f) => Some(*f),
            other => other.as_int().map(|n| n as f64),
        }
    }

    pub(crate) fn truth(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(b) => *b,
            Self::Int(n) => *n != 0,
            Self::Float(f) => *f != 0.0,
            Self::Str(s) | Self::Safe(s) => !s.is_empty(),
            Self::List(l) | Self::Tuple(l) => !l.items.is_empty(),
            Self::Dict(d) => !d.map.is_empty(),
            Self::View(l, view) => *view == View::Generator || !l.items.is_empty(),
            _ => true,
        }
    }

    /// Python's type name, for messages.
    pub(crate) fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Float(_) => "float",
            Self::Str(_) | Self::Safe(_) => "str",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Dict(_) => "dict",
            Self::View(_, View::Generator) => "generator",
            Self::View(_, View::Keys) => "dict_keys",
            Self::View(_, View::Values) => "dict_values",
            Self::View(_, View::Items) => "dict_items",
            Self::Namespace(_) => "Namespace",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
            Self::Macro(..) => "Macro",
            Self::Function(_) => "function",
            Self::Method(_) => "method",
        }
    }

    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Str(a), Self::Str(b)) => a == b,
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                a.items.len() == b.items.len() && a.items.iter().zip(&b.items).all(|(a, b)| a.equals(b))
            }
            (Self::Dict(a), Self::Dict(b)) => {
                a.map.len() == b.map.len()
                    && a.map.iter().all(|(k, v)| b.map.get(k).is_some_and(|w| v.equals(w)))
            }
            (Self::Namespace(a), Self::Namespace(b)) | (Self::Loop(a), Self::Loop(b)) => a == b,
            (Self::Function(a), Self::Function(b)) => a == b,
            (Self::Macro(a, _), Self::Macro(b, _)) => Arc::ptr_eq(a, b),
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => a == b,
                _ => self.number().zip(other.number()).is_some_and(|(a, b)| a == b),
            },
        }
    }

    /// Ordering; an error for types without one.
    pub(crate) fn order(&self, other: &Self) -> Run<Ordering> {
        let fail = || {
            let (a, b) = (self.type_name(), other.type_name());
            Err(TemplateError::new(format!("'<' not supported between instances of '{a}' and '{b}'")))
        };
        match (self, other) {
            (Self::Str(a), Self::Str(b)) => Ok(a.cmp(b)),
            (Self::List(a), Self::List(b)) | (Self::Tuple(a), Self::Tuple(b)) => {
                for (a, b) in a.items.iter().zip(&b.items) {
                    if !a.equals(b) {
                        return a.order(b);
                    }
                }
                Ok(a.items.len().cmp(&b.items.len()))
            }
            _ => match (self.as_int(), other.as_int()) {
                (Some(a), Some(b)) => Ok(a.cmp(&b)),
                _ => match self.number().zip(other.number()) {
                    // NaN compares unequal and neither less nor greater.
                    Some((a, b)) => Ok(a.partial_cmp(&b).unwrap_or(Ordering::Greater)),
                    None => fail(),
                },
            },
        }
    }

    /// The error for using an undefined value; `None` if defined.
    pub(crate) fn missing(&self) -> Option<TemplateError> {
        let Self::Undefined(missing) = self else { return None };
        Some(TemplateError::new(if missing.unsafe_access {
            format!("access to attribute {} is unsafe", missing.name)
        } else {
            format!("{} is undefined", missing.name)
        }))
    }

    /// The value as a mapping key; an error if unhashable.
    pub(crate) fn key(self) -> Run<Key> {
        match &self {
            Self::List(_) | Self::Dict(_) => {
                Err(TemplateError::new(format!("unhashable type: '{}'", self.type_name())))
            }
            _ => Ok(Key(self)),
        }
    }
}

impl Dict {
    pub(crate) fn get(&self, key: &Value) -> Option<&Value> {
        self.map.get(&Key(key.clone()))
    }
}
