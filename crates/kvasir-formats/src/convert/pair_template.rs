//! [`PairTemplate`]: special tokens that the post-processor of `tokenizer.json` adds to a pair.

use crate::convert::steps;
use crate::error::{Error, Result};
use crate::gguf::value::Value;
use crate::gguf::writer::Writer;
use serde_json::Value as Json;

/// Special token ids before, between and after the two texts of a pair.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PairTemplate {
    pub(super) before: Vec<u32>,
    pub(super) between: Vec<u32>,
    pub(super) after: Vec<u32>,
    /// Whether the tokens of the second text have type 1.
    pub(super) has_types: bool,
}

impl PairTemplate {
    /// Reads the first step that adds special tokens to a pair. `None` without one, or if its
    /// template has no second text.
    pub(super) fn of(json: &Json) -> Result<Option<Self>> {
        for step in steps(json.get("post_processor"), "processors") {
            let kind = step.get("type").and_then(Json::as_str).unwrap_or_default();
            let found = match kind {
                "TemplateProcessing" if !has_second_text(step) => return Ok(None),
                "TemplateProcessing" => template_processing(step),
                "BertProcessing" => cls_sep_template(step, 1, true),
                "RobertaProcessing" => cls_sep_template(step, 2, false),
                _ => continue,
            };
            let bad = || {
                Error::at("post_processor", format!("{kind}: the template of pairs cannot be represented"))
            };
            return found.ok_or_else(bad).map(Some);
        }
        Ok(None)
    }

    /// The tokens of the template `cls A sep … B sep`, with `separators` separators between the
    /// texts. `None` if it is another one.
    pub(super) fn cls_and_sep(&self, separators: usize, has_types: bool) -> Option<ClsAndSep> {
        let ([cls], [sep]) = (&self.before[..], &self.after[..]) else { return None };
        let fits = self.between == vec![*sep; separators] && self.has_types == has_types;
        fits.then_some(ClsAndSep { cls: *cls, sep: *sep })
    }
}

/// Ids of the tokens that begin a text and end it.
pub(super) struct ClsAndSep {
    cls: u32,
    sep: u32,
}

impl ClsAndSep {
    /// Writes the ids. llama.cpp reads `[CLS]` from the BOS key.
    pub(super) fn write(&self, out: &mut Writer) {
        for (key, id) in [("cls", self.cls), ("bos", self.cls), ("seperator", self.sep), ("eos", self.sep)] {
            out.set(format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
    }
}

/// `cls A sep … B sep`, with `separators` separators between the texts.
fn cls_sep_template(step: &Json, separators: usize, has_types: bool) -> Option<PairTemplate> {
    let id = |key: &str| step.pointer(key)?.as_u64().and_then(|id| u32::try_from(id).ok());
    let (cls, sep) = (id("/cls/1")?, id("/sep/1")?);
    Some(PairTemplate { before: vec![cls], between: vec![sep; separators], after: vec![sep], has_types })
}

/// Whether the `pair` template of a `TemplateProcessing` step contains the second text.
fn has_second_text(step: &Json) -> bool {
    let pieces = step.get("pair").and_then(Json::as_array);
    pieces
        .into_iter()
        .flatten()
        .any(|piece| piece.pointer("/Sequence/id").and_then(Json::as_str) == Some("B"))
}

/// The `pair` template of a `TemplateProcessing` step. `None` if it does not have A before B, once
/// each.
fn template_processing(step: &Json) -> Option<PairTemplate> {
    let mut pair = PairTemplate::default();
    let mut texts = 0;
    for piece in step.get("pair")?.as_array()? {
        if let Some(name) = piece.pointer("/SpecialToken/id").and_then(Json::as_str) {
            let ids = step.get("special_tokens")?.get(name)?.get("ids")?.as_array()?;
            let ids = ids.iter().map(|id| id.as_u64().and_then(|id| u32::try_from(id).ok()));
            let part = match texts {
                0 => &mut pair.before,
                1 => &mut pair.between,
                _ => &mut pair.after,
            };
            part.extend(ids.collect::<Option<Vec<u32>>>()?);
            continue;
        }
        let name = piece.pointer("/Sequence/id").and_then(Json::as_str)?;
        if name != ["A", "B"].get(texts).copied()? {
            return None;
        }
        texts += 1;
        pair.has_types |= texts == 2 && piece.pointer("/Sequence/type_id").and_then(Json::as_u64) == Some(1);
    }
    (texts == 2).then_some(pair)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn template_bert_and_roberta_processing_are_read() {
        let of = |step: Json| PairTemplate::of(&json!({"post_processor": step})).unwrap();
        let special = |name: &str| json!({"SpecialToken": {"id": name, "type_id": 0}});
        let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
        let step = json!({"type": "TemplateProcessing", "single": [],
            "pair": [special("c"), text("A", 0), special("s"), text("B", 1), special("s")],
            "special_tokens": {"c": {"ids": [2]}, "s": {"ids": [3]}}});
        let bert = PairTemplate { before: vec![2], between: vec![3], after: vec![3], has_types: true };
        assert_eq!(of(step).as_ref(), Some(&bert));
        assert_eq!(
            of(json!({"type": "BertProcessing", "cls": ["c", 2], "sep": ["s", 3]})).as_ref(),
            Some(&bert)
        );
        let roberta = of(json!({"type": "RobertaProcessing", "cls": ["c", 0], "sep": ["s", 2]})).unwrap();
        assert_eq!((roberta.between, roberta.has_types), (vec![2, 2], false));
        assert_eq!(of(json!({"type": "ByteLevel"})), None);
    }
}
