//! A served model: tokenizer, chat template, output dialects, limits, and compiled grammars.
//!
//! `prompt` renders conversations, `constraint` builds the constraints of answers.
//!
//! Knows no engine and no socket; builds on `request`, `grammar`, `dialect` and `answer`.

pub(crate) mod constraint;
pub(crate) mod folded_conversation;
pub(crate) mod judge_prompt;
pub(crate) mod marked_prefixes;
pub(crate) mod prompt;
pub(crate) mod raw_arguments;
pub(crate) mod tool_grammars;
pub(crate) mod tool_prompt;

use crate::answer::call_constraint::CallConstraint;
use crate::answer::choice::ParseOptions;
use crate::context::request_context::RequestContext;
use crate::dialect::reasoning::ReasoningDialect;
use crate::dialect::tool_calls::ToolDialect;
use crate::error::{ApiError, Overflow};
use crate::grammar::vocabulary::{GrammarError, Vocabulary};
use crate::memory_budget::TOKENIZING;
use crate::model::tool_grammars::ToolGrammars;
use crate::request::chat::ChatRequest;
use crate::request::tools::ToolChoice;
use kvasir_formats::{TextFiles, TextStream, Tokenizer};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use kvasir_template::ChatTemplate;
use serde_json::{Map, Value};
use std::sync::{Arc, OnceLock};
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
    /// Name of the drafter of speculative decoding, if there is one.
    pub drafter: Option<&'static str>,
    /// Description for lists of models.
    pub card: Card,
    /// Prefix cache salt by final sequence length: prefixes are shared only between sequences with
    /// equal salts.
    pub prefix_salt: Box<dyn Fn(u32) -> u64 + Send + Sync>,
}

/// A served model.
pub struct Model {
    /// Its public name.
    pub name: String,
    /// Facts about it.
    pub facts: Facts,
    tokenizer: Arc<Tokenizer>,
    /// Chat template; without one, only raw completions are served.
    template: Option<ChatTemplate>,
    /// Source of the template, for clients that render chats themselves.
    template_source: Option<String>,
    /// Template variables: `bos_token` and the like, and the server's own.
    variables: Map<String, Value>,
    /// Spellings of control tokens.
    specials: Vec<String>,
    /// Its tool call dialect.
    tool_dialect: ToolDialect,
    /// Its reasoning dialect, if it reasons.
    reasoning: Option<ReasoningDialect>,
    /// Control tokens kept in detokenized text, because they mark calls or reasoning.
    marker_tokens: Vec<(Token, String)>,
    /// Compiled token vocabulary, built on first use of structured output.
    vocabulary: OnceLock<Result<Vocabulary, GrammarError>>,
    /// Whether voluntary tool calls (`tool_choice: auto`) are constrained.
    constrain_calls: bool,
    tool_grammars: ToolGrammars,
}

impl Model {
    /// Loads tokenizer and template; detects the dialects from the template.
    pub fn new(name: String, text: &TextFiles, facts: Facts) -> Result<Self, kvasir_formats::Error> {
        let tokenizer = text.tokenizer()?;
        let source = text.template_source(None)?;
        let template = source.as_ref().map(|_| text.template(None)).transpose()?;
        let dialects = source.as_deref().unwrap_or_default();
        let (tools, reasoning) =
            (ToolDialect::of_template(dialects), ReasoningDialect::of_template(dialects));
        Ok(Self {
            name,
            facts,
            specials: tokenizer.special_tokens().map(|(_, text)| text).collect(),
            tokenizer: Arc::new(tokenizer),
            template,
            template_source: source,
            variables: text.template_variables(),
            tool_dialect: ToolDialect::default(),
            reasoning: None,
            marker_tokens: Vec::new(),
            vocabulary: OnceLock::new(),
            constrain_calls: true,
            tool_grammars: ToolGrammars::default(),
        }
        .with_dialects(tools, reasoning))
    }

    /// Sets the dialects in which answers are parsed.
    pub fn with_dialects(mut self, tools: ToolDialect, reasoning: Option<ReasoningDialect>) -> Self {
        let think = reasoning.map(|dialect| dialect.marks());
        let marks: Vec<&str> =
            tools.marks().into_iter().chain(think.into_iter().flat_map(|(a, b)| [a, b])).collect();
        // A marker may span several tokens: `<｜DSML｜` may be one of them.
        let counts = |text: &str| marks.iter().any(|mark| mark.contains(text));
        let kept = |(id, text): &(Token, String)| counts(text) && !self.facts.eos.contains(id);
        self.marker_tokens = self.tokenizer.special_tokens().filter(kept).collect();
        self.tool_dialect = tools;
        self.reasoning = reasoning;
        self
    }

    /// Replaces the chat template, and detects the dialects of the new one.
    pub fn with_template(self, source: &str) -> Result<Self, ApiError> {
        let invalid = |e| ApiError::param("chat_template", format!("the chat template is invalid: {e}"));
        let template = Some(ChatTemplate::new(source).map_err(invalid)?);
        let (tools, reasoning) = (ToolDialect::of_template(source), ReasoningDialect::of_template(source));
        Ok(Self { template, template_source: Some(source.to_owned()), ..self }
            .with_dialects(tools, reasoning))
    }

    /// Adds template variables that requests may replace in `chat_template_kwargs`.
    pub fn with_template_kwargs(mut self, kwargs: Map<String, Value>) -> Self {
        self.variables.extend(kwargs);
        self
    }

    /// Enables or disables constraints of voluntary tool calls.
    pub fn with_constrained_calls(mut self, on: bool) -> Self {
        self.constrain_calls = on;
        self
    }

    /// Whether it takes tools: every model with a chat template does.
    pub fn takes_tools(&self) -> bool {
        self.template.is_some()
    }

    /// Whether it has a chat template that does not render tools, so that they get a generic prompt.
    pub fn needs_tool_prompt(&self) -> bool {
        self.template_source.as_deref().is_some_and(|source| !source.contains("tools"))
    }

    /// Its tool call dialect.
    pub fn tool_dialect(&self) -> ToolDialect {
        self.tool_dialect
    }

    /// Its reasoning dialect, if it reasons.
    pub fn reasoning_dialect(&self) -> Option<ReasoningDialect> {
        self.reasoning
    }

    /// Rejects a text whose bytes alone make it longer than the context, without encoding it.
    pub(crate) fn check_bytes(&self, param: &str, text: &str) -> Result<(), ApiError> {
        let limit = self.facts.max_len;
        if text.len() < LONG_TEXT {
            return Ok(());
        }
        let prompt = u32::try_from(self.tokenizer.fewest_tokens(text)).unwrap_or(u32::MAX);
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
        let ids = self.tokenizer.encode_cancelable(text, add_special, &gone);
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

    /// Detokenizes ids.
    pub fn decode(&self, ids: &[Token]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// Template variables (`bos_token` and the like) and the template's source.
    pub fn template_facts(&self) -> (&Map<String, Value>, Option<&str>) {
        (&self.variables, self.template_source.as_deref())
    }

    /// A token as the vocabulary spells it.
    pub fn id_to_token(&self, token: Token) -> Option<String> {
        self.tokenizer.id_to_token(token)
    }

    /// A token's bytes.
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        self.tokenizer.bytes(token).unwrap_or_default()
    }

    /// Streaming detokenizer of an answer. `marked` keeps the control tokens that mark calls and
    /// reasoning; `continues` means that the answer continues a text; `skip_special` leaves other
    /// control tokens out.
    pub fn detokenizer(self: &Arc<Self>, marked: bool, continues: bool, skip_special: bool) -> Detokenizer {
        let text =
            if continues { TextStream::continuing(skip_special) } else { TextStream::new(skip_special) };
        Detokenizer { model: self.clone(), text, marked }
    }

    /// Output parsing options of a chat answer.
    pub fn parse_options(&self, request: &ChatRequest, prompt: &[Token]) -> ParseOptions {
        let offers_tools = !request.tools.is_empty() && request.tool_choice != ToolChoice::None;
        ParseOptions {
            stop: request.sampling.stop.clone(),
            stop_regex: request.sampling.stop_regex.clone(),
            min_tokens: request.sampling.length.min_tokens,
            continues: request.continue_final_message,
            calls: offers_tools.then(|| (self.tool_dialect, request.tools.clone().into())),
            reasoning: self
                .reasoning
                .filter(|_| request.sampling.output.separate_reasoning)
                .map(|dialect| (dialect, self.ends_with(prompt, dialect.marks().0))),
            constrained: CallConstraint::None,
            one_call: !request.parallel_tool_calls,
        }
    }

    fn ends_with(&self, prompt: &[Token], mark: &str) -> bool {
        let tail = &prompt[prompt.len().saturating_sub(16)..];
        self.decode(tail).trim_end().ends_with(mark)
    }
}

/// Streaming detokenizer of one answer.
pub struct Detokenizer {
    model: Arc<Model>,
    text: TextStream,
    marked: bool,
}

impl Detokenizer {
    /// Feeds a token; returns the text that it completes.
    pub fn push(&mut self, token: Token) -> String {
        match self.model.marker_tokens.iter().find(|(id, _)| self.marked && *id == token) {
            Some((_, spelling)) => self.text.finish() + spelling,
            None => self.text.push(&self.model.tokenizer, token),
        }
    }

    /// Flushes incomplete bytes at the end.
    pub fn finish(&mut self) -> String {
        self.text.finish()
    }
}
