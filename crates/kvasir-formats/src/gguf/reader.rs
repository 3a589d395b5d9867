//! GGUF reader: header, metadata and tensor table over memory-mapped files, including split files.
//!
//! The input is untrusted. Counts are bounded by the file size before allocation. Tensors must be
//! contiguous in table order with the declared alignment, and each range is checked against the
//! file.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files::mapped::Mapped;
use crate::gguf::cursor::Cursor;
use crate::gguf::value::{Array, Kind, Value};
use std::{
    collections::{BTreeMap, HashSet},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

const MAX_KEY: u64 = 65_535;
const MAX_NAME: u64 = 255;
const MAX_DIMS: u32 = 4;
const MAX_SHARDS: u64 = 1024;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Minimum encoded bytes of a key-value pair and, below, of a tensor description.
const MIN_PAIR: u64 = 13;
const MIN_INFO: u64 = 32;

/// An entry of the tensor table.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// GGUF name.
    pub name: String,
    /// Storage type of the elements.
    pub dtype: DType,
    /// Slowest dimension first, reversed from the file's order.
    pub shape: Vec<usize>,
    pub(crate) file: usize,
    pub(crate) range: Range<usize>,
}

/// An opened GGUF file, including all shards of a split one.
#[derive(Debug, Clone)]
pub struct Gguf {
    files: Vec<Arc<Mapped>>,
    meta: BTreeMap<String, Value>,
    tensors: Vec<TensorInfo>,
}

impl Gguf {
    /// Opens a file. For `…-00001-of-000NN.gguf` the sibling shards are opened too.
    pub fn open(path: &Path) -> Result<Self> {
        let mut all = Self::empty();
        all.add(Mapped::open(path)?)?;
        let shards = all.meta.get("split.count").and_then(Value::as_u64).unwrap_or(1);
        if shards > 1 {
            all.add_siblings(path, shards)?;
        }
        Ok(all)
    }

    /// Opens a file built into the binary; `name` appears in errors.
    pub fn built_in(name: &str, bytes: &'static [u8]) -> Result<Self> {
        let mut all = Self::empty();
        all.add(Mapped::built_in(name, bytes))?;
        Ok(all)
    }

    fn empty() -> Self {
        Self { files: Vec::new(), meta: BTreeMap::new(), tensors: Vec::new() }
    }

    fn add_siblings(&mut self, path: &Path, shards: u64) -> Result<()> {
        let fail = |why: String| Error::at("split.count", why).in_file(path);
        if shards > MAX_SHARDS {
            return Err(fail(format!("{shards} shards; at most {MAX_SHARDS} are supported")));
        }
        if self.meta.get("split.no").and_then(Value::as_u64) != Some(0) {
            return Err(fail("open the first file of a split model".into()));
        }
        for no in 2..=shards {
            let sibling = shard_path(path, no, shards).ok_or_else(|| {
                fail(format!("has {shards} shards, but its name does not end in -00001-of-{shards:05}.gguf"))
            })?;
            self.add(Mapped::open(&sibling)?)?;
        }
        let expected = self.meta.get("split.tensors.count").and_then(Value::as_u64);
        match expected {
            Some(n) if n != self.tensors.len() as u64 => Err(fail(format!(
                "`split.tensors.count` is {n}, but the shards contain {} tensors",
                self.tensors.len()
            ))),
            _ => Ok(()),
        }
    }

    /// Adds one shard; metadata is taken from the first.
    fn add(&mut self, file: Mapped) -> Result<()> {
        let file = Arc::new(file);
        let path = file.path();
        let (meta, tensors) = parse(&file, self.files.len()).map_err(|e| e.in_file(path))?;
        let names: HashSet<&str> = self.tensors.iter().map(|t| t.name.as_str()).collect();
        if let Some(twice) = tensors.iter().find(|t| names.contains(t.name.as_str())) {
            return Err(Error::at(format!("tensor {}", twice.name), "occurs in two files").in_file(path));
        }
        if self.files.is_empty() {
            self.meta = meta;
        }
        self.files.push(file);
        self.tensors.extend(tensors);
        Ok(())
    }

    /// Path of the first file.
    pub fn path(&self) -> &Path {
        self.files.first().map_or(Path::new(""), |f| f.path())
    }

    /// All tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Bytes of a tensor of this file.
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        self.files.get(info.file).and_then(|f| f.bytes().get(info.range.clone())).unwrap_or_default()
    }

    pub(crate) fn files(&self) -> &[Arc<Mapped>] {
        &self.files
    }

    /// All metadata by key.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.meta
    }

    /// The metadata value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.meta.get(key)
    }

    /// The string value of a key.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Value::as_str)
    }

    /// The value of a key as a non-negative integer.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key).and_then(Value::as_u64)
    }

    /// The array value of a key.
    pub fn array(&self, key: &str) -> Option<&Array> {
        self.get(key).and_then(Value::as_array)
    }

    /// `general.architecture`, or an empty string.
    pub fn architecture(&self) -> &str {
        self.str("general.architecture").unwrap_or_default()
    }

    /// The value of `ARCHITECTURE.key`.
    pub fn arch(&self, key: &str) -> Option<&Value> {
        self.get(&format!("{}.{key}", self.architecture()))
    }
}

/// Path of shard `no` of `…-00001-of-000NN.gguf`.
fn shard_path(first: &Path, no: u64, of: u64) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-00001-of-{of:05}.gguf"))?;
    Some(first.with_file_name(format!("{stem}-{no:05}-of-{of:05}.gguf")))
}

type Parsed = (BTreeMap<String, Value>, Vec<TensorInfo>);

/// Parses one shard: magic, version, counts, key-value pairs, tensor table, then the data offset.
fn parse(file: &Arc<Mapped>, index: usize) -> Result<Parsed> {
    let mut cursor = Cursor::new(file.bytes());
    if cursor.take(4, "the magic")? != b"GGUF" {
        return Err(Error::at("offset 0", "not a GGUF file"));
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        1 => return Err(Error::at("offset 4", "GGUF version 1 is not supported")),
        v if v & 0xffff == 0 => return Err(Error::at("offset 4", "big-endian GGUF is not supported")),
        v => return Err(Error::at("offset 4", format!("GGUF version `{v}` is not known"))),
    }
    let (tensors_at, tensors) = (cursor.at(), cursor.u64("the number of tensors")?);
    let (pairs_at, pairs) = (cursor.at(), cursor.u64("the number of keys")?);
    for (at, n, least, what) in
        [(tensors_at, tensors, MIN_INFO, "tensors"), (pairs_at, pairs, MIN_PAIR, "keys")]
    {
        if n > cursor.left() as u64 / least {
            return Err(Error::at(
                format!("offset {at}"),
                format!("{n} {what} do not fit into the file: it is corrupt or truncated"),
            ));
        }
    }
    let mut meta = BTreeMap::new();
    for _ in 0..pairs {
        pair(&mut cursor, file, &mut meta)?;
    }
    let alignment = alignment(&meta)?;
    let mut infos = Vec::new();
    for _ in 0..tensors {
        infos.push(info(&mut cursor)?);
    }
    let data =
        align(cursor.at() as u64, alignment).ok_or_else(|| cursor.error("the data offset overflows"))?;
    Ok((meta, place(infos, data, alignment, file.bytes().len() as u64, index)?))
}

fn pair(cursor: &mut Cursor<'_>, file: &Arc<Mapped>, meta: &mut BTreeMap<String, Value>) -> Result<()> {
    let start = cursor.clone();
    let key = cursor.str(MAX_KEY, "a key")?;
    if key.is_empty() {
        return Err(start.error("a key is empty"));
    }
    let in_key = |e: Error| Error::at(format!("{} (key {key})", e.place()), e.why());
    let id = cursor.clone();
    let kind = cursor.u32("a value's type").map_err(in_key)?;
    let kind =
        Kind::from_id(kind).ok_or_else(|| in_key(id.error(format!("`{kind}` is not a value type"))))?;
    let value = Value::read(kind, cursor, file).map_err(in_key)?;
    match meta.insert(key.to_owned(), value) {
        Some(_) => Err(start.error(format!("key `{key}` occurs twice"))),
        None => Ok(()),
    }
}

fn alignment(meta: &BTreeMap<String, Value>) -> Result<u64> {
    match meta.get("general.alignment") {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::U32(n)) if n.is_power_of_two() => Ok((*n).into()),
        Some(other) => {
            Err(Error::at("general.alignment", format!("{other:?} is not a power of two of type u32")))
        }
    }
}

fn align(n: u64, alignment: u64) -> Option<u64> {
    n.checked_next_multiple_of(alignment)
}

/// A tensor description before range validation; `offset` counts from the start of the data
/// section.
struct Described {
    at: usize,
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    offset: u64,
    bytes: u64,
}

fn info(cursor: &mut Cursor<'_>) -> Result<Described> {
    let start = cursor.clone();
    let name = cursor.str(MAX_NAME, "a tensor's name")?;
    let fail = |c: &Cursor<'_>, why: String| Error::at(format!("offset {} (tensor {name})", c.at()), why);
    let at = cursor.clone();
    let dims = cursor.u32("the number of dimensions")?;
    if dims == 0 || dims > MAX_DIMS {
        return Err(fail(&at, format!("{dims} dimensions; 1 to {MAX_DIMS} are supported")));
    }
    let mut shape = Vec::new();
    for _ in 0..dims {
        let at = cursor.clone();
        let dim = cursor.u64("a dimension")?;
        let ok = usize::try_from(dim).ok().filter(|&d| d > 0 && d <= isize::MAX as usize);
        shape.push(ok.ok_or_else(|| fail(&at, format!("dimension `{dim}` is zero or too large")))?);
    }
    shape.reverse(); // the file lists the fastest dimension first
    let at = cursor.clone();
    let id = cursor.u32("a tensor's type")?;
    let dtype = DType::from_gguf_id(id).ok_or_else(|| fail(&at, unknown_type(id)))?;
    let offset = cursor.u64("a tensor's offset")?;
    let bytes = dtype.tensor_bytes(&shape).map_err(|e| fail(&start, e.to_string()))?;
    if bytes > isize::MAX as usize || shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).is_none() {
        return Err(fail(&start, "the size overflows".into()));
    }
    Ok(Described { at: start.at(), name: name.to_owned(), dtype, shape, offset, bytes: bytes as u64 })
}

fn unknown_type(id: u32) -> String {
    let unsupported = |name: &str| {
        let weights = DType::all().filter(|d| d.is_weight() && d.gguf_id().is_some());
        let names: Vec<String> = weights.map(|d| d.name().to_uppercase()).collect();
        format!("type {name} is not supported; use a file with {}", names.join(", "))
    };
    match id {
        4 | 5 | 31..=33 | 36..=38 => format!("type `{id}` was removed from GGUF"),
        9 | 15 => format!("type `{id}` is not a weight type"),
        16 => unsupported("IQ2_XXS"),
        17 => unsupported("IQ2_XS"),
        18 => unsupported("IQ3_XXS"),
        19 => unsupported("IQ1_S"),
        21 => unsupported("IQ3_S"),
        22 => unsupported("IQ2_S"),
        29 => unsupported("IQ1_M"),
        34 => unsupported("TQ1_0"),
        35 => unsupported("TQ2_0"),
        40 => unsupported("NVFP4"),
        41 => unsupported("Q1_0"),
        42 => unsupported("Q2_0"),
        _ => format!("type `{id}` is not known"),
    }
}

/// How much of a file there is: in megabytes, of a small one in bytes.
fn part_of(there: u64, whole: u64) -> String {
    match whole {
        10_000_000.. => format!("{} of {} MB are there", there / 1_000_000, whole / 1_000_000),
        _ => format!("{there} of {whole} bytes are there"),
    }
}

/// Validates and resolves tensor ranges: contiguous, in table order, each padded to the alignment.
fn place(
    infos: Vec<Described>,
    data: u64,
    alignment: u64,
    file_len: u64,
    index: usize,
) -> Result<Vec<TensorInfo>> {
    let (mut expected, mut names) = (0u64, HashSet::new());
    let end = |t: &Described| data.saturating_add(t.offset).saturating_add(t.bytes);
    let whole = infos.iter().map(end).max().unwrap_or(data);
    let mut out = Vec::with_capacity(infos.len());
    for t in infos {
        let fail = |why: String| Error::at(format!("offset {} (tensor {})", t.at, t.name), why);
        if !names.insert(t.name.clone()) {
            return Err(fail("occurs twice".into()));
        }
        if t.offset != expected {
            return Err(fail(format!("its data offset is `{}`, expected {expected}", t.offset)));
        }
        let start = data.checked_add(t.offset);
        let range = start.and_then(|a| Some(a..a.checked_add(t.bytes)?)).filter(|r| r.end <= file_len);
        let range = range.ok_or_else(|| {
            let why = format!(
                "{}; fetch the file again (tensor {} with {} bytes at offset {data} + {} ends beyond it)",
                part_of(file_len, whole),
                t.name,
                t.bytes,
                t.offset
            );
            Error::at("truncated", why)
        })?;
        let next = t.offset.checked_add(t.bytes).and_then(|end| align(end, alignment));
        expected = next.ok_or_else(|| fail("the next offset overflows".into()))?;
        let range = range.start as usize..range.end as usize; // within the map, so it fits usize
        out.push(TensorInfo { name: t.name, dtype: t.dtype, shape: t.shape, file: index, range });
    }
    Ok(out)
}
