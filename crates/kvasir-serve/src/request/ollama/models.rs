//! Parses Ollama's requests about models: `/api/pull`, `/api/create`, `/api/delete`, `/api/push` and `/api/copy`.

use crate::error::ApiError;
use crate::request::fields::{OLLAMA_COPY, OLLAMA_CREATE, OLLAMA_DELETE, OLLAMA_PULL, OLLAMA_PUSH};
use crate::request::reader::Reader;

/// The model in `model`, or in `name` as older clients send it.
pub(crate) fn named_model<'a>(body: &Reader<'a>) -> Result<&'a str, ApiError> {
    let name = body.text("model")?.or(body.text("name")?);
    name.filter(|name| !name.is_empty()).ok_or_else(|| body.error("model", "is missing"))
}

/// A request that names a model and may stream its progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaModel {
    /// The model.
    pub model: String,
    /// Whether the progress is streamed.
    pub stream: bool,
    /// `from` of `/api/create`: the base model.
    pub from: Option<String>,
}

impl OllamaModel {
    /// Parses `/api/pull`.
    pub fn pull(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_PULL)?;
        Self::new(body)
    }

    /// Parses `/api/push`.
    pub fn push(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_PUSH)?;
        Self::new(body)
    }

    /// Parses `/api/create`.
    pub fn create(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_CREATE)?;
        let from = body.text("from")?.map(str::to_owned);
        Ok(Self { from, ..Self::new(body)? })
    }

    /// Parses `/api/delete`, which streams nothing.
    pub fn delete(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_DELETE)?;
        Ok(Self { model: named_model(body)?.to_owned(), stream: false, from: None })
    }

    fn new(body: &Reader) -> Result<Self, ApiError> {
        let (model, stream) = (named_model(body)?.to_owned(), body.flag("stream", true)?);
        Ok(Self { model, stream, from: None })
    }
}

/// `/api/copy`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OllamaCopy {
    /// The model.
    pub source: String,
    /// Its additional name.
    pub destination: String,
}

impl OllamaCopy {
    /// Parses the body.
    pub fn read(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_COPY)?;
        let text = |field: &str| body.need_text(field).map(str::to_owned);
        Ok(Self { source: text("source")?, destination: text("destination")? })
    }
}
