//! [`Encoder`]: what an encoder gives for a text, and what is refused with a reason.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::memory_budget::TOKENIZING;
use crate::model::tokenization::BYTES_PER_TEXT_BYTE;
use crate::model::{LONG_TEXT, Model};
use kvasir_formats::TextPair;
use kvasir_kv::Token;

/// An encoder as requests see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoder {
    /// Scores per text or pair of texts (a cross-encoder has one); 0 for an embedding model.
    pub labels: u32,
}

impl Encoder {
    /// Why it refuses to generate.
    pub(crate) fn refuses_generation(self, name: &str) -> ApiError {
        let (task, routes) = match self.labels {
            0 => ("embeds texts", "/v1/embeddings, /v1/rerank and /v1/score"),
            1 => ("scores how well a document answers a query", "/v1/rerank and /v1/score"),
            _ => ("classifies texts", "no route of this server"),
        };
        let message =
            format!("the model `{name}` is an encoder: it {task} and generates none; it serves {routes}");
        ApiError { code: Some("model_not_supported"), ..ApiError::param("model", message) }
    }
}

impl Model {
    /// Longest text of an encoder, in tokens with the special ones.
    pub(crate) fn longest_text(&self) -> usize {
        self.facts.max_len.saturating_sub(1) as usize
    }

    /// Refuses a classifier where vectors are wanted.
    pub(crate) fn require_vectors(&self) -> Result<(), ApiError> {
        match self.facts.encoder {
            Some(Encoder { labels: 1.. }) => {
                let why = "this model has a classification head and gives no embeddings; use /v1/rerank or /v1/score";
                Err(ApiError::param("model", why))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a text of an encoder that is longer than the model reads.
    pub(crate) fn check_text(&self, param: &str, ids: &[Token]) -> Result<(), ApiError> {
        let longest = self.longest_text();
        if self.facts.encoder.is_none() || ids.len() <= longest {
            return Ok(());
        }
        let why = format!(
            "`{param}` has {} tokens; this model reads at most {longest}: shorten it, or send `truncate`: true",
            ids.len()
        );
        Err(ApiError::too_long(param, why))
    }

    /// Tokenizes a query and a document as one sequence, in this process; the longer one is truncated
    /// first. Ends with an error when the client of this request leaves.
    pub(crate) fn encode_pair(&self, query: &str, document: &str) -> Result<TextPair, ApiError> {
        let gone = RequestContext::current().gone.clone();
        let mut memory = TOKENIZING.hold();
        let bytes = query.len() + document.len();
        if bytes >= LONG_TEXT {
            let most = TOKENIZING.tenant_bytes() / BYTES_PER_TEXT_BYTE;
            if bytes > most {
                let why =
                    format!("query and document have {bytes} bytes; at most {most} are tokenized at once");
                return Err(ApiError::too_long("documents", why));
            }
            memory.wait_to_grow(bytes * BYTES_PER_TEXT_BYTE, &gone)?;
        }
        let pair =
            self.chat.tokenizer().encode_pair_cancelable([query, document], self.longest_text(), &gone);
        pair.map_err(|error| ApiError::param("documents", error.to_string()))
    }
}
