//! Normalizer of a `tokenizer.json`, run step by step with a bound on text growth.
//!
//! Each step may expand the text, and a hostile file may chain many steps.

use crate::tokenizer::cancel::{CANCELED_TEXT, is_canceled};
use crate::tokenizer::{charsmap, oniguruma};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value as Json;
use std::cell::Cell;
use tokenizers::{
    NormalizedString, Normalizer,
    normalizers::{NormalizerWrapper, Precompiled},
};

/// Maximum steps of a normalizer; published ones have fewer than ten.
const MOST_STEPS: usize = 64;
/// Maximum bytes that a step inserts at once.
const LONGEST_CONTENT: usize = 256;
/// Bound on the normalized length: `MAX_EXPANSION` times the input plus `EXPANSION_ALLOWANCE` bytes.
const MAX_EXPANSION: usize = 16;
const EXPANSION_ALLOWANCE: usize = 1 << 20;

thread_local! {
    /// The step that exceeded the bound since the last query on this thread. The library drops
    /// normalizer errors on encode.
    static STOPPED: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Takes the step that would have exceeded the bound since the last call on this thread.
pub(super) fn stopped() -> Option<&'static str> {
    STOPPED.take()
}

/// A normalizer that stops before the text exceeds the bound.
#[derive(Debug)]
pub(super) struct Bounded(Vec<Step>);

#[derive(Debug)]
struct Step {
    run: NormalizerWrapper,
    kind: &'static str,
    growth: Growth,
}

/// Maximum expansion of a step.
#[derive(Debug)]
enum Growth {
    /// A small constant factor for any text.
    Fixed,
    /// This many bytes at the front.
    Front(usize),
    /// This many bytes per occurrence of a pattern.
    Each(String, usize),
    /// This many bytes at every character.
    Anywhere(usize),
}

impl Step {
    fn is_unicode_form(&self) -> bool {
        matches!(self.kind, "NFC" | "NFD" | "NFKC" | "NFKD")
    }

    /// Upper bound on the result's length, as far as the file determines it.
    fn longest(&self, text: &str) -> usize {
        let more = match &self.growth {
            Growth::Fixed => 0,
            Growth::Front(content) => *content,
            Growth::Each(_, 0) => 0,
            Growth::Each(pattern, content) => {
                text.matches(pattern.as_str()).count() * content.saturating_sub(pattern.len())
            }
            Growth::Anywhere(content) => (text.len() + 1) * content,
        };
        text.len().saturating_add(more)
    }
}

impl Normalizer for Bounded {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let most = text.get().len().saturating_mul(MAX_EXPANSION).saturating_add(EXPANSION_ALLOWANCE);
        for step in &self.0 {
            let stop = || {
                STOPPED.set(Some(step.kind));
                Err(format!("normalizer {}: the text becomes too long", step.kind).into())
            };
            if is_canceled() {
                return Err(CANCELED_TEXT.into());
            }
            // Unicode normalization leaves ASCII as it is, and takes seconds for long texts.
            if step.is_unicode_form() && text.get().is_ascii() {
                continue;
            }
            if step.longest(text.get()) > most {
                return stop();
            }
            step.run.normalize(text)?;
            if text.get().len() > most {
                return stop();
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Bounded {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut steps = Vec::new();
        let mut json = Json::deserialize(from)?;
        let read = oniguruma::translate(&mut json).and_then(|()| flatten(&json, &mut steps));
        read.map_err(|why| D::Error::custom(format!("normalizer: {why}")))?;
        Ok(Self(steps))
    }
}

fn flatten(json: &Json, steps: &mut Vec<Step>) -> Result<(), String> {
    if json.get("type").and_then(Json::as_str) == Some("Sequence") {
        let inner = json.get("normalizers").and_then(Json::as_array);
        return inner
            .ok_or("a Sequence has no normalizers")?
            .iter()
            .try_for_each(|json| flatten(json, steps));
    }
    if steps.len() == MOST_STEPS {
        return Err(format!("has more than {MOST_STEPS} steps"));
    }
    let step = step(json)?;
    steps.push(step);
    Ok(())
}

fn step(json: &Json) -> Result<Step, String> {
    // The library panics on an invalid character map.
    let run = match json.get("precompiled_charsmap").and_then(Json::as_str) {
        Some(map) => {
            let bytes = charsmap::checked(map).map_err(|why| format!("precompiled_charsmap {why}"))?;
            let map = Precompiled::from(&bytes).map_err(|e| e.to_string())?;
            NormalizerWrapper::Precompiled(map)
        }
        None => match json.get("type").and_then(Json::as_str) {
            Some("Precompiled") => return Err("Precompiled has no precompiled_charsmap".into()),
            _ => serde_json::from_value(json.clone()).map_err(|e| e.to_string())?,
        },
    };
    let (kind, growth) = match &run {
        NormalizerWrapper::Sequence(_) => return Err("a Sequence must have its type field".into()),
        NormalizerWrapper::Prepend(step) => ("Prepend", Growth::Front(step.prepend.len())),
        NormalizerWrapper::Replace(step) => {
            let pattern = json.pointer("/pattern/String").and_then(Json::as_str);
            let content = step.content.len();
            (
                "Replace",
                match pattern.filter(|pattern| !pattern.is_empty()) {
                    Some(pattern) => Growth::Each(pattern.to_owned(), content),
                    None => Growth::Anywhere(content),
                },
            )
        }
        NormalizerWrapper::BertNormalizer(_) => ("BertNormalizer", Growth::Fixed),
        NormalizerWrapper::StripNormalizer(_) => ("Strip", Growth::Fixed),
        NormalizerWrapper::StripAccents(_) => ("StripAccents", Growth::Fixed),
        NormalizerWrapper::NFC(_) => ("NFC", Growth::Fixed),
        NormalizerWrapper::NFD(_) => ("NFD", Growth::Fixed),
        NormalizerWrapper::NFKC(_) => ("NFKC", Growth::Fixed),
        NormalizerWrapper::NFKD(_) => ("NFKD", Growth::Fixed),
        NormalizerWrapper::Lowercase(_) => ("Lowercase", Growth::Fixed),
        NormalizerWrapper::Nmt(_) => ("Nmt", Growth::Fixed),
        NormalizerWrapper::Precompiled(_) => ("Precompiled", Growth::Fixed),
        NormalizerWrapper::ByteLevel(_) => ("ByteLevel", Growth::Fixed),
    };
    match growth {
        Growth::Front(content) | Growth::Each(_, content) | Growth::Anywhere(content)
            if content > LONGEST_CONTENT =>
        {
            Err(format!("{kind} inserts {content} bytes; at most {LONGEST_CONTENT} are supported"))
        }
        growth => Ok(Step { run, kind, growth }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(normalizer: Json, text: &str) -> Result<String, String> {
        let normalizer: Bounded = serde_json::from_value(normalizer).map_err(|e| e.to_string())?;
        let mut text = NormalizedString::from(text);
        normalizer.normalize(&mut text).map_err(|e| e.to_string())?;
        Ok(text.get().to_owned())
    }

    fn sequence(step: Json, times: usize) -> Json {
        json!({"type": "Sequence", "normalizers": vec![step; times]})
    }

    #[test]
    fn normalizer_steps_run_in_order() {
        let published = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u{2581}"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"},
            {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Lowercase"}]},
            {"type": "Replace", "pattern": {"Regex": "x{2,}"}, "content": "y"},
        ]});
        assert_eq!(run(published, "A \u{fb01} xxx").unwrap(), "\u{2581}a\u{2581}fi\u{2581}y");
    }

    #[test]
    fn normalizers_that_expand_without_bound_are_refused() {
        let doubles = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
        assert_eq!(run(sequence(doubles.clone(), 3), "ab").unwrap(), "aaaaaaaab");
        assert!(
            run(sequence(doubles.clone(), 40), "a").unwrap_err().contains("normalizer Replace: the text")
        );
        assert_eq!(stopped(), Some("Replace"));
        assert_eq!(stopped(), None);
        assert!(run(sequence(doubles, 65), "b").unwrap_err().contains("more than 64 steps"));
        let anywhere = json!({"type": "Replace", "pattern": {"Regex": "a?"}, "content": "aaaa"});
        assert!(run(sequence(anywhere, 40), "a").unwrap_err().contains("too long"));
        let bytes = sequence(json!({"type": "ByteLevel"}), 40);
        assert!(run(bytes, "\u{e9}").unwrap_err().contains("normalizer ByteLevel"));
        let long = json!({"type": "Prepend", "prepend": "x".repeat(100_000)});
        assert!(run(long, "a").unwrap_err().contains("Prepend inserts 100000 bytes"));
    }
}
