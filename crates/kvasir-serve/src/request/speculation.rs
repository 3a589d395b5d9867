//! `speculation` and `prediction`: what a request says of speculative decoding.

use crate::error::ApiError;
use crate::request::reader::Reader;
use serde_json::Value;

/// Most drafts per step that a request may ask for.
const MOST_DRAFTS: i64 = 256;

/// A request's wishes for speculative decoding. With coupled acceptance its output does not depend on
/// them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SpeculationFields {
    /// The drafter that it expects; it must be the server's.
    pub method: Option<String>,
    /// Most drafts per step; 0 is none.
    pub max_tokens: Option<u32>,
    /// Predicted output, as text.
    pub prediction: String,
}

impl SpeculationFields {
    /// `speculation` is `{"method", "max_tokens"}`, or `false` or `"off"` for none.
    pub(crate) fn read(body: &Reader) -> Result<Self, ApiError> {
        let prediction = prediction(body)?;
        let off = Self { max_tokens: Some(0), prediction: prediction.clone(), ..Self::default() };
        match body.get("speculation") {
            None => Ok(Self { prediction, ..Self::default() }),
            Some(Value::Bool(false)) => Ok(off),
            Some(Value::String(word)) if ["off", "none"].contains(&word.as_str()) => Ok(off),
            Some(Value::Object(_)) => {
                let fields = body.need_object("speculation")?;
                fields.only(&["method", "max_tokens"])?;
                let method = fields.text("method")?.map(str::to_owned);
                if method.as_deref().is_some_and(|method| ["off", "none"].contains(&method)) {
                    return Ok(off);
                }
                let max_tokens = fields.integer("max_tokens", 0..=MOST_DRAFTS)?.map(|most| most as u32);
                Ok(Self { method, max_tokens, prediction })
            }
            Some(_) => {
                Err(body.error("speculation", "must be an object with `method` and `max_tokens`, or false"))
            }
        }
    }
}

/// OpenAI's predicted output: `{"type": "content", "content": TEXT or a list of text parts}`.
fn prediction(body: &Reader) -> Result<String, ApiError> {
    let Some(fields) = body.object("prediction")? else { return Ok(String::new()) };
    fields.only(&["type", "content"])?;
    if fields.need_text("type")? != "content" {
        return Err(fields.error("type", "must be `content`"));
    }
    match fields.need("content")? {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let text = |part: &Value| match (part["type"].as_str(), part["text"].as_str()) {
                (Some("text"), Some(text)) => Ok(text.to_owned()),
                _ => Err(fields.error("content", "must hold text parts")),
            };
            parts.iter().map(text).collect()
        }
        _ => Err(fields.error("content", "must be a text or a list of text parts")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use crate::request::body::Body;
    use crate::request::fields::CHAT;
    use serde_json::json;

    fn read(value: Value) -> Result<SpeculationFields, ApiError> {
        let body = Body::parse(value.to_string().as_bytes(), CHAT, IgnoredFields::default())?;
        SpeculationFields::read(&body.reader())
    }

    #[test]
    fn speculation_names_a_method_and_a_limit_or_is_off() {
        let fields = read(json!({"speculation": {"method": "suffix", "max_tokens": 8}})).unwrap();
        assert_eq!((fields.method.as_deref(), fields.max_tokens), (Some("suffix"), Some(8)));
        for off in [json!(false), json!("off"), json!({"method": "none"})] {
            assert_eq!(read(json!({"speculation": off})).unwrap().max_tokens, Some(0));
        }
        assert_eq!(read(json!({})).unwrap(), SpeculationFields::default());
        for bad in [json!(7), json!({"max_tokens": -1}), json!({"method": 3})] {
            let error = read(json!({"speculation": bad})).unwrap_err();
            assert!(error.param.is_some_and(|param| param.starts_with("speculation")));
        }
    }

    #[test]
    fn predicted_text_may_come_in_parts() {
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        let fields = read(json!({"prediction": {"type": "content", "content": parts}})).unwrap();
        assert_eq!(fields.prediction, "ab");
        assert!(read(json!({"prediction": {"type": "content", "content": 3}})).is_err());
        assert!(read(json!({"prediction": "x"})).is_err());
    }
}
