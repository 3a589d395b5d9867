//! What a `tokenizer.json` does to a text before it is merged: composing it, and writing its spaces otherwise.

use super::steps;
use crate::{
    Error, Result,
    gguf::{Value, Writer},
    tokenizer::carried,
};
use serde_json::Value as Json;

/// What SentencePiece writes for a space.
pub(super) const SPACE: &str = "\u{2581}";

/// What normalizers of the kinds that we know do.
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
                other => return Err(Error::at("normalizer", format!("{other} has no place in GGUF"))),
            }
        }
        Ok(changes)
    }

    fn write(&self, out: &mut Writer) {
        if self.composes {
            out.set(carried::NORMALIZER, Value::Str("NFC".into()));
        }
    }
}

/// Whether a step looks for spaces.
fn replaced(step: &Json) -> bool {
    step.pointer("/pattern/String").and_then(Json::as_str) == Some(" ")
}

/// For a vocabulary of bytes, which have spaces as they are.
pub(super) fn of_bytes(json: &Json, out: &mut Writer) -> Result<()> {
    let changes = Changes::of(json)?;
    if changes.replaces || changes.prepends {
        return Err(Error::at(
            "normalizer",
            "Replace and Prepend have no place in GGUF without byte_fallback",
        ));
    }
    changes.write(out);
    Ok(())
}

/// For a vocabulary of characters, which have U+2581 for spaces.
pub(super) fn of_chars(json: &Json, out: &mut Writer) -> Result<()> {
    let mut changes = Changes::of(json)?;
    changes.write(out);
    for step in steps(json.get("pre_tokenizer"), "pretokenizers") {
        let text = |key: &str| step.get(key).and_then(Json::as_str);
        match text("type").unwrap_or_default() {
            "Metaspace" if text("replacement") == Some(SPACE) => {
                changes.replaces = true;
                // What the normalizer has put there is enough. Older files have no schemes but a flag.
                let legacy = step.get("add_prefix_space").and_then(Json::as_bool);
                let default = if legacy == Some(false) { "never" } else { "always" };
                let scheme = text("prepend_scheme").unwrap_or(default);
                if scheme != "never" && !changes.prepends {
                    out.set(carried::PREPENDS, Value::Str(scheme.to_owned()));
                    changes.prepends = true;
                }
                if step.get("split").and_then(Json::as_bool) != Some(false) {
                    out.set(carried::SPLITS, Value::Bool(true));
                }
            }
            // Gemma's, which finds nothing: the normalizer has left no space.
            "Split"
                if changes.replaces && replaced(step) && step.get("invert") != Some(&Json::Bool(true)) => {}
            other => return Err(Error::at("pre_tokenizer", format!("{other} has no place in GGUF"))),
        }
    }
    if !changes.replaces {
        return Err(Error::at("normalizer", "spaces as they are have no place in GGUF"));
    }
    out.set("tokenizer.ggml.add_space_prefix", Value::Bool(changes.prepends));
    Ok(())
}
