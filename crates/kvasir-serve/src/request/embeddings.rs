use super::{EMBEDDINGS, Prompt, Reader, SamplingFields, completion::prompts};
use crate::ApiError;
use kvasir_sample::Sampling;

/// Most inputs in one request.
const MAX_INPUTS: usize = 2048;

/// How a vector is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// A list of numbers.
    #[default]
    Float,
    /// The little-endian bytes of its f32 numbers, in base64.
    Base64,
}

/// A checked `/v1/embeddings` request.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingsRequest {
    /// The model asked for.
    pub model: Option<String>,
    /// What is embedded, each by itself.
    pub inputs: Vec<Prompt>,
    /// How the vectors are written.
    pub encoding: Encoding,
    /// Length of the vectors that is asked for.
    pub dimensions: Option<u32>,
    /// Whose turn it is, and whose cache. Nothing is drawn.
    pub sampling: SamplingFields,
}

impl EmbeddingsRequest {
    /// Reads and checks a body.
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
            encoding,
            dimensions: body.integer("dimensions", 1..=1 << 24)?.map(|n| n as u32),
            sampling: SamplingFields::read(body, &Sampling::default(), vocab)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::IgnoredFields;
    use serde_json::{Value, json};

    fn read(body: Value) -> Result<EmbeddingsRequest, String> {
        let request =
            EmbeddingsRequest::read(&Reader::new(body.as_object().unwrap(), &IgnoredFields::default()), 100);
        request.map_err(|error| error.param.unwrap())
    }

    #[test]
    fn inputs_come_in_four_forms() {
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
    fn vectors_are_written_in_two_ways() {
        let read = |extra: Value| read(json!({"input": "a", "encoding_format": extra}));
        assert_eq!(read(Value::Null).unwrap().encoding, Encoding::Float);
        assert_eq!(read("base64".into()).unwrap().encoding, Encoding::Base64);
        assert_eq!(read("int8".into()), Err("encoding_format".into()));
    }
}
