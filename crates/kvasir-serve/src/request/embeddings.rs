//! Parses OpenAI `/v1/embeddings` requests.

use crate::error::ApiError;
use crate::request::completions::{Prompt, prompts};
use crate::request::fields::{EMBEDDINGS, LLAMA_EMBEDDING};
use crate::request::reader::Reader;
use crate::request::sampling::SamplingFields;
use kvasir_sample::Sampling;

/// Maximum inputs per request.
const MAX_INPUTS: usize = 2048;

/// Encoding of a vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// A JSON list of numbers.
    #[default]
    Float,
    /// Base64 of its little-endian f32 bytes.
    Base64,
}

/// A validated `/v1/embeddings` request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EmbeddingsRequest {
    /// The requested model.
    pub model: Option<String>,
    /// The inputs, each embedded on its own.
    pub inputs: Vec<Prompt>,
    /// Name of the field that holds them, for errors.
    pub param: &'static str,
    /// Encoding of the vectors.
    pub encoding: Encoding,
    /// Requested dimension of the vectors.
    pub dimensions: Option<u32>,
    /// Cut inputs that exceed the context, at their end, instead of refusing them.
    pub truncate: bool,
    /// Priority and cache salt; nothing is sampled.
    pub sampling: SamplingFields,
}

impl EmbeddingsRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader, vocab: u32) -> Result<Self, ApiError> {
        body.classify(EMBEDDINGS)?;
        let encoding = match body.text("encoding_format")? {
            None | Some("float") => Encoding::Float,
            Some("base64") => Encoding::Base64,
            Some(_) => return Err(body.error("encoding_format", "must be float or base64")),
        };
        Ok(Self {
            model: body.text("model")?.map(str::to_owned),
            inputs: prompts(body, "input", MAX_INPUTS, vocab)?,
            param: "input",
            encoding,
            dimensions: body.integer("dimensions", 1..=1 << 24)?.map(|n| n as u32),
            truncate: body.flag("truncate", false)?,
            sampling: SamplingFields::read(body, &Sampling::default(), vocab)?,
        })
    }
}

/// Parses llama.cpp's `/embedding`: `content`, or `input`.
pub fn llama_embedding(body: &Reader, vocab: u32) -> Result<EmbeddingsRequest, ApiError> {
    body.classify(LLAMA_EMBEDDING)?;
    let param = match (body.get("content"), body.get("input")) {
        (Some(_), Some(_)) => return Err(body.error("input", "does not go with `content`")),
        (None, Some(_)) => "input",
        _ => "content",
    };
    Ok(EmbeddingsRequest {
        model: body.text("model")?.map(str::to_owned),
        inputs: prompts(body, param, MAX_INPUTS, vocab)?,
        param,
        ..EmbeddingsRequest::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use serde_json::{Value, json};

    fn read(body: Value) -> Result<EmbeddingsRequest, String> {
        let request =
            EmbeddingsRequest::read(&Reader::new(body.as_object().unwrap(), &IgnoredFields::default()), 100);
        request.map_err(|error| error.param.unwrap())
    }

    #[test]
    fn inputs_are_texts_or_token_ids() {
        for (input, count) in
            [(json!("a"), 1), (json!(["a", "b"]), 2), (json!([1, 2]), 1), (json!([[1], [2, 3], [4]]), 3)]
        {
            assert_eq!(read(json!({"input": input})).unwrap().inputs.len(), count);
        }
        for bad in [json!(null), json!([]), json!([100]), json!(1), json!(vec!["a"; 2049])] {
            assert_eq!(read(json!({"input": bad})), Err("input".into()));
        }
        assert_eq!(read(json!({"input": [[1], []]})), Err("input[1]".into()));
    }

    #[test]
    fn vectors_are_floats_or_base64() {
        let read = |extra: Value| read(json!({"input": "a", "encoding_format": extra}));
        assert_eq!(read(Value::Null).unwrap().encoding, Encoding::Float);
        assert_eq!(read("base64".into()).unwrap().encoding, Encoding::Base64);
        assert_eq!(read("int8".into()), Err("encoding_format".into()));
    }
}
