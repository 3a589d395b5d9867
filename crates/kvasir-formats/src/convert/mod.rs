//! Converts and quantizes any checkpoint (Hugging Face or GGUF) to one GGUF file.
//!
//! 1. Open the source; collect output tensors (`from_hf`, or the GGUF's own).
//! 2. Write metadata and the vocabulary (`metadata`, `vocab`).
//! 3. Choose an encoding per tensor (`rules`), describe all tensors, then stream their data one by
//!    one.
//!
//! Memory is bounded by the largest tensor. The output file is atomic: it appears complete or not
//! at all. Guarded by `tests/convert.rs`.

mod from_hf;
mod metadata;
mod normalizer;
mod output;
mod pair_template;
mod placement;
mod post_processor;
mod pre_tokenizer;
mod recurrent_tensors;
mod recurrent_values;
pub(crate) mod rules;
mod token_table;
mod unigram;
mod vocab;
mod watch;
mod wordpiece;

use crate::checkpoint::Checkpoint;
use crate::convert::output::{Change, Output, Part, quantize_in_parallel};
use crate::convert::rules::{Rules, Subject};
use crate::convert::watch::Watch;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::files::atomic_file::AtomicFile;
use crate::gguf::reader::Gguf;
use crate::gguf::value::Value;
use crate::gguf::writer::Writer;
use crate::text_files::TextFiles;
use serde_json::Value as Json;
use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    path::Path,
};

/// Summary of a conversion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Converted {
    /// Per encoding: number of tensors, and bytes of their data.
    pub by_type: BTreeMap<DType, (usize, u64)>,
}

/// Converts `model` (a directory or a GGUF file) to the GGUF file `to`. On error `to` is unchanged.
pub fn convert(model: &Path, to: &Path, rules: &Rules) -> Result<Converted> {
    let file = AtomicFile::create(to)?;
    let done = convert_to(&Checkpoint::open(model)?, file.writer()?, rules, &|_, _| true)?;
    file.commit()?;
    Ok(done)
}

/// Converts an opened checkpoint and writes the GGUF bytes to `to`.
///
/// `report` gets the weights converted so far and in total, from any thread and several times per
/// second. If it returns false, the conversion ends with an error.
pub fn convert_to(
    checkpoint: &Checkpoint,
    to: impl Write,
    rules: &Rules,
    report: &(dyn Fn(u64, u64) -> bool + Sync),
) -> Result<Converted> {
    let mut writer = Writer::new();
    let mut given: HashMap<String, Vec<f32>> = HashMap::new();
    let outputs = match checkpoint.gguf() {
        Some(gguf) => {
            copy_metadata(gguf, &mut writer);
            of_gguf(gguf)
        }
        None => {
            let mut outputs = from_hf::outputs(checkpoint)?;
            for (name, values) in metadata::write(checkpoint, &mut writer)? {
                let part = Part { change: Change::Computed, ..Part::whole(name) };
                outputs.insert(
                    0,
                    Output { name: name.to_owned(), shape: vec![values.len()], parts: vec![part] },
                );
                given.insert(name.to_owned(), values);
            }
            let rows = placement::size(checkpoint.config(), "vocab_size")?;
            let json = checkpoint.beside("tokenizer.json", 256 << 20)?;
            vocab::write(&TextFiles::open(checkpoint.path())?, json.as_deref(), rows, &mut writer)?;
            metadata::write_token_type_count(&outputs, &mut writer);
            outputs
        }
    };
    metadata::kv_facts(checkpoint, &mut writer)?;
    writer.set("general.file_type", Value::U32(rules.file_type()));
    writer.set("general.quantization_version", Value::U32(2));
    let (types, done) = describe(checkpoint, &outputs, rules, &mut writer)?;
    let by_name: HashMap<&str, &Output> = outputs.iter().map(|o| (o.name.as_str(), o)).collect();
    let weights = |output: &Output| output.shape.iter().product::<usize>() as u64;
    let watch = Watch::new(outputs.iter().map(weights).sum(), report);
    let mut done_weights = 0;
    writer.write(to, |name, bytes| {
        let output =
            by_name.get(name).ok_or_else(|| Error::at(format!("tensor {name}"), "is not described"))?;
        let dtype = types.get(name).copied().unwrap_or(DType::F32);
        let row = output.shape.last().copied().unwrap_or(1);
        let given = given.get(name).map_or(&[][..], Vec::as_slice);
        for part in &output.parts {
            match (checkpoint.gguf(), &part.change) {
                (Some(gguf), _) => repack(gguf, name, dtype, &watch, bytes)?,
                (None, _) => part.write(checkpoint, dtype, row, given, &watch, bytes)?,
            }
        }
        done_weights += weights(output);
        watch.reach(done_weights)
    })?;
    Ok(done)
}

fn describe<'a>(
    checkpoint: &Checkpoint,
    outputs: &'a [Output],
    rules: &Rules,
    writer: &mut Writer,
) -> Result<(HashMap<&'a str, DType>, Converted)> {
    let layers = placement::size(checkpoint.config(), "num_hidden_layers")?;
    let head =
        if outputs.iter().any(|o| o.name == "output.weight") { "output.weight" } else { "token_embd.weight" };
    let (mut types, mut done) = (HashMap::new(), Converted::default());
    let subject = |o: &'a Output| Subject { name: &o.name, shape: &o.shape, layers, is_head: o.name == head };
    rules.check_used(outputs.iter().map(subject))?;
    for o in outputs {
        let dtype = rules.dtype(&subject(o))?;
        writer.describe(o.name.clone(), dtype, &o.shape)?;
        let counted = done.by_type.entry(dtype).or_default();
        counted.0 += 1;
        counted.1 += dtype.tensor_bytes(&o.shape)? as u64;
        types.insert(o.name.as_str(), dtype);
    }
    Ok((types, done))
}

fn copy_metadata(gguf: &Gguf, writer: &mut Writer) {
    for (key, value) in gguf.metadata() {
        // Shard keys and alignment do not apply to the new file; `kv_cache.*` is written anew.
        if !key.starts_with("split.") && !key.starts_with("kv_cache.") && key != "general.alignment" {
            writer.set(key.clone(), value.clone());
        }
    }
}

fn of_gguf(gguf: &Gguf) -> Vec<Output> {
    let output = |t: &crate::gguf::reader::TensorInfo| Output {
        name: t.name.clone(),
        shape: t.shape.clone(),
        parts: vec![Part::whole(t.name.clone())],
    };
    gguf.tensors().iter().map(output).collect()
}

fn repack(gguf: &Gguf, name: &str, dtype: DType, watch: &Watch<'_>, out: &mut Vec<u8>) -> Result<()> {
    let fail = |e: Error| Error::at(format!("tensor {name}"), e);
    let info = gguf.tensors().iter().find(|t| t.name == name);
    let info = info.ok_or_else(|| Error::at(format!("tensor {name}"), "is missing"))?;
    let bytes = gguf.bytes(info);
    if info.dtype == dtype {
        out.extend_from_slice(bytes);
        return Ok(());
    }
    let mut values = vec![0.0; info.shape.iter().product()];
    crate::encoding::dequantize(info.dtype, bytes, &mut values).map_err(fail)?;
    let row = info.shape.last().copied().unwrap_or(1);
    quantize_in_parallel(dtype, &values, row, watch, out).map_err(fail)
}

/// Flattens a `tokenizer.json` component: a single step, or nested sequences under the key `list`.
fn steps<'a>(part: Option<&'a Json>, list: &str) -> Vec<&'a Json> {
    match part.map(|part| (part, part.get(list).and_then(Json::as_array))) {
        None | Some((Json::Null, _)) => Vec::new(),
        Some((_, Some(parts))) => parts.iter().flat_map(|part| steps(Some(part), list)).collect(),
        Some((step, None)) => vec![step],
    }
}

/// The error message of a token id without a row in the embedding matrix.
fn row_out_of_range(id: u32, rows: usize) -> String {
    format!("id {id} is beyond the embedding's {rows} rows")
}
