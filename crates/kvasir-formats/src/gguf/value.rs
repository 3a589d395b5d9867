//! GGUF metadata values and arrays.

use crate::error::{Error, Result};
use crate::files::mapped::Mapped;
use crate::gguf::cursor::Cursor;
use std::{ops::Range, sync::Arc};

/// GGUF value type, in the order of the format's ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // names as in the format
pub enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    Str,
    Array,
    U64,
    I64,
    F64,
}

const KINDS: [Kind; 13] = [
    Kind::U8,
    Kind::I8,
    Kind::U16,
    Kind::I16,
    Kind::U32,
    Kind::I32,
    Kind::F32,
    Kind::Bool,
    Kind::Str,
    Kind::Array,
    Kind::U64,
    Kind::I64,
    Kind::F64,
];

impl Kind {
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        KINDS.get(id as usize).copied()
    }

    pub(crate) fn id(self) -> u32 {
        self as u32 // the enum is in id order
    }

    /// Bytes of one value; `None` for strings and arrays.
    fn size(self) -> Option<usize> {
        Some(match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
            Self::Str | Self::Array => return None,
        })
    }
}

/// A GGUF metadata value.
#[derive(Debug, Clone)]
#[allow(missing_docs)] // names as in the format
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl Value {
    /// The value's type.
    pub fn kind(&self) -> Kind {
        match self {
            Self::U8(_) => Kind::U8,
            Self::I8(_) => Kind::I8,
            Self::U16(_) => Kind::U16,
            Self::I16(_) => Kind::I16,
            Self::U32(_) => Kind::U32,
            Self::I32(_) => Kind::I32,
            Self::F32(_) => Kind::F32,
            Self::Bool(_) => Kind::Bool,
            Self::Str(_) => Kind::Str,
            Self::Array(_) => Kind::Array,
            Self::U64(_) => Kind::U64,
            Self::I64(_) => Kind::I64,
            Self::F64(_) => Kind::F64,
        }
    }

    /// The value as a non-negative integer of any width.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a number of any type.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// The value as a boolean.
    pub fn as_bool(&self) -> Option<bool> {
        if let Self::Bool(v) = self { Some(*v) } else { None }
    }

    /// The value as a string.
    pub fn as_str(&self) -> Option<&str> {
        if let Self::Str(v) = self { Some(v) } else { None }
    }

    /// The value as an array.
    pub fn as_array(&self) -> Option<&Array> {
        if let Self::Array(v) = self { Some(v) } else { None }
    }

    pub(super) fn read(kind: Kind, cursor: &mut Cursor<'_>, file: &Arc<Mapped>) -> Result<Self> {
        Ok(match kind {
            Kind::Str => Self::Str(cursor.str(u64::MAX, "a string")?.to_owned()),
            Kind::Array => Self::Array(Array::read(cursor, file)?),
            _ => {
                let bytes = cursor.take(kind.size().unwrap_or(0) as u64, "a value")?;
                Self::scalar(kind, bytes).ok_or_else(|| cursor.error("a boolean must be 0 or 1"))?
            }
        })
    }

    fn scalar(kind: Kind, bytes: &[u8]) -> Option<Self> {
        Some(match kind {
            Kind::U8 => Self::U8(*bytes.first()?),
            Kind::I8 => Self::I8(i8::from_le_bytes(bytes.try_into().ok()?)),
            Kind::U16 => Self::U16(u16::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I16 => Self::I16(i16::from_le_bytes(bytes.try_into().ok()?)),
            Kind::U32 => Self::U32(u32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I32 => Self::I32(i32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::F32 => Self::F32(f32::from_le_bytes(bytes.try_into().ok()?)),
            Kind::U64 => Self::U64(u64::from_le_bytes(bytes.try_into().ok()?)),
            Kind::I64 => Self::I64(i64::from_le_bytes(bytes.try_into().ok()?)),
            Kind::F64 => Self::F64(f64::from_le_bytes(bytes.try_into().ok()?)),
            Kind::Bool => match bytes.first()? {
                0 => Self::Bool(false),
                1 => Self::Bool(true),
                _ => return None,
            },
            Kind::Str | Kind::Array => return None,
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => out.push(*v),
            Self::I8(v) => out.extend(v.to_le_bytes()),
            Self::U16(v) => out.extend(v.to_le_bytes()),
            Self::I16(v) => out.extend(v.to_le_bytes()),
            Self::U32(v) => out.extend(v.to_le_bytes()),
            Self::I32(v) => out.extend(v.to_le_bytes()),
            Self::F32(v) => out.extend(v.to_le_bytes()),
            Self::U64(v) => out.extend(v.to_le_bytes()),
            Self::I64(v) => out.extend(v.to_le_bytes()),
            Self::F64(v) => out.extend(v.to_le_bytes()),
            Self::Bool(v) => out.push((*v).into()),
            Self::Str(v) => write_str(v, out),
            Self::Array(v) => {
                out.extend(v.kind.id().to_le_bytes());
                out.extend((v.count as u64).to_le_bytes());
                out.extend(v.bytes());
            }
        }
    }
}

pub(super) fn write_str(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// A homogeneous array, kept in the file's encoding.
///
/// A vocabulary of 150,000 strings is validated at open and decoded only when iterated.
#[derive(Debug, Clone)]
pub struct Array {
    kind: Kind,
    count: usize,
    store: Store,
}

#[derive(Debug, Clone)]
enum Store {
    File(Arc<Mapped>, Range<usize>),
    Owned(Vec<u8>),
}

impl Array {
    fn read(cursor: &mut Cursor<'_>, file: &Arc<Mapped>) -> Result<Self> {
        let id = cursor.clone();
        let kind = cursor.u32("an array's type")?;
        let kind = Kind::from_id(kind).ok_or_else(|| id.error(format!("`{kind}` is not a value type")))?;
        let length = cursor.clone();
        let count = cursor.u64("an array's length")?;
        let start = cursor.at();
        match kind.size() {
            Some(size) => {
                let bytes = count.checked_mul(size as u64);
                let bytes = bytes.ok_or_else(|| length.error(format!("an array of {count} overflows")))?;
                cursor.skip(bytes, "an array")?;
            }
            None if kind == Kind::Array => return Err(id.error("arrays of arrays are not supported")),
            None => {
                if count > cursor.left() as u64 / 8 {
                    return Err(length.error(format!("an array of {count} strings is longer than the file")));
                }
                for _ in 0..count {
                    let len = cursor.u64("a string's length")?;
                    cursor.skip(len, "a string")?;
                }
            }
        }
        let count = usize::try_from(count).map_err(|e| length.error(e))?;
        Ok(Self { kind, count, store: Store::File(file.clone(), start..cursor.at()) })
    }

    /// Creates an array of strings.
    pub fn of_strings<'a>(strings: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut bytes, mut count) = (Vec::new(), 0);
        for text in strings {
            write_str(text, &mut bytes);
            count += 1;
        }
        Self { kind: Kind::Str, count, store: Store::Owned(bytes) }
    }

    /// Creates an array of u8.
    pub fn of_u8(values: &[u8]) -> Self {
        Self { kind: Kind::U8, count: values.len(), store: Store::Owned(values.to_vec()) }
    }

    /// Creates an array of f32.
    pub fn of_f32(values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { kind: Kind::F32, count: values.len(), store: Store::Owned(bytes) }
    }

    /// Creates an array of i32.
    pub fn of_i32(values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { kind: Kind::I32, count: values.len(), store: Store::Owned(bytes) }
    }

    /// Creates an array of u32.
    pub fn of_u32(values: &[u32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { kind: Kind::U32, count: values.len(), store: Store::Owned(bytes) }
    }

    /// Creates an array of unsigned 64-bit integers.
    pub fn of_u64(values: &[u64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { kind: Kind::U64, count: values.len(), store: Store::Owned(bytes) }
    }

    /// Creates an array of booleans.
    pub fn of_bool(values: &[bool]) -> Self {
        let bytes = values.iter().map(|&v| v.into()).collect();
        Self { kind: Kind::Bool, count: values.len(), store: Store::Owned(bytes) }
    }

    /// Element type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the array has no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn bytes(&self) -> &[u8] {
        match &self.store {
            Store::File(file, range) => file.bytes().get(range.clone()).unwrap_or_default(),
            Store::Owned(bytes) => bytes,
        }
    }

    /// Elements of a numeric or boolean array; empty for strings.
    pub fn scalars(&self) -> impl Iterator<Item = Value> + '_ {
        let size = self.kind.size().unwrap_or(usize::MAX);
        self.bytes().chunks_exact(size).filter_map(|bytes| Value::scalar(self.kind, bytes))
    }

    /// Raw bytes of each string; empty for other element types.
    pub fn string_bytes(&self) -> impl Iterator<Item = &[u8]> + '_ {
        let mut rest = if self.kind == Kind::Str { self.bytes() } else { &[] };
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first_chunk::<8>()?;
            let (text, next) = after.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
            rest = next;
            Some(text)
        })
    }

    /// Strings; an error names the first one that is not UTF-8.
    pub fn strings(&self) -> impl Iterator<Item = Result<&str>> + '_ {
        self.string_bytes().enumerate().map(|(i, bytes)| {
            std::str::from_utf8(bytes).map_err(|e| Error::at(format!("string {i} of an array"), e))
        })
    }
}
