//! Tokenization and detokenization, in this process or in tokenizer processes. Both give the same
//! tokens and the same text.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::memory_budget::{HeldMemory, TOKENIZING};
use crate::model::{LONG_TEXT, Model};
use kvasir_chat::{Detokenizer, DetokenizerState, RemoteTokenizer, RemoteTokenizerError};
use kvasir_kv::Token;
use std::sync::{Arc, atomic::AtomicBool};

/// Working memory of a tokenization per byte of text, measured with `tokenizers` on texts of one
/// token per character.
const BYTES_PER_TEXT_BYTE: usize = 176;

/// Holds the working memory to tokenize `bytes` bytes of the text that `subject` names; waits while
/// other requests hold it. Fails if a tenant may not hold as much, or once the client of this
/// request, `gone`, has disconnected.
pub(super) fn hold_working_memory(
    param: &str,
    subject: &str,
    bytes: usize,
    gone: &AtomicBool,
) -> Result<HeldMemory, ApiError> {
    let mut memory = TOKENIZING.hold();
    if bytes >= LONG_TEXT {
        let most = TOKENIZING.tenant_bytes() / BYTES_PER_TEXT_BYTE;
        if bytes > most {
            let why = format!("{subject} {bytes} bytes; at most {most} are tokenized at once");
            return Err(ApiError::too_long(param, why));
        }
        memory.wait_to_grow(bytes * BYTES_PER_TEXT_BYTE, gone)?;
    }
    Ok(memory)
}

impl Model {
    /// Tokenizes a text. Waits for working memory that other requests hold.
    ///
    /// Fails for a text that needs more working memory than a tenant may hold, and when the client
    /// of this request disconnects.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, ApiError> {
        let gone = RequestContext::current().gone.clone();
        let _memory = hold_working_memory("prompt", "`prompt` has", text.len(), &gone)?;
        match &self.remote_tokenizer {
            Some(remote) => remote.encode(text, add_special, &gone).map_err(failure),
            None => {
                let ids = self.chat.tokenizer().encode_cancelable(text, add_special, &gone);
                ids.map_err(|e| ApiError::param("prompt", e.to_string()))
            }
        }
    }

    /// Detokenizes ids. With tokenizer processes, fails if they are not available or the client of
    /// this request disconnects.
    pub(crate) fn decode(&self, ids: &[Token]) -> Result<String, ApiError> {
        match &self.remote_tokenizer {
            Some(remote) => remote.decode(ids, &RequestContext::current().gone).map_err(failure),
            None => Ok(self.chat.decode(ids)),
        }
    }

    /// A streaming detokenizer for one answer; see [`kvasir_chat::ChatModel::detokenizer`].
    pub(crate) fn detokenizer(&self, marked: bool, continues: bool, skip_special: bool) -> AnswerDetokenizer {
        match &self.remote_tokenizer {
            Some(remote) => AnswerDetokenizer::Remote {
                remote: Arc::clone(remote),
                state: DetokenizerState::new(marked, continues, skip_special),
            },
            None => AnswerDetokenizer::Local(self.chat.detokenizer(marked, continues, skip_special)),
        }
    }

    /// Tokenizes a predicted output, up to the context length: no answer is longer.
    pub fn encode_prediction(&self, text: &str) -> Result<Vec<Token>, ApiError> {
        self.check_bytes("prediction", text)?;
        let encoded = self.encode(text, false);
        let mut ids = encoded.map_err(|error| ApiError { param: Some("prediction".into()), ..error })?;
        ids.truncate(self.facts.max_len as usize);
        // The rest is not kept for as long as the request runs.
        ids.shrink_to_fit();
        Ok(ids)
    }

    /// The vocabulary's spelling of a token.
    pub fn id_to_token(&self, token: Token) -> Option<String> {
        self.chat.tokenizer().id_to_token(token)
    }

    /// A token's bytes.
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        self.chat.tokenizer().bytes(token).unwrap_or_default()
    }
}

fn failure(error: RemoteTokenizerError) -> ApiError {
    match error {
        RemoteTokenizerError::Refused(why) => ApiError::param("prompt", why),
        error => ApiError::unavailable(error.to_string()),
    }
}

/// Streaming detokenizer of one answer.
pub(crate) enum AnswerDetokenizer {
    Local(Detokenizer),
    Remote { remote: Arc<dyn RemoteTokenizer>, state: DetokenizerState },
}

impl AnswerDetokenizer {
    /// Consumes tokens, and appends the text that each of them completes to `texts`.
    pub(crate) async fn push(&mut self, tokens: &[Token], texts: &mut Vec<String>) -> Result<(), ApiError> {
        match self {
            Self::Local(detokenizer) => texts.extend(tokens.iter().map(|token| detokenizer.push(*token))),
            // An increment may be the end token alone, whose text is not wanted: no job is sent.
            Self::Remote { .. } if tokens.is_empty() => {}
            Self::Remote { remote, state } => {
                let detokenized = remote.detokenize(state.clone(), tokens.into()).await.map_err(failure)?;
                *state = detokenized.state;
                texts.extend(detokenized.texts);
            }
        }
        Ok(())
    }

    /// The text of the incomplete bytes at the end of the answer.
    pub(crate) fn finish(&mut self) -> String {
        match self {
            Self::Local(detokenizer) => detokenizer.finish(),
            Self::Remote { state, .. } => state.finish(),
        }
    }
}
