//! Prompts that make a generative model judge whether a document answers a query: cross-encoding.
//!
//! The wording is that of Qwen3-Reranker, which is trained on it; other chat models follow it as an
//! instruction. The document comes last, so that all documents of a query share the prompt's prefix
//! and with it their K/V.

use crate::context::ignored_fields::IgnoredFields;
use crate::error::{ApiError, Overflow};
use crate::model::Model;
use crate::request::chat::ChatRequest;
use crate::request::reader::Reader;
use kvasir_kv::Token;
use serde_json::json;
use std::borrow::Cow;

/// The task where a request gives none.
pub(crate) const DEFAULT_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
const SYSTEM: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct \
                      provided. Note that the answer can only be \"yes\" or \"no\".";
/// Tokens that a document is cut by beyond its excess: cutting between tokens of a text can make the
/// text around the cut longer.
const MARGIN: usize = 4;

impl Model {
    /// The prompt behind which the model says `yes` or `no`. A document that does not fit is cut at
    /// its end.
    pub(crate) fn judge_prompt(
        &self,
        instruction: &str,
        query: &str,
        document: &str,
    ) -> Result<Vec<Token>, ApiError> {
        let room = self.facts.max_len as usize - 1;
        let mut document = Cow::Borrowed(document);
        loop {
            let prompt = self.render_judgment(instruction, query, &document)?;
            let excess = prompt.len().saturating_sub(room);
            if excess == 0 {
                return Ok(prompt);
            }
            let ids = self.encode(&document, false)?;
            let kept = ids.len().saturating_sub(excess + MARGIN);
            if kept == 0 {
                let overflow =
                    Overflow { prompt: prompt.len() as u32, requested: None, limit: room as u32 + 1 };
                return Err(ApiError::overflow("query", overflow));
            }
            document = Cow::Owned(self.decode(&ids[..kept])?);
        }
    }

    fn render_judgment(
        &self,
        instruction: &str,
        query: &str,
        document: &str,
    ) -> Result<Vec<Token>, ApiError> {
        let question = format!("<Instruct>: {instruction}\n\n<Query>: {query}\n\n<Document>: {document}");
        let body = json!({
            "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
            "enable_thinking": false,
        });
        let ignored = IgnoredFields::default();
        let body = body.as_object().ok_or_else(|| ApiError::failed("no conversation"))?;
        let request =
            ChatRequest::read(&Reader::new(body, &ignored), &self.facts.sampling, self.facts.vocab)?;
        let mut prompt = self.chat_prompt(&request)?;
        // A template that opens reasoning whatever the request says: close it, the answer is one word.
        if let Some((open, close)) = self.chat.reasoning_dialect().map(|dialect| dialect.marks())
            && self.chat.ends_with(&prompt, open)
        {
            prompt.extend(self.encode(&format!("\n{close}\n\n"), false)?);
        }
        Ok(prompt)
    }

    /// The tokens with which the answers `yes` and `no` begin.
    pub(crate) fn verdict_tokens(&self) -> Result<[Token; 2], ApiError> {
        let first = |text| Ok::<_, ApiError>(self.encode(text, false)?.first().copied());
        match (first("yes")?, first("no")?) {
            (Some(yes), Some(no)) if yes != no => Ok([yes, no]),
            _ => Err(ApiError::param("method", "this model's tokens do not tell `yes` from `no`")),
        }
    }
}
