//! Maps a `tokenizer.json` normalizer (NFC, space replacement, prefix space) to GGUF keys.
//!
//! Normalizers without a GGUF equivalent are refused by name.

use crate::convert::steps;
use crate::error::{Error, Result};
use crate::gguf::value::Value;
use crate::gguf::writer::Writer;
use crate::tokenizer::kvasir_keys;
use serde_json::Value as Json;

/// SentencePiece's space symbol, U+2581.
pub(super) const SPACE: &str = "\u{2581}";

/// Combined effect of the supported normalizers.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    composes: bool,
    replaces: bool,
    prepends: bool,
}

impl Changes {
    fn of(json: &Json) -> Result<Self> {
        let mut changes = Self::default();
        for step in steps(json.get("normalizer"), "normalizers") {
            let text = |key: &str| step.pointer(key).and_then(Json::as_str);
            match text("/type").unwrap_or_default() {
                "NFC" => changes.composes = true,
                "Replace" if replaced(step) && text("/content") == Some(SPACE) => changes.replaces = true,
                "Prepend" if text("/prepend") == Some(SPACE) => changes.prepends = true,
                other => {
                    return Err(Error::at("normalizer", format!("`{other}` cannot be represented in GGUF")));
                }
            }
        }
        Ok(changes)
    }

    fn write(&self, out: &mut Writer) {
        if self.composes {
            out.set(kvasir_keys::NORMALIZER, Value::Str("NFC".into()));
        }
    }
}

/// Whether the step's pattern is a single space.
fn replaced(step: &Json) -> bool {
    step.pointer("/pattern/String").and_then(Json::as_str) == Some(" ")
}

/// For byte-level vocabularies, where spaces need no replacement.
pub(super) fn of_bytes(json: &Json, out: &mut Writer) -> Result<()> {
    let changes = Changes::of(json)?;
    if changes.replaces || changes.prepends {
        return Err(Error::at(
            "normalizer",
            "Replace and Prepend cannot be represented in GGUF without byte_fallback",
        ));
    }
    changes.write(out);
    Ok(())
}

/// For SentencePiece-style vocabularies, where U+2581 stands for a space.
pub(super) fn of_chars(json: &Json, out: &mut Writer) -> Result<()> {
    let mut changes = Changes::of(json)?;
    changes.write(out);
    for step in steps(json.get("pre_tokenizer"), "pretokenizers") {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        match text("type").unwrap_or_default() {
            "Metaspace" if text("replacement") == Some(SPACE) => {
                changes.replaces = true;
                // A prefix space added by the normalizer suffices. Older files have a flag instead
                // of a scheme.
                let legacy = step.get("add_prefix_space").and_then(Json::as_bool);
                let default = if legacy == Some(false) { "never" } else { "always" };
                let scheme = text("prepend_scheme").unwrap_or(default);
                if scheme != "never" && !changes.prepends {
                    out.set(kvasir_keys::PREFIX_SPACE, Value::Str(scheme.to_owned()));
                    changes.prepends = true;
                }
                if step.get("split").and_then(Json::as_bool) != Some(false) {
                    out.set(kvasir_keys::SPLITS, Value::Bool(true));
                }
            }
            // Gemma's split step is a no-op: the normalizer has replaced all spaces.
            "Split"
                if changes.replaces && replaced(step) && step.get("invert") != Some(&Json::Bool(true)) => {}
            other => {
                return Err(Error::at("pre_tokenizer", format!("`{other}` cannot be represented in GGUF")));
            }
        }
    }
    if !changes.replaces {
        return Err(Error::at("normalizer", "a normalizer that keeps spaces cannot be represented in GGUF"));
    }
    out.set("tokenizer.ggml.add_space_prefix", Value::Bool(changes.prepends));
    Ok(())
}
