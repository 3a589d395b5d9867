//! Parses `/v1/rerank` and `/v1/score` requests.

use crate::error::ApiError;
use crate::request::fields::{RERANK, SCORE};
use crate::request::reader::Reader;
use serde_json::Value;

/// Maximum texts per request.
const MAX_TEXTS: usize = 2048;

/// A validated `/v1/rerank` request.
#[derive(Clone, Debug, PartialEq)]
pub struct RerankRequest {
    /// The requested model.
    pub model: Option<String>,
    /// The query.
    pub query: String,
    /// The documents.
    pub documents: Vec<String>,
    /// Maximum number of results.
    pub top_n: Option<usize>,
    /// Whether results hold their documents.
    pub returns_documents: bool,
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
}

impl RerankRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader) -> Result<Self, ApiError> {
        body.classify(RERANK)?;
        Ok(Self {
            model: body.text("model")?.map(str::to_owned),
            query: body.need_text("query")?.to_owned(),
            documents: texts(body, "documents")?,
            top_n: body.integer("top_n", 1..=MAX_TEXTS as i64)?.map(|n| n as usize),
            returns_documents: body.flag("return_documents", true)?,
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
        Ok(Self { model: body.text("model")?.map(str::to_owned), first, second })
    }
}

/// One text or a list of texts; a document may be an object with a `text`.
fn texts(body: &Reader, field: &str) -> Result<Vec<String>, ApiError> {
    let value = body.need(field)?;
    if let Some(text) = value.as_str() {
        return Ok(vec![text.to_owned()]);
    }
    let items = body.list(field, MAX_TEXTS)?.unwrap_or(&[]);
    let text = |(i, item): (usize, &Value)| {
        let text = item.as_str().or_else(|| item.get("text")?.as_str()).filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| body.error(&format!("{field}[{i}]"), "must be a text"))
    };
    match items.is_empty() {
        true => Err(body.error(field, "must not be empty")),
        false => items.iter().enumerate().map(text).collect(),
    }
}
