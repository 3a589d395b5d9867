//! Reconstructs a Hugging Face config from GGUF metadata, by the rules of the architecture.
//!
//! A file converted by us embeds the original config, which is returned verbatim. For other files
//! fields are derived from GGUF keys, tensor presence, and constants common to the published models
//! of a family.
//!
//! Guarded by `tests/gguf_config.rs`, `tests/architectures.rs` and `tests/convert.rs`.

use crate::error::{Error, Result};
use crate::gguf::file_metadata::FileMetadata;
use crate::gguf::reader::Gguf;
use crate::tokenizer::end_tokens::end_tokens;
use kvasir_program::{Architecture, Layout};
use serde_json::{Map, Value as Json, json};

/// Metadata key of the embedded original config.
pub(crate) const ORIGINAL: &str = "kvasir.config";
/// Metadata key of the embedded `generation_config.json`.
pub(crate) const GENERATION: &str = "kvasir.generation_config";

/// What a GGUF file says of its model.
pub(crate) struct Described {
    pub(crate) architecture: &'static Architecture,
    pub(crate) config: Json,
    pub(crate) layout: Layout,
}

/// The architecture, config and layout of a file. Unsupported architectures are refused by name.
pub(crate) fn describe(gguf: &Gguf) -> Result<Described> {
    let file = FileMetadata(gguf);
    let described = || match gguf.str(ORIGINAL) {
        Some(text) => original(&file, text),
        None => derived(&file),
    };
    described().map_err(|e| e.in_file(gguf.path()))
}

/// The embedded `generation_config.json`, if any.
pub(crate) fn generation_config(gguf: &Gguf) -> Result<Option<Json>> {
    let Some(text) = gguf.str(GENERATION) else { return Ok(None) };
    serde_json::from_str(text).map(Some).map_err(|e| Error::at(GENERATION, e).in_file(gguf.path()))
}

/// The embedded original config: GGUF has no keys for some of its fields.
fn original(file: &FileMetadata<'_>, text: &str) -> Result<Described> {
    let config: Json = serde_json::from_str(text).map_err(|e| Error::at(ORIGINAL, e))?;
    let architecture = Architecture::of(&config).map_err(|e| Error::at(ORIGINAL, e))?;
    let name = file.0.architecture();
    if !architecture.gguf.names.contains(&name) {
        let why = format!("is for {:?}, which is not a file of {name:?}", architecture.name());
        return Err(Error::at(ORIGINAL, why));
    }
    Ok(Described { architecture, config, layout: architecture.gguf.layout(file) })
}

fn derived(file: &FileMetadata<'_>) -> Result<Described> {
    let architecture =
        Architecture::of_gguf(file.0.architecture(), file).map_err(|error| file.error(error))?;
    let mut config = architecture.gguf.config(file).map_err(|error| file.error(error))?;
    config.insert("architectures".to_owned(), json!([architecture.name()]));
    config.insert("model_type".to_owned(), architecture.model_type().into());
    tokens(file.0, &mut config);
    Ok(Described { architecture, config: Json::Object(config), layout: architecture.gguf.layout(file) })
}

/// Ids of special tokens, which the tokenizer's metadata has.
fn tokens(gguf: &Gguf, config: &mut Map<String, Json>) {
    for (hf, key) in [("bos_token_id", "bos"), ("pad_token_id", "padding")] {
        if let Some(id) = gguf.u64(&format!("tokenizer.ggml.{key}_token_id")) {
            config.insert(hf.to_owned(), id.into());
        }
    }
    let ends = match end_tokens(gguf)[..] {
        [] => return,
        [end] => end.into(),
        ref ends => json!(ends),
    };
    config.insert("eos_token_id".to_owned(), ends);
}
