//! Translates llama.cpp's `/completion` and `/infill` to bodies of OpenAI's form, which one parser
//! then validates.

use crate::error::ApiError;
use crate::request::fields::{INFILL, LLAMA_COMPLETION, SAMPLERS};
use crate::request::reader::Reader;
use serde_json::{Map, Value, json};

/// Maximum number of `response_fields`.
const MAX_FIELDS: usize = 64;

/// A translated `/completion` or `/infill`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LlamaCppRequest {
    /// The body of `/v1/completions`. That of `/infill` lacks the prompt, which needs the vocabulary.
    pub body: Map<String, Value>,
    /// Text in front of the gap and behind it, for `/infill`.
    pub gap: Option<(String, String)>,
    /// Texts of `logit_bias`: each of their tokens gets the bias.
    pub biased_texts: Vec<(String, Value)>,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// Whether every chunk has timings.
    pub timings_per_token: bool,
    /// Whether a whole answer has its tokens; chunks of a stream always have theirs.
    pub return_tokens: bool,
    /// Prompt tokens behind BOS that a context shift keeps, if given; −1 keeps all.
    pub keep: Option<i64>,
    /// `n_predict: 0`: the prompt is read into the cache and not answered.
    pub is_warmup: bool,
    /// Fields of the response to keep, by path (`generation_settings/seed`); empty keeps all.
    pub response_fields: Vec<String>,
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
            ("n_probs", "logprobs"),
            ("grammar", "grammar"),
            ("json_schema", "json_schema"),
            ("return_progress", "return_progress"),
            ("post_sampling_probs", "post_sampling_probs"),
            ("id_slot", "id_slot"),
        ]
        .into_iter()
        .chain(SAMPLERS.iter().map(|field| (field.name, field.name)))
        {
            // Clients send all fields; these are empty where there is no grammar.
            let is_unset = |value: &Value| match from {
                "grammar" | "json_schema" => *value == "" || *value == json!({}),
                _ => false,
            };
            let value = body.get(from).filter(|value| !is_unset(value));
            out.extend(value.map(|value| (to.to_owned(), value.clone())));
        }
        // No log-probabilities is zero of them here, which asks for those of the chosen tokens there.
        if body.integer("n_probs", 0..=20)? == Some(0) {
            out.remove("logprobs");
        }
        // A negative seed is a random one.
        let seed = body.integer("seed", i64::MIN..=i64::MAX)?.filter(|seed| *seed >= 0);
        out.extend(seed.map(|seed| ("seed".to_owned(), seed.into())));
        let limit = body.integer("n_predict", -2..=i64::from(i32::MAX))?;
        let most = limit.filter(|n| *n >= 0).map(|n| n.max(1));
        out.extend(most.map(|most| ("n_predict".to_owned(), most.into())));
        let (bias, biased_texts) = logit_bias(body)?;
        if !bias.is_empty() {
            out.insert("logit_bias".into(), bias.into());
        }
        out.insert("return_token_ids".into(), true.into());
        Ok(Self {
            body: out,
            gap: None,
            biased_texts,
            stream: body.flag("stream", false)?,
            timings_per_token: body.flag("timings_per_token", false)?,
            return_tokens: body.flag("return_tokens", false)?,
            keep: body.integer("n_keep", -1..=i64::from(i32::MAX))?,
            is_warmup: limit == Some(0),
            response_fields: response_fields(body)?,
        })
    }

    /// Adds the bias of texts, by the ids of their tokens.
    pub fn bias_tokens(&mut self, ids: &[u32], bias: &Value) {
        let map = self.body.entry("logit_bias").or_insert_with(|| json!({}));
        for id in ids {
            map[id.to_string()] = bias.clone();
        }
    }
}

fn response_fields(body: &Reader) -> Result<Vec<String>, ApiError> {
    let items = body.list("response_fields", MAX_FIELDS)?.unwrap_or(&[]).iter();
    let path = |item: &Value| item.as_str().map(str::to_owned);
    items
        .map(|item| path(item).ok_or_else(|| body.error("response_fields", "must hold names of fields")))
        .collect()
}

/// A token of `logit_bias`.
enum Token<'a> {
    Id(u64),
    Text(&'a str),
}

type Bias = (Map<String, Value>, Vec<(String, Value)>);

/// `[[id or text, bias], [id or text, false]]`, or an object from ids or texts to biases.
fn logit_bias(body: &Reader) -> Result<Bias, ApiError> {
    let wrong = || body.error("logit_bias", "must be a list of [token id or text, number or false]");
    let (mut ids, mut texts) = (Map::new(), Vec::new());
    let mut add = |token: Token, bias: &Value| {
        let bias = if *bias == Value::Bool(false) { (-100).into() } else { bias.clone() };
        match token {
            Token::Id(id) => drop(ids.insert(id.to_string(), bias)),
            Token::Text(text) => texts.push((text.to_owned(), bias)),
        }
    };
    match body.get("logit_bias") {
        None => {}
        Some(Value::Array(items)) => {
            for item in items {
                let token = match item.get(0).ok_or_else(wrong)? {
                    Value::String(text) => Token::Text(text),
                    id => Token::Id(id.as_u64().ok_or_else(wrong)?),
                };
                add(token, item.get(1).ok_or_else(wrong)?);
            }
        }
        // Keys are texts by nature; those that are numbers are ids.
        Some(Value::Object(map)) => {
            for (key, bias) in map {
                add(key.parse().map_or(Token::Text(key), Token::Id), bias);
            }
        }
        Some(_) => return Err(wrong()),
    }
    Ok((ids, texts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;

    fn read(body: &Value) -> Result<LlamaCppRequest, ApiError> {
        LlamaCppRequest::completion(&Reader::new(body.as_object().unwrap(), &IgnoredFields::default()))
    }

    #[test]
    fn names_and_conventions_are_translated() {
        let body = json!({
            "prompt": "a", "n_predict": -1, "seed": -1, "repeat_penalty": 1.1, "n_probs": 0, "grammar": "",
            "logit_bias": [[5, 1.5], [6, false], ["b", -2], ["5", 3]], "json_schema": {"type": "object"},
            "return_tokens": true,
        });
        let request = read(&body).unwrap();
        assert_eq!(
            Value::Object(request.body),
            json!({
                "prompt": "a", "repeat_penalty": 1.1, "logit_bias": {"5": 1.5, "6": -100},
                "json_schema": {"type": "object"}, "return_token_ids": true,
            })
        );
        assert_eq!(request.biased_texts, [("b".to_owned(), json!(-2)), ("5".to_owned(), json!(3))]);
        assert!(request.return_tokens && !request.is_warmup);
        let request = read(&json!({"prompt": "a", "logit_bias": {"5": 1.5, "b": false}})).unwrap();
        assert_eq!(request.body["logit_bias"], json!({"5": 1.5}));
        assert_eq!(request.biased_texts, [("b".to_owned(), json!(-100))]);
    }

    #[test]
    fn a_limit_of_zero_reads_the_prompt_only() {
        let request = read(&json!({"prompt": "a", "n_predict": 0})).unwrap();
        assert!(request.is_warmup && request.body["n_predict"] == 1);
    }

    #[test]
    fn only_grammars_may_be_empty() {
        let plain = read(&json!({"prompt": "a"})).unwrap();
        assert_eq!(read(&json!({"prompt": "a", "grammar": "", "json_schema": {}})).unwrap(), plain);
        assert_eq!(read(&json!({"prompt": "a", "temperature": {}})).unwrap().body["temperature"], json!({}));
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
