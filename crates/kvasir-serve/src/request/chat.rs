//! Parses OpenAI `/v1/chat/completions` requests; `ChatRequest` is the common form of all chat
//! endpoints.

#[cfg(test)]
mod tests;

use crate::error::ApiError;
use crate::request::body::ParseBudget;
use crate::request::cache_marks::CacheMark;
use crate::request::conversation::TEXT_PART;
use crate::request::fields::CHAT;
use crate::request::length;
use crate::request::media::{MediaParts, UnreadMedia};
use crate::request::reader::Reader;
use crate::request::response_format::read_response_format;
use crate::request::sampling::{self, SamplingFields};
use crate::request::tools::{custom_arguments, read_tool_choice, read_tools};
use kvasir_chat::{Content, Message, ResponseFormat, Role, ThinkingBudget, Tool, ToolChoice};
use kvasir_sample::Sampling;
use serde_json::{Map, Value, json};

/// Maximum messages per request.
const MAX_MESSAGES: usize = 4096;

/// `stream_options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// Send usage in a final chunk.
    pub include_usage: bool,
    /// Send running usage in every chunk (`continuous_usage_stats`).
    pub continuous_usage: bool,
}

/// A validated chat request.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// The requested model.
    pub model: Option<String>,
    /// Token ids of an earlier conversation, which ends with an answer and which the messages
    /// continue; empty in all APIs but Ollama's.
    pub earlier: Vec<u32>,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Media in the newest message of the user, for which the request is refused.
    pub unread_media: Option<UnreadMedia>,
    /// Sampling parameters, length limits and stop conditions.
    pub sampling: SamplingFields,
    /// Offered tools.
    pub tools: Vec<Tool>,
    /// Which tool must be called, if any.
    pub tool_choice: ToolChoice,
    /// Whether an answer may hold several tool calls.
    pub parallel_tool_calls: bool,
    /// Required response format (structured output).
    pub response_format: Option<ResponseFormat>,
    /// Reasoning budget.
    pub thinking: Option<ThinkingBudget>,
    /// `Some` for a streamed answer.
    pub stream: Option<StreamOptions>,
    /// Extra variables for the chat template.
    pub template_kwargs: Map<String, Value>,
    /// Append the assistant's turn header after the messages.
    pub add_generation_prompt: bool,
    /// Continue the last message instead of starting a turn.
    pub continue_final_message: bool,
    /// Add the tokenizer's special tokens, such as BOS, before the rendered template.
    pub add_special_tokens: bool,
    /// Repeat the last message, if it is the assistant's, in front of the answer.
    pub echo: bool,
    /// Chat template instead of the model's.
    pub chat_template: Option<String>,
    /// Whether the response has timings.
    pub timings: bool,
    /// Whether the response has the rendered prompt (`__verbose`).
    pub verbose: bool,
    /// Prefixes whose K/V outlives unmarked K/V.
    pub cache_marks: Vec<CacheMark>,
}

impl ChatRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader, defaults: &Sampling, vocab: u32) -> Result<Self, ApiError> {
        Self::read_after(0, body, defaults, vocab)
    }

    /// Parses a body whose first `earlier` messages are a session's. Error paths count from the
    /// client's own messages.
    pub fn read_after(
        earlier: usize,
        body: &Reader,
        defaults: &Sampling,
        vocab: u32,
    ) -> Result<Self, ApiError> {
        body.classify(CHAT)?;
        // Only the type of `session` is checked here; the session layer resolves it.
        body.text("session")?;
        let mut tools = read_tools(body)?;
        let tool_choice = read_tool_choice(body, &mut tools)?;
        let mut sampling = SamplingFields::read(body, defaults, vocab)?;
        sampling.sampling.logprobs = sampling::chat_logprobs(body)?;
        let continue_final_message = body.flag("continue_final_message", false)?;
        let add_generation_prompt = body.flag("add_generation_prompt", !continue_final_message)?;
        if continue_final_message && add_generation_prompt {
            return Err(
                body.error("continue_final_message", "and `add_generation_prompt` cannot both be true")
            );
        }
        let mut template_kwargs = template_kwargs(body)?;
        effort(body, "reasoning_effort", &mut template_kwargs)?;
        if let Some(reasoning) = body.object("reasoning")? {
            reasoning.only(&["effort", "enabled"])?;
            effort(&reasoning, "effort", &mut template_kwargs)?;
            enable_thinking(&reasoning, "enabled", &mut template_kwargs)?;
        }
        enable_thinking(body, "enable_thinking", &mut template_kwargs)?;
        let (messages, unread_media) = messages(body, earlier)?;
        let last = messages.last().map(|message| message.role);
        if continue_final_message && last != Some(Role::Assistant) {
            return Err(body.error("continue_final_message", "needs a last message of the assistant"));
        }
        Ok(Self {
            model: body.text("model")?.map(str::to_owned),
            earlier: Vec::new(),
            messages,
            unread_media,
            sampling,
            tool_choice,
            tools,
            parallel_tool_calls: body.flag("parallel_tool_calls", true)?,
            response_format: read_response_format(body)?,
            thinking: thinking(body)?,
            stream: stream(body)?,
            template_kwargs,
            add_generation_prompt,
            continue_final_message,
            add_special_tokens: body.flag("add_special_tokens", false)?,
            echo: body.flag("echo", false)?,
            chat_template: body.text("chat_template")?.filter(|text| !text.is_empty()).map(str::to_owned),
            timings: body.flag("timings_per_token", false)?,
            verbose: body.flag("verbose", false)?,
            cache_marks: Vec::new(),
        })
    }
}

pub(crate) fn stream(body: &Reader) -> Result<Option<StreamOptions>, ApiError> {
    let wanted = body.flag("stream", false)?;
    match body.object("stream_options")? {
        Some(_) if !wanted => Err(body.error("stream_options", "needs `stream` to be true")),
        Some(options) => {
            options.only(&["include_usage", "continuous_usage_stats", "include_obfuscation"])?;
            ignore_obfuscation(&options)?;
            Ok(Some(StreamOptions {
                include_usage: options.flag("include_usage", false)?,
                continuous_usage: options.flag("continuous_usage_stats", false)?,
            }))
        }
        None => Ok(wanted.then(StreamOptions::default)),
    }
}

/// Records `include_obfuscation` as ignored: events are not padded against traffic analysis.
pub(crate) fn ignore_obfuscation(options: &Reader) -> Result<(), ApiError> {
    if options.flag("include_obfuscation", false)? {
        options.ignore("include_obfuscation");
    }
    Ok(())
}

/// Reasoning effort as template variables: `reasoning_effort`, and `enable_thinking`, which is off
/// for `none` and `minimal`.
pub(crate) fn effort(body: &Reader, field: &str, kwargs: &mut Map<String, Value>) -> Result<(), ApiError> {
    let words = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    if let Some(word) = effort_word(body, field, &words, kwargs)? {
        kwargs.entry("enable_thinking").or_insert((!matches!(word, "none" | "minimal")).into());
    }
    Ok(())
}

/// A flag that switches reasoning on or off as a template variable.
fn enable_thinking(body: &Reader, field: &str, kwargs: &mut Map<String, Value>) -> Result<(), ApiError> {
    if body.get(field).is_some() {
        kwargs.insert("enable_thinking".into(), body.flag(field, true)?.into());
    }
    Ok(())
}

/// Reads the effort, one of `words`, and sets `reasoning_effort` only.
pub(crate) fn effort_word<'a>(
    body: &Reader<'a>,
    field: &str,
    words: &[&str],
    kwargs: &mut Map<String, Value>,
) -> Result<Option<&'a str>, ApiError> {
    let Some(word) = body.text(field)? else { return Ok(None) };
    if !words.contains(&word) {
        return Err(body.error(field, format!("must be one of {}", words.join(", "))));
    }
    kwargs.entry("reasoning_effort").or_insert(word.into());
    Ok(Some(word))
}

fn thinking(body: &Reader) -> Result<Option<ThinkingBudget>, ApiError> {
    let param = "thinking_token_budget";
    let tokens = body.integer(param, 0..=length::MAX_TOKENS)?;
    Ok(tokens.map(|tokens| ThinkingBudget { tokens: tokens as u32, param }))
}

/// Template variables set by the server, which a request may not override.
const RESERVED: &[&str] = &[
    "messages",
    "tools",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "raise_exception",
    "strftime_now",
];

pub(crate) fn template_kwargs(body: &Reader) -> Result<Map<String, Value>, ApiError> {
    let Some(value) = body.get("chat_template_kwargs") else { return Ok(Map::new()) };
    let map = value.as_object().ok_or_else(|| body.error("chat_template_kwargs", "must be an object"))?;
    match map.keys().find(|key| RESERVED.contains(&key.as_str())) {
        Some(key) => Err(body.error(&format!("chat_template_kwargs.{key}"), "is set by the engine")),
        None => Ok(map.clone()),
    }
}

/// Parses `messages`; also returns the media in the newest message of the user.
fn messages(body: &Reader, earlier: usize) -> Result<(Vec<Message>, Option<UnreadMedia>), ApiError> {
    let items = body.list("messages", MAX_MESSAGES)?.ok_or_else(|| body.error("messages", "is missing"))?;
    if items.is_empty() {
        return Err(body.error("messages", "must not be empty"));
    }
    let mut open_calls: Vec<String> = Vec::new();
    let budget = ParseBudget::default();
    let mut messages = Vec::with_capacity(items.len());
    let mut media = MediaParts::new(items.iter().rposition(|item| item["role"] == "user"));
    for (i, item) in items.iter().enumerate() {
        media.enter(i);
        let reader = match i.checked_sub(earlier) {
            Some(own) => body.item("messages", own, item)?,
            None => body.item("session.messages", i, item)?,
        };
        messages.push(message(&reader, &mut open_calls, &budget, &mut media)?);
    }
    Ok((messages, media.unread()))
}

/// Parses the messages of a session. Media in them become notes.
pub(crate) fn session_messages(body: &Reader, items: &[Value]) -> Result<Vec<Message>, ApiError> {
    if items.len() > MAX_MESSAGES {
        let why = format!("has {} messages, of at most {MAX_MESSAGES}", items.len());
        return Err(body.error("session", why));
    }
    let (mut open_calls, budget) = (Vec::new(), ParseBudget::default());
    let mut media = MediaParts::new(None);
    let read = |(i, item): (usize, &Value)| {
        let fields =
            item.as_object().ok_or_else(|| body.error("session", "contains a message that is no object"))?;
        let reader = body.at(fields, format!("session.messages[{i}]"));
        message(&reader, &mut open_calls, &budget, &mut media)
    };
    items.iter().enumerate().map(read).collect()
}

fn message(
    reader: &Reader,
    open_calls: &mut Vec<String>,
    budget: &ParseBudget,
    media: &mut MediaParts,
) -> Result<Message, ApiError> {
    let role = match reader.need_text("role")? {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => return Err(reader.error("role", "must be system, developer, user, assistant or tool")),
    };
    let content = content(reader, media)?;
    let mut source = reader.fields().clone();
    if reader.text("role")? == Some("developer") {
        source.insert("role".into(), "system".into());
    }
    source.insert(
        "content".into(),
        match &content {
            Content::Empty => Value::Null,
            Content::Text(text) => text.clone().into(),
        },
    );
    match role {
        Role::Assistant => {
            let calls = calls(reader, budget)?;
            if content == Content::Empty && calls.is_empty() && reader.get("reasoning_content").is_none() {
                return Err(reader.error("content", "is missing, and there are no `tool_calls`"));
            }
            open_calls.extend(calls.iter().filter_map(|call| call["id"].as_str().map(str::to_owned)));
            if !calls.is_empty() {
                source.insert("tool_calls".into(), calls.into());
            }
        }
        Role::Tool => {
            let id = reader.need_text("tool_call_id")?;
            if !open_calls.iter().any(|open| open == id) {
                return Err(reader.error("tool_call_id", "answers no call of an earlier message"));
            }
        }
        Role::System | Role::User if content == Content::Empty => {
            return Err(reader.error("content", "is missing"));
        }
        Role::System | Role::User => {}
    }
    Ok(Message { role, content, source: Value::Object(source) })
}

fn content(reader: &Reader, media: &mut MediaParts) -> Result<Content, ApiError> {
    match reader.get("content") {
        None => Ok(Content::Empty),
        Some(Value::String(text)) => Ok(Content::Text(text.clone())),
        Some(Value::Array(parts)) if !parts.is_empty() => {
            let mut text = String::new();
            for (i, part) in parts.iter().enumerate() {
                let part = reader.item("content", i, part)?;
                match part.text("type")? {
                    Some("text" | "input_text" | "output_text") => {
                        part.only(TEXT_PART)?;
                        text.push_str(part.need_text("text")?);
                    }
                    Some("refusal") => {
                        part.only(&["type", "refusal"])?;
                        text.push_str(part.need_text("refusal")?);
                    }
                    kind => text.push_str(&media.replace(&part, kind)?),
                }
            }
            Ok(Content::Text(text))
        }
        Some(_) => Err(reader.error("content", "must be a text or a list of text parts")),
    }
}

/// Tool calls of an assistant message, with arguments as objects, as templates expect. Arguments
/// that are not an object stay a string: history is never rejected for what a model wrote.
fn calls(reader: &Reader, budget: &ParseBudget) -> Result<Vec<Value>, ApiError> {
    let items = reader.list("tool_calls", 1024)?.unwrap_or(&[]).iter().enumerate();
    let read = |(i, item): (usize, &Value)| {
        let call = reader.item("tool_calls", i, item)?;
        call.only(&["id", "type", "function", "custom", "index"])?;
        let id = call.need_text("id")?;
        if call.text("type")? == Some("custom") {
            let custom = call.need_object("custom")?;
            custom.only(&["name", "input"])?;
            let (name, arguments) = (custom.need_text("name")?, custom_arguments(custom.need_text("input")?));
            return Ok(
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
            );
        }
        let function = call.need_object("function")?;
        function.only(&["name", "arguments"])?;
        let name = function.need_text("name")?;
        let arguments = match function.get("arguments") {
            None => json!({}),
            Some(Value::String(text)) => budget.arguments(text),
            Some(value @ Value::Object(_)) => value.clone(),
            Some(other) => other.to_string().into(),
        };
        Ok(json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}))
    };
    items.map(read).collect()
}
