//! A model on disk: named tensors over memory-mapped safetensors or GGUF files, and its config.
//!
//! All tensors carry Hugging Face names and the config has Hugging Face spelling, whatever the file
//! format. Offsets, sizes and companion scales are validated at open; tensor bytes are never
//! copied. Guarded by `tests/hostile.rs`, `tests/convert.rs` and the fuzz targets.

use crate::config::from_gguf::describe;
use crate::config::from_gguf::generation_config;
use crate::config::language_model::LanguageModel;
use crate::config::quantization::Quantization;
use crate::config::renames::Renames;
use crate::config::sentence_transformers;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files::mapped::Mapped;
use crate::files::read::{read_json, read_text};
use crate::gguf::names::HfName;
use crate::gguf::names::Naming;
use crate::gguf::reader::Gguf;
use crate::gguf::reader::TensorInfo;
use crate::safetensors;
use crate::tensor::TensorView;
use kvasir_program::{Architecture, Eagle3, Layout, Program, Source, canonical_name};
use serde_json::Value as Json;
use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Component, Path, PathBuf},
    sync::Arc,
};
use xxhash_rust::xxh64::Xxh64;

mod dequantize;

/// Bytes at the start of each tensor that a fingerprint hashes.
const FINGERPRINT_BYTES: usize = 64;

/// Read-only weights and config of a model: named tensors over memory-mapped files. Clones share
/// the maps.
///
/// ```no_run
/// # fn main() -> kvasir_formats::Result<()> {
/// let model = kvasir_formats::Checkpoint::open("models/qwen3".as_ref())?;
/// let norm = model.tensor("model.norm.weight").map(|t| t.to_f32()).transpose()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Checkpoint {
    path: PathBuf,
    files: Vec<Arc<Mapped>>,
    tensors: BTreeMap<String, Entry>,
    config: Json,
    generation: Option<Json>,
    quantization: Option<Quantization>,
    layout: Layout,
    gguf: Option<Arc<Gguf>>,
    left_out: usize,
}

#[derive(Debug, Clone)]
struct Entry {
    dtype: DType,
    shape: Vec<usize>,
    file: usize,
    range: Range<usize>,
}

/// Maximum number of elements of a tensor that is moved into the config.
const MAX_CONFIG_ELEMENTS: usize = 4096;

/// Whether a directory has weights in PyTorch's own format.
fn has_pickled_weights(dir: &Path) -> bool {
    ["pytorch_model.bin", "pytorch_model.bin.index.json"].iter().any(|name| dir.join(name).exists())
}

impl Checkpoint {
    /// Opens a Hugging Face model directory or a GGUF file (the first part, if split).
    pub fn open(path: &Path) -> Result<Self> {
        if path.is_dir() { Self::open_dir(path) } else { Self::of_gguf(Arc::new(Gguf::open(path)?)) }
    }

    fn open_dir(dir: &Path) -> Result<Self> {
        let config_path = dir.join("config.json");
        let config =
            read_json(&config_path)?.ok_or_else(|| Error::at(config_path.display(), "is missing"))?;
        if !config.is_object() {
            return Err(Error::at(config_path.display(), "is not an object"));
        }
        let text = LanguageModel::of(&config).map_err(|e| e.in_file(&config_path))?;
        let mut config = text.as_ref().map_or(config, |text| text.config.clone());
        sentence_transformers::add_config_keys(dir, &mut config)?;
        let quantization = Quantization::of(&config).map_err(|e| e.in_file(&config_path))?;
        let mut out = Self {
            path: dir.to_owned(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
            generation: read_json(&dir.join("generation_config.json"))?,
            config,
            quantization,
            layout: Layout::default(),
            gguf: None,
            left_out: 0,
        };
        let index = dir.join("model.safetensors.index.json");
        let whole = dir.join("model.safetensors");
        match read_json(&index)? {
            Some(json) => out.add_shards(dir, &json).map_err(|e| e.in_file(&index))?,
            None if !whole.exists() && has_pickled_weights(dir) => {
                let why = "is missing: the weights are `pytorch_model.bin` only, a pickle that is not read; \
                    save them as `model.safetensors` (`safetensors.torch.save_file`)";
                return Err(Error::at(whole.display(), why));
            }
            None => out.add_file(&whole)?,
        }
        match &text {
            Some(text) => out.rename_tensors(|joined| text.name(joined))?,
            // Draft heads have names of their own.
            None if out.tensors.contains_key(Eagle3::PROJECTION) => {}
            None => {
                let class = out.config.pointer("/architectures/0").and_then(Json::as_str);
                let class = class.unwrap_or_default().to_owned();
                out.rename_tensors(|name| canonical_name(&class, name))?;
            }
        }
        out.apply_architecture_renames()?;
        out.move_config_tensors()?;
        Ok(out)
    }

    /// A checkpoint in the Hugging Face layout that is built into the binary: the text of its
    /// `config.json` and the bytes of its `model.safetensors`. `name` appears in errors.
    pub fn built_in(name: &str, config: &str, tensors: &'static [u8]) -> Result<Self> {
        let mut out = Self {
            path: name.into(),
            files: Vec::new(),
            tensors: BTreeMap::new(),
            generation: None,
            config: serde_json::from_str(config).map_err(|e| Error::at(format!("{name}/config.json"), e))?,
            quantization: None,
            layout: Layout::default(),
            gguf: None,
            left_out: 0,
        };
        out.add_mapped(Mapped::built_in(name, tensors))?;
        Ok(out)
    }

    /// Renames all tensors by `rename`; drops and counts those for which it returns `None`. Selects
    /// the language model of a multimodal checkpoint, and gives base models their canonical tensor
    /// names.
    fn rename_tensors(&mut self, rename: impl Fn(&str) -> Option<String>) -> Result<()> {
        for (joined, entry) in std::mem::take(&mut self.tensors) {
            match rename(&joined) {
                None => self.left_out += 1,
                Some(name) => {
                    if self.tensors.insert(name, entry).is_some() {
                        let fail = Error::at(format!("tensor {joined}"), "occurs under two names");
                        return Err(fail.in_file(&self.path));
                    }
                }
            }
        }
        if let Some(q) = &mut self.quantization {
            q.not_converted = q.not_converted.iter().filter_map(|module| rename(module)).collect();
        }
        Ok(())
    }

    /// Replaces tensor names that only this architecture uses by the canonical ones.
    fn apply_architecture_renames(&mut self) -> Result<()> {
        let Some(renames) = Renames::of(&self.config) else { return Ok(()) };
        renames.apply(&mut self.tensors).map_err(|e| e.in_file(&self.path))?;
        if let Some(q) = &mut self.quantization {
            q.not_converted.iter_mut().for_each(|module| *module = renames.canonical_module(module));
        }
        let has_prediction = self.tensors.contains_key(&renames.prediction_tensor());
        renames.set_prediction_count(&mut self.config, has_prediction);
        Ok(())
    }

    /// Moves the values of the architecture's `config_tensors` into the config.
    fn move_config_tensors(&mut self) -> Result<()> {
        let Ok(architecture) = Architecture::of(&self.config) else { return Ok(()) };
        for (suffix, key) in architecture.config_tensors {
            let names: Vec<String> =
                self.tensors.keys().filter(|name| name.ends_with(suffix)).cloned().collect();
            for name in names {
                let bad = |why: &str| Error::at(format!("tensor {name}"), why).in_file(&self.path);
                if self.tensors[&name].shape.iter().product::<usize>() > MAX_CONFIG_ELEMENTS {
                    return Err(bad("has too many elements"));
                }
                let values = Json::from(self.integers(&name)?.unwrap_or_default());
                let map = self.config.as_object_mut();
                let previous = map.and_then(|map| map.insert((*key).to_owned(), values.clone()));
                if previous.is_some_and(|previous| !previous.is_null() && previous != values) {
                    return Err(bad("differs from that of another layer, which is not supported"));
                }
                self.tensors.remove(&name);
            }
        }
        Ok(())
    }

    fn add_shards(&mut self, dir: &Path, index: &Json) -> Result<()> {
        let map = index.get("weight_map").and_then(Json::as_object);
        let map = map.ok_or_else(|| Error::at("weight_map", "is missing or not an object"))?;
        let mut names: Vec<&str> = Vec::new();
        for (tensor, file) in map {
            let bad = || Error::at(format!("weight_map.{tensor}"), "is not a file name beside the index");
            let file = file.as_str().ok_or_else(bad)?;
            let mut parts = Path::new(file).components();
            if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
                return Err(bad());
            }
            names.push(file);
        }
        names.sort_unstable();
        names.dedup();
        for name in names {
            self.add_file(&dir.join(name))?;
        }
        for (tensor, file) in map {
            let held = self.tensors.get(tensor).and_then(|e| self.files.get(e.file));
            let same = held
                .and_then(|f| f.path().file_name())
                .is_some_and(|n| Some(n) == file.as_str().map(AsRef::as_ref));
            if !same {
                return Err(Error::at(format!("weight_map.{tensor}"), format!("is not in `{file}`")));
            }
        }
        Ok(())
    }

    fn add_file(&mut self, path: &Path) -> Result<()> {
        self.add_mapped(Mapped::open(path)?)
    }

    fn add_mapped(&mut self, mapped: Mapped) -> Result<()> {
        let file = self.files.len();
        for p in safetensors::read(&mapped)? {
            let entry = Entry { dtype: p.dtype, shape: p.shape, file, range: p.range };
            if self.tensors.insert(p.name.clone(), entry).is_some() {
                let twice = Error::at(format!("tensor {}", p.name), "occurs in two files");
                return Err(twice.in_file(mapped.path()));
            }
        }
        self.files.push(Arc::new(mapped));
        Ok(())
    }

    /// Builds a checkpoint from an opened GGUF file. Fails if the architecture is not supported.
    pub fn of_gguf(gguf: Arc<Gguf>) -> Result<Self> {
        let described = describe(&gguf)?;
        let naming = Naming::of(described.architecture);
        let mut tensors = BTreeMap::new();
        for info in gguf.tensors() {
            add_gguf(&mut tensors, naming, info).map_err(|e| e.in_file(gguf.path()))?;
        }
        Ok(Self {
            path: gguf.path().to_owned(),
            files: gguf.files().to_vec(),
            tensors,
            config: described.config,
            generation: generation_config(&gguf)?,
            quantization: None,
            layout: described.layout,
            gguf: Some(gguf),
            left_out: 0,
        })
    }

    /// A hash (XXH64) of the config, of the names, types and shapes of all tensors, and of the
    /// first 64 bytes of each. Weights that differ only in later bytes have the same fingerprint.
    /// Stable across builds and platforms: files may store it.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = Xxh64::new(0);
        let mut update = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        update(self.config.to_string().as_bytes());
        for tensor in self.tensors() {
            update(tensor.name.as_bytes());
            let shape: Vec<[u8; 8]> = tensor.shape.iter().map(|size| (*size as u64).to_le_bytes()).collect();
            update(shape.as_flattened());
            update(format!("{:?}", tensor.dtype).as_bytes());
            update(tensor.bytes.get(..FINGERPRINT_BYTES).unwrap_or(tensor.bytes));
        }
        hasher.digest()
    }

    /// The model directory or GGUF file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The config in Hugging Face spelling; for GGUF, derived from its metadata.
    pub fn config(&self) -> &Json {
        &self.config
    }

    /// `generation_config.json`, if present; for GGUF, the one embedded at conversion.
    pub fn generation_config(&self) -> Option<&Json> {
        self.generation.as_ref()
    }

    /// The quantization of linear weights declared by the config, if any.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.quantization.as_ref()
    }

    /// Deviations from the Hugging Face layout (head permutation, split experts, …).
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Number of tensors skipped because the text model does not read them: vision towers, poolers,
    /// buffers.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// The underlying GGUF file, with its tokenizer and other metadata.
    pub fn gguf(&self) -> Option<&Arc<Gguf>> {
        self.gguf.as_ref()
    }

    /// Adds a tensor of another checkpoint, under the name `name`, unless there is one of that
    /// name. Both share the bytes. Fails if the other has no such tensor.
    pub fn borrow_tensor(&mut self, name: &str, from: &Self, tensor: &str) -> Result<()> {
        if self.tensors.contains_key(name) {
            return Ok(());
        }
        let missing = || Error::at(format!("tensor {tensor}"), "is missing").in_file(&from.path);
        let entry = from.tensors.get(tensor).ok_or_else(missing)?;
        let held = from.files.get(entry.file).ok_or_else(missing)?;
        self.files.push(Arc::clone(held));
        self.tensors.insert(name.to_owned(), Entry { file: self.files.len() - 1, ..entry.clone() });
        Ok(())
    }

    /// Adds the multi-token-prediction (MTP) layers of a checkpoint that has no other tensors. Both
    /// share the bytes.
    pub fn add_predictions(&mut self, layers: &Self) {
        let (key, file) = ("num_nextn_predict_layers", self.files.len());
        self.files.extend(layers.files.iter().cloned());
        let moved = |(name, entry): (&String, &Entry)| {
            (name.clone(), Entry { file: file + entry.file, ..entry.clone() })
        };
        self.tensors.extend(layers.tensors.iter().map(moved));
        if let (Some(config), Some(count)) = (self.config.as_object_mut(), layers.config.get(key)) {
            config.insert(key.to_owned(), count.clone());
        }
    }

    /// The elements of an integer tensor (I32 or I64); `None` if it is absent.
    pub fn integers(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let Some(view) = self.tensor(name) else { return Ok(None) };
        let (long, short) = (view.bytes.as_chunks::<8>().0, view.bytes.as_chunks::<4>().0);
        match view.dtype {
            DType::I64 => Ok(Some(long.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())),
            DType::I32 => Ok(Some(short.iter().map(|bytes| i64::from(i32::from_le_bytes(*bytes))).collect())),
            other => Err(Error::at(format!("tensor {name}"), format!("is {other:?}, not integers"))
                .in_file(&self.path)),
        }
    }

    /// Reads a text file beside the model, of at most `max` bytes.
    ///
    /// `None` if it is absent or the model is a single file.
    pub fn beside(&self, name: &str, max: u64) -> Result<Option<String>> {
        if self.gguf.is_some() { Ok(None) } else { read_text(&self.path.join(name), max) }
    }

    /// All tensors, ordered by name.
    pub fn tensors(&self) -> impl Iterator<Item = TensorView<'_>> {
        self.tensors.iter().map(|(name, entry)| self.view(name, entry))
    }

    /// A tensor by its Hugging Face name.
    pub fn tensor(&self, name: &str) -> Option<TensorView<'_>> {
        self.tensors.get_key_value(name).map(|(name, entry)| self.view(name, entry))
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> TensorView<'a> {
        // The range was validated against the file at open.
        let bytes =
            self.files.get(entry.file).and_then(|f| f.bytes().get(entry.range.clone())).unwrap_or_default();
        TensorView { name, dtype: entry.dtype, shape: &entry.shape, bytes }
    }

    /// The input of `Model::build`: names, shapes, config and storage layout, without tensor bytes.
    pub fn source(&self) -> Source {
        Source {
            config: self.config().clone(),
            tensors: Some(self.tensors().map(|t| (t.name.to_owned(), t.shape.to_vec())).collect()),
            blocks: self.tensors().filter_map(|t| self.block_of(&t)).collect(),
            layout: self.layout,
        }
    }

    /// Weight name and elements per quantization block of a tensor; `None` if it is not quantized.
    /// MXFP4 stores weight `w` in tensor `w_blocks`.
    fn block_of(&self, tensor: &TensorView<'_>) -> Option<(String, usize)> {
        let mxfp4 = tensor.name.strip_suffix("_blocks").filter(|weight| self.tensor(weight).is_none());
        match mxfp4 {
            Some(weight) => Some((weight.to_owned(), DType::Mxfp4.block_len())),
            None => tensor.dtype.is_quantized().then(|| (tensor.name.to_owned(), tensor.dtype.block_len())),
        }
    }

    /// The tensors that store a weight's rows, each with its number of dimensions per row.
    fn parts(&self, name: &str) -> impl Iterator<Item = (&Entry, usize)> {
        let whole = self.tensors.get(name).map(|entry| (entry, 1));
        let half = |end: &str, dimensions: usize| {
            let entry = whole.is_none().then(|| self.tensors.get(&format!("{name}{end}"))).flatten();
            entry.map(|entry| (entry, dimensions))
        };
        [whole, half("_blocks", 2), half("_scales", 1)].into_iter().flatten()
    }

    /// Stored (encoded) bytes of a weight, including companion tensors.
    pub fn stored_bytes(&self, name: &str) -> usize {
        self.parts(name).map(|(entry, _)| entry.range.len()).sum()
    }

    /// Stored bytes that the programs read. Of a tensor that several programs read, the largest
    /// fraction counts.
    pub fn bytes_read<'a>(&self, programs: impl IntoIterator<Item = &'a Program>) -> u64 {
        let mut tensors: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for program in programs {
            for (name, (read, all)) in program.tensor_elements_read() {
                let most_read = tensors.get(name).map_or(0, |(most, _)| *most);
                tensors.insert(name, (read.max(most_read), all));
            }
        }
        let bytes = |(name, (read, all)): (&str, (usize, usize))| {
            (self.stored_bytes(name) as u128 * read as u128 / (all as u128).max(1)) as u64
        };
        tensors.into_iter().map(bytes).sum()
    }

    /// Prefaults the pages of some rows of a weight that will be read soon, in full.
    pub fn prefault(&self, name: &str, rows: Range<usize>) {
        self.places(name, &rows).for_each(|(file, place)| file.prefault(place));
    }

    /// Drops the pages of some rows from memory (`MADV_DONTNEED`); the next access reads the file
    /// again.
    pub fn release(&self, name: &str, rows: Range<usize>) {
        self.places(name, &rows).for_each(|(file, place)| file.release(place));
    }

    /// File and byte range of some rows of a weight.
    fn places(&self, name: &str, rows: &Range<usize>) -> impl Iterator<Item = (&Arc<Mapped>, Range<usize>)> {
        self.parts(name).filter_map(|(entry, dimensions)| {
            let outer = entry.shape.len().saturating_sub(dimensions);
            let row = entry.range.len() / entry.shape[..outer].iter().product::<usize>().max(1);
            let at = |n: usize| entry.range.start + n.saturating_mul(row).min(entry.range.len());
            Some((self.files.get(entry.file)?, at(rows.start)..at(rows.end)))
        })
    }
}

/// Maximum experts per layer; every expert's matrix gets its own entry.
const MAX_EXPERTS: usize = 4096;
const MAX_ENTRIES: usize = 1 << 19;

fn add_gguf(tensors: &mut BTreeMap<String, Entry>, naming: Naming, info: &TensorInfo) -> Result<()> {
    let fail = |why: &str| Error::at(format!("tensor {}", info.name), why);
    let entry = |shape: &[usize], range: Range<usize>| Entry {
        dtype: info.dtype,
        shape: shape.to_vec(),
        file: info.file,
        range,
    };
    let twice = |old: Option<Entry>| if old.is_some() { Err(fail("occurs under two names")) } else { Ok(()) };
    match naming.to_hf(&info.name).ok_or_else(|| fail("is not part of this architecture"))? {
        HfName::Whole(name) => twice(tensors.insert(name, entry(&info.shape, info.range.clone()))),
        HfName::InConfig => Ok(()),
        HfName::PerExpert(before, after) => {
            let Some((&experts, shape)) = info.shape.split_first() else { return Err(fail("is a scalar")) };
            if experts > MAX_EXPERTS {
                return Err(fail(&format!("has {experts} experts; at most {MAX_EXPERTS} are supported")));
            }
            let part = info.dtype.tensor_bytes(shape).ok().filter(|_| !shape.is_empty());
            let whole = part.filter(|part| part.checked_mul(experts) == Some(info.range.len()));
            let Some(bytes) = whole else { return Err(fail("cannot be split evenly among its experts")) };
            if tensors.len() + experts > MAX_ENTRIES {
                return Err(fail(&format!("exceeds the limit of {MAX_ENTRIES} expert matrices")));
            }
            for e in 0..experts {
                let start = info.range.start + e * bytes;
                twice(tensors.insert(format!("{before}{e}{after}"), entry(shape, start..start + bytes)))?;
            }
            Ok(())
        }
    }
}
