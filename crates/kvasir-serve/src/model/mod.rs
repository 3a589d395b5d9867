//! A served model: its chat model, limits and description.
//!
//! `tokenization` tokenizes and detokenizes, in this process or in tokenizer processes.
//! `chat_prompt` renders and tokenizes conversations, `answer` sets up the generation of an answer.
//!
//! Knows no engine and no socket; builds on `request` and on `kvasir-chat`.

pub(crate) mod answer;
pub(crate) mod chat_prompt;
pub(crate) mod encoder;
pub(crate) mod judge_prompt;
pub(crate) mod marked_prefixes;
pub(crate) mod message_ends;
pub(crate) mod sampler_chain;
pub(crate) mod tokenization;

pub use crate::model::encoder::EncoderFacts;

use crate::error::{ApiError, Overflow};
use crate::model::sampler_chain::BreakerCache;
use kvasir_chat::{ChatModel, RemoteTokenizer, TokenizerStatus, VocabularyFacts};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use std::{sync::Arc, time::SystemTime};

/// Size in bytes from which a text is checked against the context before it is tokenized, and its
/// tokenization is charged.
const LONG_TEXT: usize = 64 << 10;

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
    /// Name of the model's file or folder.
    pub file: String,
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
            file: text(),
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
    /// Context length in tokens, prompt and answer together; of an encoder, the length of the
    /// longest text plus one.
    pub max_len: u32,
    /// Facts of an encoder; `None` for a model that generates.
    pub encoder: Option<EncoderFacts>,
    /// Cap on answer tokens, if configured.
    pub max_new_tokens: Option<u32>,
    /// Whether requests may shift their context when it is full (`--context-shift`).
    pub context_shift: bool,
    /// Whether the cache uses marked positions: prefix hits of models with recurrent or
    /// sliding-window layers end there.
    pub uses_marks: bool,
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
    /// The tokenizer processes; `None` if this process tokenizes and detokenizes.
    remote_tokenizer: Option<Arc<dyn RemoteTokenizer>>,
}

impl Model {
    /// Combines a chat model with its public name and facts.
    pub fn new(name: String, chat: ChatModel, facts: Facts) -> Self {
        Self { name, facts, chat, breakers: BreakerCache::default(), remote_tokenizer: None }
    }

    /// Makes the model tokenize and detokenize in the processes of `remote`.
    pub fn with_remote_tokenizer(self, remote: Arc<dyn RemoteTokenizer>) -> Self {
        Self { remote_tokenizer: Some(remote), ..self }
    }

    /// Status of the tokenizer processes; `None` without them.
    pub fn tokenizer_status(&self) -> Option<Vec<TokenizerStatus>> {
        self.remote_tokenizer.as_ref().map(|remote| remote.status())
    }

    /// Whether any tokenizer process is not ready; false without such processes.
    pub(crate) fn has_unready_tokenizer(&self) -> bool {
        self.tokenizer_status().unwrap_or_default().iter().any(|status| !status.is_ready)
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
}
