//! Translates llama.cpp's `/completion` and `/infill` to bodies of OpenAI's form, which one parser
//! then validates.

use crate::error::ApiError;
use crate::request::fields::{INFILL, LLAMA_COMPLETION};
use crate::request::reader::Reader;
use serde_json::{Map, Value, json};

/// A translated `/completion` or `/infill`.
#[derive(Clone, Debug, PartialEq)]
pub struct LlamaCppRequest {
    /// The body of `/v1/completions`. That of `/infill` lacks the prompt, which needs the vocabulary.
    pub body: Map<String, Value>,
    /// Text in front of the gap and behind it, for `/infill`.
    pub gap: Option<(String, String)>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether every chunk has timings.
    pub timings_per_token: bool,
}

impl LlamaCppRequest {
    /// Translates `/completion`.
    pub fn completion(body: &Reader) -> Result<Self, ApiError> {
        body.classify(LLAMA_COMPLETION)?;
        let mut request = Self::sampling(body)?;
        request.body.insert("prompt".into(), body.need("prompt")?.clone());
        Ok(request)
    }

    /// Translates `/infill`: `input_prefix`, then `prompt`, then the gap, then `input_suffix`. Files
    /// of `input_extra` come first, each under its name.
    pub fn infill(body: &Reader) -> Result<Self, ApiError> {
        body.classify(INFILL)?;
        let mut before = String::new();
        for (i, item) in body.list("input_extra", 1024)?.unwrap_or(&[]).iter().enumerate() {
            let file = body.item("input_extra", i, item)?;
            if let Some(name) = file.text("filename")? {
                before += &format!("# {name}\n");
            }
            before += file.need_text("text")?;
            before += "\n";
        }
        before += body.need_text("input_prefix")?;
        before += body.text("prompt")?.unwrap_or_default();
        let gap = Some((before, body.need_text("input_suffix")?.to_owned()));
        Ok(Self { gap, ..Self::sampling(body)? })
    }

    fn sampling(body: &Reader) -> Result<Self, ApiError> {
        let mut out = Map::new();
        for (from, to) in [
            ("model", "model"),
            ("temperature", "temperature"),
            ("top_k", "top_k"),
            ("top_p", "top_p"),
            ("min_p", "min_p"),
            ("stop", "stop"),
            ("ignore_eos", "ignore_eos"),
            ("presence_penalty", "presence_penalty"),
            ("frequency_penalty", "frequency_penalty"),
            ("repeat_penalty", "repetition_penalty"),
            ("n_probs", "logprobs"),
            ("grammar", "grammar"),
            ("json_schema", "json_schema"),
        ] {
            let value = body.get(from).filter(|value| *value != "" && **value != json!({}));
            out.extend(value.map(|value| (to.to_owned(), value.clone())));
        }
        // Checked here, because errors name the client's field.
        body.number("repeat_penalty", 0.01..=2.0)?;
        // No log-probabilities is zero of them here, which asks for those of the chosen tokens there.
        if body.integer("n_probs", 0..=20)? == Some(0) {
            out.remove("logprobs");
        }
        // A negative seed is a random one.
        let seed = body.integer("seed", i64::MIN..=i64::MAX)?.filter(|seed| *seed >= 0);
        out.extend(seed.map(|seed| ("seed".to_owned(), seed.into())));
        let limit = body.integer("n_predict", -2..=i64::from(i32::MAX))?.filter(|n| *n > 0);
        out.extend(limit.map(|limit| ("max_tokens".to_owned(), limit.into())));
        out.extend(logit_bias(body)?.map(|bias| ("logit_bias".to_owned(), bias)));
        if body.flag("return_tokens", false)? {
            out.insert("return_token_ids".into(), true.into());
        }
        Ok(Self {
            body: out,
            gap: None,
            stream: body.flag("stream", false)?,
            timings_per_token: body.flag("timings_per_token", false)?,
        })
    }
}

/// `[[id, bias], [id, false]]`, or an object as OpenAI has it.
fn logit_bias(body: &Reader) -> Result<Option<Value>, ApiError> {
    let wrong = || body.error("logit_bias", "must be a list of [token id, number or false]");
    match body.get("logit_bias") {
        None => Ok(None),
        Some(Value::Array(items)) => {
            let entry = |item: &Value| {
                let (id, bias) = (item.get(0)?.as_u64()?, item.get(1)?);
                let bias = if *bias == Value::Bool(false) { (-100).into() } else { bias.clone() };
                Some((id.to_string(), bias))
            };
            let entries: Option<Map<String, Value>> = items.iter().map(entry).collect();
            entries.map(|entries| Some(Value::Object(entries))).ok_or_else(wrong)
        }
        Some(object @ Value::Object(_)) => Ok(Some(object.clone())),
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;

    #[test]
    fn names_and_conventions_are_translated() {
        let body = json!({
            "prompt": "a", "n_predict": -1, "seed": -1, "repeat_penalty": 1.1, "n_probs": 0, "grammar": "",
            "logit_bias": [[5, 1.5], [6, false]], "json_schema": {"type": "object"}, "return_tokens": true,
        });
        let ignored = IgnoredFields::default();
        let read = LlamaCppRequest::completion(&Reader::new(body.as_object().unwrap(), &ignored)).unwrap();
        assert_eq!(
            Value::Object(read.body),
            json!({
                "prompt": "a", "repetition_penalty": 1.1, "logit_bias": {"5": 1.5, "6": -100},
                "json_schema": {"type": "object"}, "return_token_ids": true,
            })
        );
    }

    #[test]
    fn the_gap_is_behind_extra_files_prefix_and_prompt() {
        let body = json!({
            "input_extra": [{"filename": "a.py", "text": "x = 1"}],
            "input_prefix": "def f():\n", "prompt": "    ", "input_suffix": "\n",
        });
        let ignored = IgnoredFields::default();
        let read = LlamaCppRequest::infill(&Reader::new(body.as_object().unwrap(), &ignored)).unwrap();
        assert_eq!(read.gap, Some(("# a.py\nx = 1\ndef f():\n    ".into(), "\n".into())));
    }
}
