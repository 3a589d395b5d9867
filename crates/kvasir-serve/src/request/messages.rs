//! Parses Anthropic `/v1/messages` and `count_tokens` requests into a `ChatRequest`.
//!
//! Conversation rule: each `tool_use` of an assistant message must be answered by a `tool_result`
//! of the next message. A final assistant message is continued (prefilled answer). Content that the
//! model cannot read is replaced by a note or rejected, never dropped silently.

#[cfg(test)]
mod tests;

use crate::error::ApiError;
use crate::request::body::ParseBudget;
use crate::request::cache_marks::CacheMarks;
use crate::request::chat::{ChatRequest, StreamOptions, effort_word};
use crate::request::fields::{COUNT_TOKENS, MESSAGES};
use crate::request::length::{self, Overlong};
use crate::request::media::MediaParts;
use crate::request::messages_blocks::{
    MAX_MESSAGES, Place, blocks, document, newest_user, search_result, text_of,
};
use crate::request::messages_tools;
use crate::request::reader::Reader;
use crate::request::response_format::read_schema_format;
use crate::request::sampling::{self, SamplingFields};
use kvasir_chat::{AssistantTurn, Message, ResponseFormat, Role, ThinkingBudget};
use kvasir_sample::Sampling;
use serde_json::{Map, Value};

/// Maximum temperature; Anthropic's API allows up to 1.
const MAX_TEMPERATURE: f64 = 2.0;

/// A validated `/v1/messages` request.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagesRequest {
    /// The request in the form common to all chat endpoints.
    pub chat: ChatRequest,
}

impl MessagesRequest {
    /// Parses and validates a body.
    pub fn read(
        body: &Reader,
        defaults: &Sampling,
        vocab: u32,
        strip_billing_header: bool,
    ) -> Result<Self, ApiError> {
        no_threads(body)?;
        body.classify(MESSAGES)?;
        body.need("max_tokens")?;
        Self::checked(body, defaults, vocab, strip_billing_header)
    }

    /// Parses and validates the body of `/v1/messages/count_tokens`, which lacks all fields that
    /// shape the answer.
    pub fn read_for_count(
        body: &Reader,
        defaults: &Sampling,
        vocab: u32,
        strip_billing_header: bool,
    ) -> Result<Self, ApiError> {
        no_threads(body)?;
        body.classify(COUNT_TOKENS)?;
        Self::checked(body, defaults, vocab, strip_billing_header)
    }

    fn checked(
        body: &Reader,
        defaults: &Sampling,
        vocab: u32,
        strip_billing_header: bool,
    ) -> Result<Self, ApiError> {
        body.number("temperature", 0.0..=MAX_TEMPERATURE)?;
        let mut sampling = SamplingFields::read(body, defaults, vocab)?;
        // Claude Code reads the error in order to compact its conversation.
        sampling.length.overlong = Overlong::Refuse;
        sampling.stop = sampling::stops(body, "stop_sequences")?;
        let tools = messages_tools::all(body)?;
        let (tool_choice, parallel_tool_calls) = messages_tools::choice(body, &tools)?;
        let mut media = MediaParts::new(newest_user(body));
        let system = system(body, strip_billing_header, &mut media)?;
        let mut messages: Vec<Message> = system.into_iter().collect();
        let mut marks = CacheMarks::default();
        marks.add(body, "tools", messages.len())?;
        marks.add(body, "system", messages.len())?;
        let continues = conversation(body, &mut messages, &mut marks, &mut media)?;
        marks.add_own(body, messages.len())?;
        let cache_marks = marks.take();
        edit_context(body, &mut messages)?;
        let (mut template_kwargs, thinking) = thinking(body)?;
        let response_format = output_config(body, &mut template_kwargs)?;
        Ok(Self {
            chat: ChatRequest {
                model: Some(body.need_text("model")?.to_owned()),
                earlier: Vec::new(),
                messages,
                unread_media: media.unread(),
                sampling,
                tools,
                tool_choice,
                parallel_tool_calls,
                response_format,
                stream: body.flag("stream", false)?.then(StreamOptions::default),
                thinking,
                template_kwargs,
                add_generation_prompt: !continues,
                continue_final_message: continues,
                add_special_tokens: false,
                echo: false,
                chat_template: None,
                timings: false,
                verbose: false,
                cache_marks,
            },
        })
    }
}

/// Rejects Anthropic's threads: conversations are not stored under a thread id.
fn no_threads(body: &Reader) -> Result<(), ApiError> {
    match body.get("thread") {
        Some(_) => Err(ApiError::no_threads()),
        None => Ok(()),
    }
}

/// Maximum number of context edits.
const MAX_EDITS: usize = 16;

/// Applies `context_management`: clears reasoning of earlier turns as requested. Edits that clear
/// tool results are recorded as ignored: they only save tokens.
fn edit_context(body: &Reader, messages: &mut [Message]) -> Result<(), ApiError> {
    let Some(management) = body.object("context_management")? else { return Ok(()) };
    management.only(&["edits"])?;
    for (i, edit) in management.list("edits", MAX_EDITS)?.unwrap_or(&[]).iter().enumerate() {
        let edit = management.item("edits", i, edit)?;
        let kind = edit.need_text("type")?;
        if kind != CLEAR_THINKING {
            edit.ignore(kind);
            continue;
        }
        edit.only(&["type", "keep"])?;
        // The documented default: the last turn with reasoning keeps it.
        let turns = match edit.get("keep") {
            Some(Value::String(all)) if all == "all" => continue,
            None => 1,
            Some(Value::Object(_)) => {
                let keep = edit.need_object("keep")?;
                keep.only(&["type", "value"])?;
                keep.integer("value", 1..=i64::MAX)?.unwrap_or(1)
            }
            Some(_) => return Err(edit.error("keep", "must be all or an object with a number of turns")),
        };
        keep_thinking(messages, usize::try_from(turns).unwrap_or(usize::MAX));
    }
    Ok(())
}

/// The supported edit of `context_management`.
const CLEAR_THINKING: &str = "clear_thinking_20251015";

/// Clears reasoning of all but the last `turns` assistant messages that have any.
fn keep_thinking(messages: &mut [Message], turns: usize) {
    let thought = |message: &&mut Message| message.source.get("reasoning_content").is_some();
    for message in messages.iter_mut().rev().filter(thought).skip(turns) {
        if let Some(source) = message.source.as_object_mut() {
            source.shift_remove("reasoning_content");
        }
    }
}

/// Prefix of Claude Code's billing line. It comes first in the system prompt, in a block or line of
/// its own, and some versions change it with every request.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// The system prompt, unless it is empty. If it begins with the billing header, that block, or that line of a longer
/// block, is cut.
fn system(
    body: &Reader,
    strip_billing_header: bool,
    media: &mut MediaParts,
) -> Result<Option<Message>, ApiError> {
    let Some(text) = text_of(body, "system", &mut Place::Message(media))? else { return Ok(None) };
    let strip = strip_billing_header && text.starts_with(BILLING_HEADER);
    let text = if strip { text[billing_header_len(body, &text)..].to_owned() } else { text };
    Ok((!text.is_empty()).then(|| Message::text(Role::System, text)))
}

/// Length of the billing header in bytes.
fn billing_header_len(body: &Reader, text: &str) -> usize {
    let first = body.get("system").and_then(|system| system.get(0)?.get("text")?.as_str());
    let block = first.map_or(text.len(), str::len);
    text[..block].find('\n').map_or(block, |end| end + 1)
}

/// Parses `messages`; returns whether the last one is the assistant's, to be continued by the
/// answer.
fn conversation(
    body: &Reader,
    messages: &mut Vec<Message>,
    marks: &mut CacheMarks,
    media: &mut MediaParts,
) -> Result<bool, ApiError> {
    let items = body.list("messages", MAX_MESSAGES)?.ok_or_else(|| body.error("messages", "is missing"))?;
    if items.is_empty() {
        return Err(body.error("messages", "must not be empty"));
    }
    let mut calls = OpenCalls::default();
    for (i, item) in items.iter().enumerate() {
        media.enter(i);
        let reader = body.item("messages", i, item)?;
        reader.only(&["role", "content"])?;
        reader.need("content")?;
        match reader.text("role")? {
            Some("user") => user(&reader, &mut calls, messages, media)?,
            Some("assistant") => {
                calls.all_answered(body)?;
                messages.push(assistant(&reader, &mut calls, i, media)?);
            }
            Some("system") => {
                let text = text_of(&reader, "content", &mut Place::Message(media))?;
                messages.push(Message::text(Role::System, text.unwrap_or_default()));
            }
            _ => return Err(reader.error("role", "must be user, assistant or system")),
        }
        marks.add(&reader, "content", messages.len())?;
    }
    calls.all_answered(body)?;
    Ok(messages.last().is_some_and(|last| last.role == Role::Assistant))
}

/// Pending tool calls of the last assistant message, and the budget of all.
#[derive(Default)]
struct OpenCalls {
    ids: Vec<String>,
    /// Index of that message.
    message: usize,
    /// Memory of all arguments of the request that are parsed from text.
    budget: ParseBudget,
}

impl OpenCalls {
    fn all_answered(&self, body: &Reader) -> Result<(), ApiError> {
        let Some(id) = self.ids.first() else { return Ok(()) };
        let path = format!("messages[{}].content", self.message);
        Err(body
            .error(&path, format!("has the call `{id}`, which no `tool_result` of the next message answers")))
    }
}

fn user(
    reader: &Reader,
    calls: &mut OpenCalls,
    messages: &mut Vec<Message>,
    media: &mut MediaParts,
) -> Result<(), ApiError> {
    if let Some(text) = reader.get("content").and_then(Value::as_str) {
        messages.push(Message::text(Role::User, text.to_owned()));
        return Ok(());
    }
    let blocks = blocks(reader, "content")?;
    if blocks.is_empty() {
        return Err(reader.error("content", "must not be empty"));
    }
    let mut user_text: Option<String> = None;
    for block in blocks {
        match block.text("type")? {
            Some("tool_result") => {
                let id = block.need_text("tool_use_id")?;
                let Some(at) = calls.ids.iter().position(|call| call == id) else {
                    return Err(block.error("tool_use_id", "answers no open call of the message before"));
                };
                calls.ids.remove(at);
                // Templates have no place for the error flag; the result's text conveys it.
                block.flag("is_error", false)?;
                messages.extend(user_text.take().map(|text| Message::text(Role::User, text)));
                let text = text_of(&block, "content", &mut Place::Result)?;
                messages.push(Message::result(id, text.unwrap_or_default()));
            }
            Some("text") => user_text.get_or_insert_default().push_str(block.need_text("text")?),
            Some("image") => {
                user_text.get_or_insert_default().push_str(&media.replace(&block, Some("image"))?)
            }
            Some("document") => {
                let text = document(&block, &mut Place::Message(media))?;
                user_text.get_or_insert_default().push_str(&text);
            }
            Some("search_result") => user_text.get_or_insert_default().push_str(&search_result(&block)?),
            _ => return Err(block.error("type", "must be text or tool_result in a message of the user")),
        }
    }
    messages.extend(user_text.map(|text| Message::text(Role::User, text)));
    Ok(())
}

/// An assistant message. An empty answer comes back as a message without blocks.
fn assistant(
    reader: &Reader,
    calls: &mut OpenCalls,
    message: usize,
    media: &mut MediaParts,
) -> Result<Message, ApiError> {
    if let Some(text) = reader.get("content").and_then(Value::as_str) {
        return Ok(Message::text(Role::Assistant, text.to_owned()));
    }
    let mut turn = AssistantTurn::default();
    calls.message = message;
    for block in blocks(reader, "content")? {
        match block.text("type")? {
            Some("text") => turn.push_text(block.need_text("text")?),
            Some("thinking") => turn.push_reasoning(block.need_text("thinking")?),
            // Encrypted; only its provider can read it.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let (id, name) = (block.need_text("id")?, block.need_text("name")?);
                let input = match block.need("input")? {
                    Value::String(text) => calls.budget.arguments(text),
                    object @ Value::Object(_) => object.clone(),
                    other => other.to_string().into(),
                };
                turn.push_call(id, name, input);
                calls.ids.push(id.to_owned());
            }
            Some(kind @ ("image" | "document")) => turn.push_text(&media.replace(&block, Some(kind))?),
            _ => return Err(block.error("type", "is not allowed in a message of the assistant")),
        }
    }
    Ok(turn.take().unwrap_or_else(|| Message::text(Role::Assistant, String::new())))
}

/// `thinking`: template variables and the reasoning budget.
fn thinking(body: &Reader) -> Result<(Map<String, Value>, Option<ThinkingBudget>), ApiError> {
    let Some(thinking) = body.object("thinking")? else { return Ok((Map::new(), None)) };
    thinking.only(&["type", "budget_tokens", "display"])?;
    let mut budget = None;
    let enabled = match thinking.text("type")? {
        Some("enabled") => {
            let max = body.integer("max_tokens", 1..=i64::MAX)?.unwrap_or(length::MAX_TOKENS);
            let max = max.saturating_sub(1).clamp(1, length::MAX_TOKENS);
            thinking.need("budget_tokens")?;
            let tokens = thinking.integer("budget_tokens", 1..=max)?;
            budget = tokens.map(|n| ThinkingBudget { tokens: n as u32, param: "thinking.budget_tokens" });
            true
        }
        Some("adaptive") => true,
        Some("disabled") => false,
        _ => return Err(thinking.error("type", "must be enabled, adaptive or disabled")),
    };
    Ok((Map::from_iter([("enable_thinking".to_owned(), enabled.into())]), budget))
}

/// `output_config`, and the older `output_format`: response format, and reasoning effort for templates that support it.
fn output_config(body: &Reader, kwargs: &mut Map<String, Value>) -> Result<Option<ResponseFormat>, ApiError> {
    let mut format = body.object("output_format")?;
    if let Some(config) = body.object("output_config")? {
        config.only(&["format", "effort"])?;
        // Whether to reason at all is decided by `thinking`.
        effort_word(&config, "effort", &["low", "medium", "high", "xhigh", "max"], kwargs)?;
        format = config.object("format")?.or(format);
    }
    let Some(format) = format else { return Ok(None) };
    format.only(&["type", "schema"])?;
    match format.text("type")? {
        Some("json_schema") => read_schema_format(&format).map(Some),
        _ => Err(format.error("type", "must be json_schema")),
    }
}
