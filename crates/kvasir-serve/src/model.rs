//! What the server must know of a model: its words, its template, its limits and its defaults.

use crate::{
    ApiError,
    request::{ChatRequest, ToolChoice},
};
use kvasir_formats::{ChatTemplate, TextFiles, TextStream, Tokenizer};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use serde_json::{Map, Value};
use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

/// Put into a control token's spelling where a client wrote it, so that it stays text.
const GUARD: char = '\u{fdd0}';

/// What the engine says of a model.
pub struct Facts {
    /// Token ids are below this.
    pub vocab: u32,
    /// Prompt and answer together.
    pub max_len: u32,
    /// Tokens that end an answer.
    pub eos: Vec<Token>,
    /// What a request leaves open.
    pub sampling: Sampling,
    /// Sequences of these final lengths may share prefixes if this gives the same for both.
    pub prefix_salt: Box<dyn Fn(u32) -> u64 + Send + Sync>,
}

/// A model as the server sees it.
pub struct Model {
    /// What clients call it.
    pub name: String,
    /// What the engine says of it.
    pub facts: Facts,
    tokenizer: Arc<Tokenizer>,
    /// Chats to text; without one there are only plain completions.
    template: Option<ChatTemplate>,
    /// What templates may name: `bos_token` and its like.
    variables: Map<String, Value>,
    /// Spellings of the control tokens.
    specials: Vec<String>,
    /// Whether answers may begin with reasoning.
    pub reasoning: Option<bool>,
}

impl Model {
    /// A model of this name from its text files.
    pub fn new(name: String, text: &TextFiles, facts: Facts) -> Result<Self, kvasir_formats::Error> {
        let tokenizer = text.tokenizer()?;
        let source = text.template_source(None)?;
        let template = source.as_ref().map(|_| text.template(None)).transpose()?;
        let specials = (0..tokenizer.len() as u32).filter(|id| tokenizer.is_special(*id));
        Ok(Self {
            name,
            facts,
            specials: specials
                .filter_map(|id| tokenizer.spelling(id))
                .filter(|text| !text.is_empty())
                .collect(),
            tokenizer: Arc::new(tokenizer),
            template,
            variables: text.template_variables(),
            reasoning: source.is_some_and(|source| source.contains("<think>")).then_some(false),
        })
    }

    /// The ids of a text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<Token>, ApiError> {
        self.tokenizer.encode(text, add_special).map_err(|e| ApiError::param("prompt", e.to_string()))
    }

    /// The text of ids.
    pub fn decode(&self, ids: &[Token]) -> String {
        self.tokenizer.decode(ids, false).unwrap_or_default()
    }

    /// The bytes that a token stands for.
    pub fn token_bytes(&self, token: Token) -> Vec<u8> {
        self.tokenizer.bytes(token).unwrap_or_default()
    }

    /// Tokens of an answer to text, as they come.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer { tokenizer: self.tokenizer.clone(), text: TextStream::new(true) }
    }

    /// The ids of a chat as the template renders it.
    pub fn chat_prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        let template = self.template.as_ref();
        let template =
            template.ok_or_else(|| ApiError::param("messages", "this model has no chat template"))?;
        let mut variables = self.variables.clone();
        variables.extend(request.template_kwargs.clone());
        let messages = request.messages.iter().map(|message| self.guarded(&message.source)).collect();
        variables.insert("messages".into(), messages);
        let tools = match request.tools.is_empty() || request.tool_choice == ToolChoice::None {
            true => Value::Null,
            false => request.tools.iter().map(|tool| self.guarded(&tool.source)).collect(),
        };
        variables.insert("tools".into(), tools);
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        let mut text = self.render(template, &variables)?;
        if request.continue_final_message {
            text = continued(text, &self.guarded(&request.messages[request.messages.len() - 1].source));
        }
        let mut ids = Vec::new();
        for part in text.split(GUARD) {
            ids.extend(self.encode(part, false)?);
        }
        Ok(ids)
    }

    fn render(&self, template: &ChatTemplate, variables: &Map<String, Value>) -> Result<String, ApiError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        template.render(variables, now).map_err(|e| ApiError::param("messages", e.to_string()))
    }

    /// The value with every control token that stands in one of its texts made harmless.
    fn guarded(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.guarded_text(text).into(),
            Value::Array(items) => items.iter().map(|item| self.guarded(item)).collect(),
            Value::Object(map) => Value::Object(
                map.iter().map(|(key, item)| (self.guarded_text(key), self.guarded(item))).collect(),
            ),
            other => other.clone(),
        }
    }

    fn guarded_text(&self, text: &str) -> String {
        let text = text.replace(GUARD, "\u{fffd}");
        self.specials.iter().fold(text, |text, special| {
            let mut chars = special.chars();
            match chars.next().filter(|_| text.contains(special)) {
                Some(first) => text.replace(special, &format!("{first}{GUARD}{}", chars.as_str())),
                None => text,
            }
        })
    }
}

/// Cuts what the template put behind the last message's text, so that the answer goes on with it.
fn continued(text: String, message: &Value) -> String {
    let last = message["content"].as_str().unwrap_or_default().trim_end();
    match text.rfind(last) {
        Some(at) if !last.is_empty() => text[..at + last.len()].to_owned(),
        _ => text,
    }
}

/// One answer's tokens to text.
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    text: TextStream,
}

impl Detokenizer {
    /// The text that this token completes.
    pub fn push(&mut self, token: Token) -> String {
        self.text.push(&self.tokenizer, token)
    }

    /// What is left at the end.
    pub fn finish(&mut self) -> String {
        self.text.finish()
    }
}
