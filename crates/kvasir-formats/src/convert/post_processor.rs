//! Special tokens added around a text by `tokenizer.json`'s post-processor (BOS, EOS, CLS, SEP).

use crate::convert::steps;
use crate::error::{Error, Result};
use serde_json::Value as Json;

/// Token ids added before and after every text.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AddedTokens {
    pub(super) before: Vec<u32>,
    pub(super) after: Vec<u32>,
}

impl AddedTokens {
    pub(super) fn of(json: &Json) -> Result<Self> {
        let mut added = Self::default();
        for step in steps(json.get("post_processor"), "processors") {
            added.add(step).map_err(|why| Error::at("post_processor", why))?;
        }
        Ok(added)
    }

    /// Applies one more post-processing step around the ids so far.
    fn add(&mut self, step: &Json) -> std::result::Result<(), String> {
        let kind = step.get("type").and_then(Json::as_str).unwrap_or_default();
        let (before, after) = match kind {
            // ByteLevel adjusts word offsets only, not ids.
            "ByteLevel" => return Ok(()),
            "TemplateProcessing" => template(step),
            "BertProcessing" | "RobertaProcessing" => {
                let one = |key| Some(vec![id(step.pointer(key)?)?]);
                one("/cls/1").zip(one("/sep/1"))
            }
            other => return Err(format!("`{other}` cannot be represented in GGUF")),
        }
        .ok_or_else(|| format!("{kind}: its ids are missing"))?;
        self.before.splice(0..0, before);
        self.after.extend(after);
        Ok(())
    }
}

/// Ids before and after the text in a `TemplateProcessing` step.
fn template(step: &Json) -> Option<(Vec<u32>, Vec<u32>)> {
    let (mut parts, mut at) = ([Vec::new(), Vec::new()], 0);
    for piece in step.get("single")?.as_array()? {
        match piece.pointer("/SpecialToken/id") {
            None => at = 1,
            Some(name) => {
                let ids = step.get("special_tokens")?.get(name.as_str()?)?.get("ids")?.as_array()?;
                parts[at].extend(ids.iter().map(id).collect::<Option<Vec<u32>>>()?);
            }
        }
    }
    let [before, after] = parts;
    Some((before, after))
}

fn id(json: &Json) -> Option<u32> {
    json.as_u64().and_then(|id| u32::try_from(id).ok())
}
