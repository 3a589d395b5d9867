//! Parses OpenAI `/v1/completions` requests: prompts as text or token ids.

use crate::error::ApiError;
use crate::request::chat::{self, StreamOptions};
use crate::request::fields::COMPLETIONS;
use crate::request::reader::Reader;
use crate::request::response_format::read_response_format;
use crate::request::sampling::{self, SamplingFields};
use kvasir_chat::ResponseFormat;
use kvasir_sample::Sampling;
use serde_json::{Map, Value};

/// Maximum prompts per request.
const MAX_PROMPTS: usize = 1024;
/// Default `max_tokens` of this endpoint, by OpenAI's contract.
const MAX_TOKENS: u32 = 16;
/// Maximum log-probabilities per token.
const MAX_LOGPROBS: i64 = 20;

/// One prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Text to be tokenized.
    Text(String),
    /// Token ids, used verbatim.
    Ids(Vec<u32>),
    /// Texts and token ids, in a row.
    Sequence(Vec<Prompt>),
}

/// A validated `/v1/completions` request.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// The requested model.
    pub model: Option<String>,
    /// The prompts; each gets `n` choices.
    pub prompts: Vec<Prompt>,
    /// Sampling parameters, length limits and stop conditions.
    pub sampling: SamplingFields,
    /// Prepend the prompt to the answer.
    pub echo: bool,
    /// Text behind the gap that the answer fills, where the vocabulary has tokens for it.
    pub suffix: Option<String>,
    /// Whether the response has timings.
    pub timings: bool,
    /// Add the tokenizer's special tokens, such as BOS, to prompts of text.
    pub add_special_tokens: bool,
    /// Required response format (structured output).
    pub response_format: Option<ResponseFormat>,
    /// `Some` for a streamed answer.
    pub stream: Option<StreamOptions>,
}

impl CompletionRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader, defaults: &Sampling, vocab: u32) -> Result<Self, ApiError> {
        body.classify(COMPLETIONS)?;
        let mut request = Self::read_unlimited(body, defaults, vocab)?;
        let least = request.sampling.length.min_tokens;
        request.sampling.length.max_tokens.get_or_insert(MAX_TOKENS.max(least));
        Ok(request)
    }

    /// Parses a body of this form that another endpoint made: without a default of `max_tokens`,
    /// and its fields are classified already.
    pub(crate) fn read_unlimited(body: &Reader, defaults: &Sampling, vocab: u32) -> Result<Self, ApiError> {
        // Only the type of `session` is checked here; the session layer resolves it.
        body.text("session")?;
        let mut sampling = SamplingFields::read(body, defaults, vocab)?;
        sampling.sampling.logprobs = body.integer("logprobs", 0..=MAX_LOGPROBS)?.map(|n| n as u32);
        let echo = body.flag("echo", false)?;
        let wanted = sampling.sampling.logprobs.filter(|_| echo);
        if wanted.is_some() {
            sampling::whole_prompt_scores(body)?;
            sampling.prompt_logprobs = sampling.prompt_logprobs.max(wanted);
        }
        Ok(Self {
            model: body.text("model")?.map(str::to_owned),
            prompts: prompts(body, "prompt", MAX_PROMPTS, vocab)?,
            sampling,
            echo,
            suffix: body.text("suffix")?.filter(|text| !text.is_empty()).map(str::to_owned),
            timings: body.flag("timings_per_token", false)?,
            add_special_tokens: body.flag("add_special_tokens", true)?,
            response_format: read_response_format(body)?,
            stream: chat::stream(body)?,
        })
    }
}

/// Parses one prompt, or a list of at most `max`. A prompt is a text, a list of token ids, a list of
/// ids and texts, which are one sequence, or an object with a text, as llama.cpp's clients send it.
pub(crate) fn prompts(body: &Reader, field: &str, max: usize, vocab: u32) -> Result<Vec<Prompt>, ApiError> {
    let items = match body.need(field)? {
        Value::Array(items) => items,
        one => return Ok(vec![prompt(body, field, one, vocab)?]),
    };
    if items.is_empty() {
        return Err(body.error(field, "must not be empty"));
    }
    if items.iter().any(Value::is_number) {
        return Ok(vec![sequence(body, field, items, vocab)?]);
    }
    if items.len() > max {
        return Err(body.error(field, format!("may have at most {max} items, not {}", items.len())));
    }
    let prompt = |(i, item): (usize, &Value)| prompt(body, &format!("{field}[{i}]"), item, vocab);
    items.iter().enumerate().map(prompt).collect()
}

fn prompt(body: &Reader, name: &str, value: &Value, vocab: u32) -> Result<Prompt, ApiError> {
    match value {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        Value::Array(items) => sequence(body, name, items, vocab),
        Value::Object(object) => object_text(body, name, object).map(Prompt::Text),
        _ => Err(body.error(name, "must be a text, a list of texts, or token ids")),
    }
}

/// `{"prompt_string": text}`, or `{"content": [{"type": "text", "text": text}]}`.
fn object_text(body: &Reader, name: &str, object: &Map<String, Value>) -> Result<String, ApiError> {
    let object = body.at(object, body.name(name));
    if object.get("multimodal_data").is_some() {
        return Err(object.error("multimodal_data", "is not supported: the engine reads text"));
    }
    if let Some(text) = object.text("prompt_string")? {
        return Ok(text.to_owned());
    }
    let parts = object.list("content", MAX_PROMPTS)?;
    let parts = parts.ok_or_else(|| body.error(name, "needs `prompt_string` or `content`"))?;
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let part = object.item("content", i, part)?;
        match part.text("type")? {
            Some("text") => text.push_str(part.need_text("text")?),
            _ => return Err(part.error("type", "must be text: the engine reads text")),
        }
    }
    Ok(text)
}

/// Parses the prompt of an endpoint that takes exactly one.
pub(crate) fn one_prompt(body: &Reader, vocab: u32) -> Result<Prompt, ApiError> {
    let mut all = prompts(body, "prompt", MAX_PROMPTS, vocab)?;
    match (all.pop(), all.is_empty()) {
        (Some(prompt), true) => Ok(prompt),
        _ => Err(body.error("prompt", "must be one text or one list of token ids")),
    }
}

/// A list of token ids, or of ids and texts.
fn sequence(body: &Reader, name: &str, items: &[Value], vocab: u32) -> Result<Prompt, ApiError> {
    if items.is_empty() {
        return Err(body.error(name, "must not be empty"));
    }
    let id = |item: &Value| {
        let id = item.as_u64().filter(|id| *id < u64::from(vocab)).map(|id| id as u32);
        id.ok_or_else(|| body.error(name, format!("must hold token ids below {vocab}")))
    };
    if !items.iter().any(Value::is_string) {
        return Ok(Prompt::Ids(items.iter().map(id).collect::<Result<_, _>>()?));
    }
    let part = |item: &Value| match item {
        Value::String(text) => Ok(Prompt::Text(text.clone())),
        item => Ok(Prompt::Ids(vec![id(item)?])),
    };
    Ok(Prompt::Sequence(items.iter().map(part).collect::<Result<_, ApiError>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use serde_json::json;

    fn read(prompt: Value) -> Result<Vec<Prompt>, String> {
        let body = json!({"prompt": prompt});
        let request = CompletionRequest::read(
            &Reader::new(body.as_object().unwrap(), &IgnoredFields::default()),
            &Sampling::default(),
            100,
        );
        request.map(|request| request.prompts).map_err(|error| error.param.unwrap())
    }

    #[test]
    fn prompts_are_texts_or_token_ids() {
        assert_eq!(read(json!("a")).unwrap(), [Prompt::Text("a".into())]);
        assert_eq!(read(json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(read(json!([1, 2])).unwrap(), [Prompt::Ids(vec![1, 2])]);
        assert_eq!(read(json!([[1], [2, 3]])).unwrap(), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2, 3])]);
    }

    #[test]
    fn ids_and_texts_in_a_list_are_one_prompt() {
        let parts = vec![Prompt::Ids(vec![1]), Prompt::Text("a".into())];
        assert_eq!(read(json!([1, "a"])).unwrap(), [Prompt::Sequence(parts.clone())]);
        assert_eq!(read(json!([[1, "a"], "b"])).unwrap()[0], Prompt::Sequence(parts));
        let content = json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
        let texts = [Prompt::Text("a".into()), Prompt::Text("ab".into())];
        assert_eq!(read(json!([{"prompt_string": "a"}, content])).unwrap(), texts);
    }

    #[test]
    fn bad_prompts_are_refused() {
        for bad in [
            json!(null),
            json!([]),
            json!([-1]),
            json!([100]),
            json!([2147483648u64]),
            json!(7),
            json!([1, {}]),
            json!({}),
            json!({"prompt_string": "a", "multimodal_data": ["x"]}),
            json!({"content": [{"type": "image_url"}]}),
        ] {
            let refused = read(bad.clone()).unwrap_err();
            assert_eq!(refused.split('.').next(), Some("prompt"), "{bad}");
        }
        assert_eq!(read(json!([[1], []])), Err("prompt[1]".into()));
        assert_eq!(read(json!([[[1]]])), Err("prompt[0]".into()));
        assert_eq!(read(json!(vec!["a"; 1025])), Err("prompt".into()));
    }
}
