//! [`EncoderFacts`], and the checks and errors of requests to encoders.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::model::Model;
use crate::model::tokenization::hold_working_memory;
use kvasir_formats::TextPair;
use kvasir_kv::Token;

/// Facts of an encoder on which requests depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncoderFacts {
    /// Labels of the classification head: 1 for a cross-encoder, 0 for an embedding model.
    pub labels: u32,
}

impl EncoderFacts {
    /// The error of a generation request to the model `name`.
    pub(crate) fn generation_error(self, name: &str) -> ApiError {
        let (task, routes) = match self.labels {
            0 => ("embeds texts", "/v1/embeddings, /v1/rerank and /v1/score"),
            1 => ("scores how well a document answers a query", "/v1/rerank and /v1/score"),
            _ => ("classifies texts", "another server: no route here returns its labels"),
        };
        let message =
            format!("the model `{name}` is an encoder: it {task} and does not generate; use {routes}");
        ApiError { code: Some("model_not_supported"), ..ApiError::param("model", message) }
    }
}

impl Model {
    /// Maximum tokens of a text of an encoder, special tokens included.
    pub(crate) fn max_text_tokens(&self) -> usize {
        self.facts.max_len.saturating_sub(1) as usize
    }

    /// Returns an error if the model has a classification head, and therefore gives no embeddings.
    pub(crate) fn require_embeddings(&self) -> Result<(), ApiError> {
        match self.facts.encoder {
            Some(EncoderFacts { labels: 1.. }) => {
                let why = "this model has a classification head and gives no embeddings; use /v1/rerank or /v1/score";
                Err(ApiError::param("model", why))
            }
            _ => Ok(()),
        }
    }

    /// Returns an error if a text for an encoder exceeds the maximum length.
    pub(crate) fn check_text_len(&self, param: &str, ids: &[Token]) -> Result<(), ApiError> {
        let max_tokens = self.max_text_tokens();
        if self.facts.encoder.is_none() || ids.len() <= max_tokens {
            return Ok(());
        }
        let why = format!(
            "`{param}` has {} tokens; this model reads at most {max_tokens}: shorten it, or send `truncate`: true",
            ids.len()
        );
        Err(ApiError::too_long(param, why))
    }

    /// Tokenizes a query and a document as one sequence, in this process; the longer text is
    /// truncated first. Returns an error soon after the client has disconnected.
    pub(crate) fn encode_pair(&self, query: &str, document: &str) -> Result<TextPair, ApiError> {
        let gone = RequestContext::current().gone.clone();
        let bytes = query.len() + document.len();
        let _memory = hold_working_memory("documents", "query and document have", bytes, &gone)?;
        let pair =
            self.chat.tokenizer().encode_pair_cancelable([query, document], self.max_text_tokens(), &gone);
        pair.map_err(|error| ApiError::param("documents", error.to_string()))
    }
}
