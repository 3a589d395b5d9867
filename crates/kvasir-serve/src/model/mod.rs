//! A served model: its chat model, limits and description.
//!
//! `chat_prompt` renders and tokenizes conversations, `answer` sets up the generation of an answer.
//!
//! Knows no engine and no socket; builds on `request` and on `kvasir-chat`.

pub(crate) mod answer;
pub(crate) mod chat_prompt;
pub(crate) mod judge_prompt;
pub(crate) mod marked_prefixes;
pub(crate) mod sampler_chain;

use crate::context::request_context::RequestContext;
use crate::error::{ApiError, Overflow};
use crate::memory_budget::TOKENIZING;
use crate::model::sampler_chain::BreakerCache;
use kvasir_chat::{ChatModel, VocabularyFacts};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use std::time::SystemTime;

/// Size in bytes from which a text is checked against the context before it is tokenized, and its
/// tokenization is charged.
const LONG_TEXT: usize = 64 << 10;
/// Working memory of a tokenization per byte of text, measured with `tokenizers` on texts of one
/// token per character.
const BYTES_PER_TEXT_BYTE: usize = 176;

/// Description of a model for lists and pages; nothing depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Architecture, such as `qwen3`.
    pub family: String,
    /// `gguf` or `safetensors`.
    pub format: String,
    /// Number of weights.
    pub parameters: u64,
    /// Type of most weights, such as `Q8_0`.
    pub quantization: String,
    /// Size of all tensors as stored, in bytes.
    pub bytes: u64,
    /// When its file was written.
    pub modified: SystemTime,
}

impl Default for Card {
    fn default() -> Self {
        let text = String::default;
        Self {
            family: text(),
            format: text(),
            parameters: 0,
            quantization: text(),
            bytes: 0,
            modified: SystemTime::UNIX_EPOCH,
        }
    }
}

impl Card {
    /// The number of weights as people write it: `752M`, `7.6B`.
    pub fn parameter_size(&self) -> String {
        match self.parameters as f64 {
            n if n >= 1e9 => format!("{:.1}B", n / 1e9),
            n if n >= 1e6 => format!("{:.0}M", n / 1e6),
            n => format!("{:.0}K", n / 1e3),
        }
    }
}

/// Facts about a model and its engine that requests depend on.
pub struct Facts {
    /// Vocabulary size.
    pub vocab: u32,
    /// Context length in tokens, prompt and answer together.
    pub max_len: u32,
    /// Cap on answer tokens, if configured.
    pub max_new_tokens: Option<u32>,
    /// Whether requests may shift their context when it is full (`--context-shift`).
    pub context_shift: bool,
    /// Hidden size; `None` for the simulated device, which computes nothing.
    pub hidden: Option<u32>,
    /// End-of-sequence tokens.
    pub eos: Vec<Token>,
    /// Default sampling parameters.
    pub sampling: Sampling,
    /// Default seed; `None` gives each request its own.
    pub seed: Option<u64>,
    /// Name of the drafter of speculative decoding, if there is one.
    pub drafter: Option<&'static str>,
    /// Description for lists of models.
    pub card: Card,
    /// Prefix cache salt by final sequence length: prefixes are shared only between sequences with
    /// equal salts.
    pub prefix_salt: Box<dyn Fn(u32) -> u64 + Send + Sync>,
}

impl Facts {
    /// Facts about the vocabulary, for [`ChatModel::new`].
    pub fn vocabulary(&self) -> VocabularyFacts {
        VocabularyFacts { size: self.vocab, eos: self.eos.clone(), has_logits: self.hidden.is_some() }
    }
}

/// A served model.
pub struct Model {
    /// Its public name.
    pub name: String,
    /// Facts about it.
    pub facts: Facts,
    /// Its tokenizer, chat template and dialects.
    pub chat: ChatModel,
    breakers: BreakerCache,
}

impl Model {
    /// Combines a chat model with its public name and facts.
    pub fn new(name: String, chat: ChatModel, facts: Facts) -> Self {
        Self { name, facts, chat, breakers: BreakerCache::default() }
    }

    /// Rejects a text whose bytes alone make it longer than the context, without encoding it.
    pub(crate) fn check_bytes(&self, param: &str, text: &str) -> Result<(), ApiError> {
        let limit = self.facts.max_len;
        if text.len() < LONG_TEXT {
            return Ok(());
        }
        let prompt = u32::try_from(self.chat.tokenizer().fewest_tokens(text)).unwrap_or(u32::MAX);
        if prompt < limit {
            return Ok(());
        }
        let size = format!("`{param}` has {} bytes and so at least {prompt} tokens", text.len());
        Err(ApiError::beyond_context(param, size, Overflow { prompt, requested: None, limit }))
    }

    /// Tokenizes a text. Ends with an error when the client of this request leaves.
    ///
    /// Fails for a text that needs more working memory than a tenant may hold; waits while others use it.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, ApiError> {
        let gone = RequestContext::current().gone.clone();
        let mut memory = TOKENIZING.hold();
        if text.len() >= LONG_TEXT {
            let most = TOKENIZING.tenant_bytes() / BYTES_PER_TEXT_BYTE;
            if text.len() > most {
                let why = format!("`prompt` has {} bytes; at most {most} are tokenized at once", text.len());
                return Err(ApiError::too_long("prompt", why));
            }
            memory.wait_to_grow(text.len() * BYTES_PER_TEXT_BYTE, &gone)?;
        }
        let ids = self.chat.tokenizer().encode_cancelable(text, add_special, &gone);
        ids.map_err(|e| ApiError::param("prompt", e.to_string()))
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

    /// A token as the vocabulary spells it.
    pub fn id_to_token(&self, token: Token) -> Option<String> {
        self.chat.tokenizer().id_to_token(token)
    }

    /// A token's bytes.
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        self.chat.tokenizer().bytes(token).unwrap_or_default()
    }
}
