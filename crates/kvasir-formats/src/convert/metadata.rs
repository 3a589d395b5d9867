//! Writes GGUF metadata from a Hugging Face config, by the rules of the architecture: dimensions,
//! MoE routing, RoPE scaling; and the KV cache geometry of the program.
//!
//! The original config is also embedded verbatim (`kvasir.config`), since GGUF has no keys for some
//! of its fields.

use crate::checkpoint::Checkpoint;
use crate::config::from_gguf::GENERATION;
use crate::config::from_gguf::ORIGINAL;
use crate::convert::output::Output;
use crate::error::{Error, Result};
use crate::gguf::kv_metadata::write_kv_facts;
use crate::gguf::value::{Array, Value};
use crate::gguf::writer::Writer;
use kvasir_program::{Architecture, MetadataValue, Model};

/// Writes the architecture's keys; returns the RoPE frequency divisors, which are stored as
/// tensors.
pub(super) fn write(model: &Checkpoint, out: &mut Writer) -> Result<Vec<(&'static str, Vec<f32>)>> {
    let config = model.config();
    let fail = |e| Error::at(model.path().display(), e);
    let architecture = Architecture::of(config).map_err(fail)?;
    let spelled_out = architecture.spelled_out(config);
    let name = architecture.gguf.written_name(&spelled_out);
    out.set("general.architecture", Value::Str(name.into()));
    out.set("general.alignment", Value::U32(32));
    let file_name = model.path().file_name().and_then(|n| n.to_str()).unwrap_or("model");
    out.set("general.name", Value::Str(file_name.into()));
    let mut original = config.clone();
    if let Some(map) = original.as_object_mut() {
        map.remove("quantization_config"); // the file's tensor types apply
    }
    out.set(ORIGINAL, Value::Str(original.to_string()));
    if let Some(generation) = model.generation_config() {
        out.set(GENERATION, Value::Str(generation.to_string()));
    }
    let has_tensor = |name: &str| model.tensor(name).is_some();
    let written = architecture.gguf.metadata(&spelled_out, &has_tensor).map_err(fail)?;
    for (key, value) in written.keys {
        out.set(format!("{name}.{key}"), stored(value));
    }
    Ok(written.tensors)
}

/// Writes the number of token types if the model has a token-type embedding (encoders). llama.cpp
/// requires the key.
pub(super) fn write_token_type_count(outputs: &[Output], out: &mut Writer) {
    let table = outputs.iter().find(|output| output.name == "token_types.weight");
    if let Some(count) = table.and_then(|table| table.shape.first()) {
        let count = u32::try_from(*count).unwrap_or(u32::MAX);
        out.set("tokenizer.ggml.token_type_count", Value::U32(count));
    }
}

fn stored(value: MetadataValue) -> Value {
    match value {
        MetadataValue::Count(n) => Value::U32(n),
        MetadataValue::Float(v) => Value::F32(v),
        MetadataValue::Flag(v) => Value::Bool(v),
        MetadataValue::Text(text) => Value::Str(text.into()),
        MetadataValue::Flags(flags) => Value::Array(Array::of_bool(&flags)),
        MetadataValue::Counts(counts) => Value::Array(Array::of_u32(&counts)),
        MetadataValue::Integers(list) => Value::Array(Array::of_u64(&list)),
    }
}

/// Writes `kv_cache.*` for the layers of the model's program.
pub(super) fn kv_facts(model: &Checkpoint, out: &mut Writer) -> Result<()> {
    let built = Model::build(&model.source()).map_err(|e| Error::at(model.path().display(), e))?;
    write_kv_facts(&built.target.layers, out)
}
