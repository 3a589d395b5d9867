//! Parses `/v1/rerank` and `/v1/score` requests.
//!
//! `/rerank` takes the form of text-embeddings-inference too (`texts` for `documents`), which is
//! answered in its form. `/v2/rerank` has Cohere's form.

use crate::error::ApiError;
use crate::request::fields::{COHERE_RERANK, RERANK, SCORE};
use crate::request::length::MAX_TOKENS;
use crate::request::reader::Reader;
use serde_json::Value;

/// Maximum texts per request.
const MAX_TEXTS: usize = 2048;

/// How texts are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scoring {
    /// By the cosine of their embeddings.
    Embeddings,
    /// By the probability that the model says `yes`, not `no`, to a prompt with both texts.
    Prompt {
        /// The task; `None` for that of a web search.
        instruction: Option<String>,
    },
}

/// A validated `/v1/rerank` request.
#[derive(Clone, Debug, PartialEq)]
pub struct RerankRequest {
    /// The requested model.
    pub model: Option<String>,
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: Vec<String>,
    /// Maximum number of results; `None` for all.
    pub top_n: Option<usize>,
    /// Whether results hold their documents.
    pub returns_documents: bool,
    /// Maximum tokens of a document; longer ones are truncated.
    pub document_tokens: Option<usize>,
    /// Whether the request has the form of text-embeddings-inference.
    pub is_tei: bool,
    /// How documents are compared with the query; `None` as the server is set.
    pub scoring: Option<Scoring>,
}

/// A validated `/v1/score` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreRequest {
    /// The requested model.
    pub model: Option<String>,
    /// One text, or one for each of `second`.
    pub first: Vec<String>,
    /// The texts compared with them.
    pub second: Vec<String>,
    /// How they are compared; `None` as the server is set.
    pub scoring: Option<Scoring>,
}

impl RerankRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader) -> Result<Self, ApiError> {
        body.classify(RERANK)?;
        let is_tei = body.get("texts").is_some();
        if is_tei && body.get("documents").is_some() {
            return Err(body.error("texts", "does not go with `documents`"));
        }
        let query = body.need_text("query")?;
        if query.is_empty() {
            return Err(body.error("query", "must not be empty"));
        }
        let (returns_text, returns_documents) =
            (body.flag("return_text", false)?, body.flag("return_documents", true)?);
        Ok(Self {
            model: body.text("model")?.map(str::to_owned),
            query: query.to_owned(),
            documents: texts(body, if is_tei { "texts" } else { "documents" })?,
            // vLLM's default of 0 means all.
            top_n: body.integer("top_n", 0..=MAX_TEXTS as i64)?.filter(|n| *n > 0).map(|n| n as usize),
            returns_documents: if is_tei { returns_text } else { returns_documents },
            document_tokens: None,
            is_tei,
            scoring: scoring(body)?,
        })
    }

    /// Parses and validates a body of `/v2/rerank`.
    pub fn read_cohere(body: &Reader) -> Result<Self, ApiError> {
        body.classify(COHERE_RERANK)?;
        let query = body.need_text("query")?;
        if query.is_empty() {
            return Err(body.error("query", "must not be empty"));
        }
        Ok(Self {
            model: body.text("model")?.map(str::to_owned),
            query: query.to_owned(),
            documents: texts(body, "documents")?,
            top_n: body.integer("top_n", 1..=i64::MAX)?.map(|n| n.min(MAX_TEXTS as i64) as usize),
            returns_documents: false,
            document_tokens: body.integer("max_tokens_per_doc", 1..=MAX_TOKENS)?.map(|n| n as usize),
            is_tei: false,
            scoring: scoring(body)?,
        })
    }
}

impl ScoreRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader) -> Result<Self, ApiError> {
        body.classify(SCORE)?;
        let (first, second) = (texts(body, "text_1")?, texts(body, "text_2")?);
        if first.len() != 1 && first.len() != second.len() {
            return Err(body.error("text_1", "must be one text, or as many as `text_2`"));
        }
        Ok(Self { model: body.text("model")?.map(str::to_owned), first, second, scoring: scoring(body)? })
    }
}

fn scoring(body: &Reader) -> Result<Option<Scoring>, ApiError> {
    let instruction = body.text("instruction")?.filter(|text| !text.is_empty()).map(str::to_owned);
    match body.text("method")? {
        Some("prompt") => Ok(Some(Scoring::Prompt { instruction })),
        Some("embeddings") if instruction.is_some() => {
            Err(body.error("instruction", "needs `method`: \"prompt\""))
        }
        Some("embeddings") => Ok(Some(Scoring::Embeddings)),
        Some(_) => Err(body.error("method", "must be embeddings or prompt")),
        // Only prompts hold an instruction.
        None => Ok(instruction.map(|text| Scoring::Prompt { instruction: Some(text) })),
    }
}

/// One text or a list of texts; a document may be an object with a `text`.
fn texts(body: &Reader, field: &str) -> Result<Vec<String>, ApiError> {
    let value = body.need(field)?;
    match value.as_str() {
        Some("") => return Err(body.error(field, "must not be empty")),
        Some(text) => return Ok(vec![text.to_owned()]),
        None => {}
    }
    let items = body.list(field, MAX_TEXTS)?.unwrap_or(&[]);
    let text = |(i, item): (usize, &Value)| {
        let text = item.as_str().or_else(|| item.get("text")?.as_str()).filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| body.error(&format!("{field}[{i}]"), "must be a text"))
    };
    if items.is_empty() {
        Err(body.error(field, "must not be empty"))
    } else {
        items.iter().enumerate().map(text).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::ignored_fields::IgnoredFields;
    use serde_json::json;

    #[test]
    fn no_limit_of_results_is_all() {
        let top_n = |top_n: Value| {
            let body = json!({"query": "a", "documents": ["b"], "top_n": top_n});
            let request =
                RerankRequest::read(&Reader::new(body.as_object().unwrap(), &IgnoredFields::default()));
            request.map(|request| request.top_n).map_err(|error| error.param.unwrap())
        };
        assert_eq!((top_n(json!(0)), top_n(Value::Null), top_n(json!(2))), (Ok(None), Ok(None), Ok(Some(2))));
        assert_eq!(top_n(json!(-1)), Err("top_n".into()));
    }
}
