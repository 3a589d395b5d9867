//! Parses OpenAI `/v1/responses` requests into a `ChatRequest`.
//!
//! Consecutive reasoning, message and call items of the assistant form one assistant message.
//! The items of an earlier response (`previous_response_id`) are put in front of `input` before.

#[cfg(test)]
mod tests;

use crate::error::ApiError;
use crate::request::body::ParseBudget;
use crate::request::chat::{self, ChatRequest, StreamOptions};
use crate::request::conversation::TEXT_PART;
use crate::request::fields::RESPONSES;
use crate::request::length::{self, Overlong};
use crate::request::media::{MediaParts, UnreadMedia};
use crate::request::reader::Reader;
use crate::request::response_format::{read_json_object_format, read_schema_format};
use crate::request::responses_tools;
use crate::request::sampling::{self, SamplingFields};
use crate::request::tools::{custom_arguments, read_allowed_tools, read_named_tool, read_tool_choice};
use kvasir_chat::{AssistantTurn, Message, ResponseFormat, Role, Tool, ToolChoice};
use kvasir_sample::Sampling;
use serde_json::{Map, Value, json};

/// Maximum items of `input`, and parts per item.
pub(super) const MAX_ITEMS: usize = 4096;

// OpenAI's limits of `metadata`, which is stored with the response.
const MAX_METADATA: usize = 16;
const MAX_METADATA_KEY: usize = 64;
const MAX_METADATA_VALUE: usize = 512;

/// A validated `/v1/responses` request.
#[derive(Clone, Debug, PartialEq)]
pub struct ResponsesRequest {
    /// The request in the form common to all chat endpoints.
    pub chat: ChatRequest,
    /// Whether the response is stored.
    pub store: bool,
    /// Drop the oldest messages of a conversation that exceeds the context (`truncation: auto`).
    pub truncate: bool,
    /// Whether the response is generated even if the client leaves.
    pub background: bool,
    /// Id of the conversation that the response continues and is appended to.
    pub conversation: Option<String>,
    /// Name of the session that the response continues and is appended to.
    pub session: Option<String>,
}

impl ResponsesRequest {
    /// Parses and validates a body.
    pub fn read(body: &Reader, defaults: &Sampling, vocab: u32) -> Result<Self, ApiError> {
        Self::read_after(&[], body, defaults, vocab)
    }

    /// Parses a body whose `input` continues the `earlier` messages of its session.
    pub(crate) fn read_after(
        earlier: &[Value],
        body: &Reader,
        defaults: &Sampling,
        vocab: u32,
    ) -> Result<Self, ApiError> {
        if matches!(body.get("input"), Some(Value::Array(items)) if items.is_empty()) {
            return Err(body.error("input", "must not be empty"));
        }
        Self::parse(earlier, body, defaults, vocab)
    }

    /// Parses and validates a warm-up: its prompt is prefilled, and no token is generated. It has
    /// no generation prompt, so it is a prefix of later prompts. `input` may be empty.
    pub(crate) fn read_warm_up(
        earlier: &[Value],
        body: &Reader,
        defaults: &Sampling,
        vocab: u32,
    ) -> Result<Self, ApiError> {
        let mut request = Self::parse(earlier, body, defaults, vocab)?;
        if request.conversation.is_some() {
            return Err(body.error("conversation", "cannot be combined with `generate: false`"));
        }
        request.chat.add_generation_prompt = false;
        request.chat.sampling.length.max_tokens = Some(0);
        Ok(request)
    }

    fn parse(earlier: &[Value], body: &Reader, defaults: &Sampling, vocab: u32) -> Result<Self, ApiError> {
        body.classify(RESPONSES)?;
        let store = body.flag("store", true)?;
        let background = body.flag("background", false)?;
        if background && !store {
            return Err(body.error("background", "needs `store`"));
        }
        let conversation = conversation_id(body)?;
        let session = session(body)?;
        // Only checked here: they are echoed in the response.
        check_metadata(body)?;
        for name in ["user", "safety_identifier", "prompt_cache_key", "previous_response_id"] {
            body.text(name)?;
        }
        let truncate = match body.text("truncation")? {
            None | Some("disabled") => false,
            Some("auto") => true,
            Some(_) => return Err(body.error("truncation", "must be auto or disabled")),
        };
        let mut sampling = SamplingFields::read(body, defaults, vocab)?;
        sampling.length.max_tokens = length::max_tokens(body, "max_output_tokens")?;
        sampling.length.field = "max_output_tokens";
        if truncate {
            sampling.length.overlong = Overlong::Reserve;
        }
        let logprobs = wants_logprobs(body)?;
        let top = sampling::top_logprobs(body)?;
        sampling.sampling.logprobs = (logprobs || top.is_some_and(|top| top > 0)).then_some(top.unwrap_or(0));
        let mut tools = responses_tools::all(body)?;
        let tool_choice = tool_choice(body, &mut tools)?;
        let mut messages = chat::session_messages(body, earlier)?;
        messages.extend(body.text("instructions")?.map(|text| Message::text(Role::System, text.to_owned())));
        let unread_media = input(body, earlier, &mut messages)?;
        let continue_final_message = body.flag("continue_final_message", false)?;
        let last = messages.last().map(|message| message.role);
        if continue_final_message && last != Some(Role::Assistant) {
            return Err(
                body.error("continue_final_message", "requires an assistant message as the last item")
            );
        }
        let chat = ChatRequest {
            model: body.text("model")?.map(str::to_owned),
            earlier: Vec::new(),
            messages,
            unread_media,
            tool_choice,
            tools,
            parallel_tool_calls: body.flag("parallel_tool_calls", true)?,
            response_format: format(body)?,
            thinking: None,
            stream: stream(body)?,
            template_kwargs: template_kwargs(body)?,
            add_generation_prompt: !continue_final_message,
            continue_final_message,
            add_special_tokens: false,
            echo: false,
            chat_template: None,
            timings: body.flag("timings_per_token", false)?,
            verbose: false,
            cache_marks: Vec::new(),
            sampling,
        };
        Ok(Self { chat, store, truncate, background, conversation, session })
    }

    /// The messages after the first `skip`, in the format of `/v1/chat/completions`.
    pub(crate) fn chat_messages(&self, skip: usize) -> impl Iterator<Item = Value> {
        self.chat.messages.iter().skip(skip).map(|message| {
            let mut source = message.source.clone();
            for call in source.get_mut("tool_calls").and_then(Value::as_array_mut).into_iter().flatten() {
                let arguments = &mut call["function"]["arguments"];
                if !arguments.is_string() {
                    *arguments = arguments.to_string().into();
                }
            }
            source
        })
    }
}

/// The name in `session`. Rejects fields that name another conversation, or that would make the
/// prompt differ from the session.
fn session(body: &Reader) -> Result<Option<String>, ApiError> {
    let Some(name) = body.text("session")? else { return Ok(None) };
    for field in ["conversation", "previous_response_id", "instructions"] {
        if body.get(field).is_some() {
            return Err(body.error("session", format!("cannot be combined with `{field}`")));
        }
    }
    // Truncation would drop messages from the prompt but not from the session.
    if body.text("truncation")? == Some("auto") {
        return Err(body.error("session", "cannot be combined with `truncation: auto`"));
    }
    Ok(Some(name.to_owned()))
}

/// The id in `conversation`: a string, or the `id` of an object.
pub(crate) fn conversation_id(body: &Reader) -> Result<Option<String>, ApiError> {
    let id = match body.get("conversation") {
        None => return Ok(None),
        Some(Value::Object(map)) => {
            let object = body.at(map, "conversation");
            object.only(&["id"])?;
            object.need_text("id")?
        }
        Some(_) => body.need_text("conversation")?,
    };
    if body.get("previous_response_id").is_some() {
        return Err(body.error("conversation", "does not go with `previous_response_id`"));
    }
    Ok(Some(id.to_owned()))
}

/// Prefix of the `encrypted_content` of this server's compaction items.
const SUMMARY_PREFIX: &str = "kvasir:summary:";

/// The `encrypted_content` of a compaction item: the summary in plain text.
pub(crate) fn compaction_content(summary: &str) -> String {
    format!("{SUMMARY_PREFIX}{summary}")
}

/// The message for a compaction item of this server; `None` for other servers' items, which are
/// encrypted.
fn summary_message(item: &Reader) -> Result<Option<Message>, ApiError> {
    let content = item.text("encrypted_content")?.and_then(|content| content.strip_prefix(SUMMARY_PREFIX));
    let text = |summary| format!("Summary of the conversation so far:\n\n{summary}");
    Ok(content.map(|summary| Message::text(Role::User, text(summary))))
}

/// Checks `metadata`: texts within OpenAI's limits. Lengths are in characters.
pub(crate) fn check_metadata(body: &Reader) -> Result<(), ApiError> {
    let Some(metadata) = body.object("metadata")? else { return Ok(()) };
    let entries = metadata.fields();
    if entries.len() > MAX_METADATA {
        let why = format!("may have at most {MAX_METADATA} keys, not {}", entries.len());
        return Err(body.error("metadata", why));
    }
    for key in entries.keys() {
        let length = key.chars().count();
        if length > MAX_METADATA_KEY {
            let why = format!("may have keys of at most {MAX_METADATA_KEY} characters, not {length}");
            return Err(body.error("metadata", why));
        }
        let text = metadata.text(key)?.ok_or_else(|| metadata.error(key, "must be a text"))?;
        let length = text.chars().count();
        if length > MAX_METADATA_VALUE {
            let why = format!("may have at most {MAX_METADATA_VALUE} characters, not {length}");
            return Err(metadata.error(key, why));
        }
    }
    Ok(())
}

fn stream(body: &Reader) -> Result<Option<StreamOptions>, ApiError> {
    if let Some(options) = body.object("stream_options")? {
        options.only(&["include_obfuscation"])?;
        chat::ignore_obfuscation(&options)?;
    }
    Ok(body.flag("stream", false)?.then(StreamOptions::default))
}

fn template_kwargs(body: &Reader) -> Result<Map<String, Value>, ApiError> {
    let mut kwargs = chat::template_kwargs(body)?;
    if let Some(reasoning) = body.object("reasoning")? {
        reasoning.only(&["effort", "summary", "generate_summary"])?;
        chat::effort(&reasoning, "effort", &mut kwargs)?;
        for field in ["summary", "generate_summary"] {
            match reasoning.text(field)? {
                None | Some("auto") => {}
                // Reasoning is returned in full.
                Some("concise" | "detailed") => reasoning.ignore(field),
                Some(_) => return Err(reasoning.error(field, "must be auto, concise or detailed")),
            }
        }
    }
    Ok(kwargs)
}

/// Values of `include` that add output of hosted tools or images; answers contain neither.
const OF_HOSTED_TOOLS: &[&str] = &[
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
];

fn wants_logprobs(body: &Reader) -> Result<bool, ApiError> {
    let mut wanted = false;
    for item in body.list("include", 16)?.unwrap_or(&[]) {
        match item.as_str() {
            Some("message.output_text.logprobs") => wanted = true,
            // Accepted: reasoning is returned in plain text, never encrypted.
            Some("reasoning.encrypted_content") => {}
            Some(hosted) if OF_HOSTED_TOOLS.contains(&hosted) => body.ignore(&format!("include.{hosted}")),
            _ => {
                return Err(body.error("include", "may hold the documented names of additional output only"));
            }
        }
    }
    Ok(wanted)
}

/// Parses `input`, which may be missing if there are `earlier` messages of a session. Returns the
/// media in the newest message of the user.
fn input(
    body: &Reader,
    earlier: &[Value],
    messages: &mut Vec<Message>,
) -> Result<Option<UnreadMedia>, ApiError> {
    if !earlier.is_empty() && body.get("input").is_none() {
        return Ok(None);
    }
    if let Some(text) = body.need("input")?.as_str() {
        messages.push(Message::text(Role::User, text.to_owned()));
        return Ok(None);
    }
    if !body.need("input")?.is_array() {
        return Err(body.error("input", "must be a text or a list of items"));
    }
    let items = body.list("input", MAX_ITEMS)?.unwrap_or(&[]);
    // Templates take the items of one assistant turn as one message.
    let mut turn = AssistantTurn::default();
    let calls = earlier.iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let mut calls: Vec<&str> = calls.filter_map(|call| call["id"].as_str()).collect();
    let budget = ParseBudget::default();
    let mut media = MediaParts::new(items.iter().rposition(|item| item["role"] == "user"));
    for (i, item) in items.iter().enumerate() {
        media.enter(i);
        let item = body.item("input", i, item)?;
        match item.text("type")? {
            None | Some("message") => message(&item, &mut turn, messages, &mut media)?,
            Some("reasoning") => {
                item.only(&["type", "id", "summary", "content", "encrypted_content", "status"])?;
                let text = text_of(&item, "content", &["reasoning_text", "refusal"], &mut media)?;
                turn.push_reasoning(&text.unwrap_or_default());
            }
            Some("function_call") => {
                item.only(&["type", "id", "call_id", "name", "namespace", "arguments", "status"])?;
                let id = item.need_text("call_id")?;
                let arguments = budget.arguments(item.need_text("arguments")?);
                let name = item.need_text("name")?;
                let flat =
                    item.text("namespace")?.map(|namespace| responses_tools::flat_name(namespace, name));
                turn.push_call(id, flat.as_deref().unwrap_or(name), arguments);
                calls.push(id);
            }
            Some("custom_tool_call") => {
                item.only(&["type", "id", "call_id", "name", "namespace", "input", "status"])?;
                let (id, name) = (item.need_text("call_id")?, item.need_text("name")?);
                let flat =
                    item.text("namespace")?.map(|namespace| responses_tools::flat_name(namespace, name));
                turn.push_call(
                    id,
                    flat.as_deref().unwrap_or(name),
                    custom_arguments(item.need_text("input")?),
                );
                calls.push(id);
            }
            Some("local_shell_call") => {
                item.only(&["type", "id", "call_id", "action", "status"])?;
                let id = item.text("call_id")?.map_or_else(|| item.need_text("id"), Ok)?;
                turn.push_call(id, "local_shell", item.get("action").cloned().unwrap_or_else(|| json!({})));
                calls.push(id);
            }
            Some("function_call_output" | "custom_tool_call_output" | "local_shell_call_output") => {
                item.only(&["type", "id", "call_id", "output", "status"])?;
                let id = item.text("call_id")?.map_or_else(|| item.need_text("id"), Ok)?;
                if !calls.contains(&id) {
                    return Err(item.error("call_id", "answers no call of an earlier item"));
                }
                let output = text_of(&item, "output", &["input_text", "output_text", "text"], &mut media)?;
                let output = output.ok_or_else(|| item.error("output", "is missing"))?;
                messages.extend(turn.take());
                messages.push(Message::result(id, output));
            }
            Some("item_reference") => {
                return Err(ApiError::unsupported(
                    item.name("type"),
                    "items cannot be referenced; send the item",
                ));
            }
            Some(responses_tools::ADDITIONAL_TOOLS) => {
                item.only(&["type", "id", "role", "tools", "status"])?
            }
            Some("compaction" | "compaction_summary") => match summary_message(&item)? {
                Some(summary) => messages.extend(turn.take().into_iter().chain([summary])),
                None => item.ignore("compaction"),
            },
            // Calls of hosted tools carry nothing for a model.
            Some(hosted) if hosted.ends_with("_call") => item.ignore(hosted),
            // Items of a later API version are recorded or rejected as unknown.
            Some(unknown) => item.unknown(unknown)?,
        }
    }
    messages.extend(turn.take());
    if messages.is_empty() {
        return Err(body.error("input", "must contain a message"));
    }
    Ok(media.unread())
}

fn message(
    item: &Reader,
    turn: &mut AssistantTurn,
    messages: &mut Vec<Message>,
    media: &mut MediaParts,
) -> Result<(), ApiError> {
    item.only(&["type", "id", "role", "content", "status", "phase"])?;
    let role = match item.text("role")? {
        Some("user") => Role::User,
        Some("system" | "developer") => Role::System,
        Some("assistant") => Role::Assistant,
        _ => return Err(item.error("role", "must be user, assistant, system or developer")),
    };
    let text = text_of(item, "content", &["input_text", "output_text", "text", "refusal"], media)?;
    let text = text.ok_or_else(|| item.error("content", "is missing"))?;
    if role != Role::Assistant && item.get("content").is_some_and(|content| *content == json!([])) {
        return Err(item.error("content", "must not be empty"));
    }
    match role {
        Role::Assistant => turn.push_text(&text),
        role => {
            messages.extend(turn.take());
            messages.push(Message::text(role, text));
        }
    }
    Ok(())
}

/// A string, or the concatenation of parts of these types.
fn text_of(
    item: &Reader,
    field: &str,
    types: &[&str],
    media: &mut MediaParts,
) -> Result<Option<String>, ApiError> {
    if let Some(Value::String(text)) = item.get(field) {
        return Ok(Some(text.clone()));
    }
    let Some(parts) = item.list(field, MAX_ITEMS)? else { return Ok(None) };
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let part = item.item(field, i, part)?;
        match part.text("type")? {
            Some("refusal") if types.contains(&"refusal") => {
                part.only(&["type", "refusal"])?;
                text.push_str(part.need_text("refusal")?);
            }
            Some(kind) if types.contains(&kind) => {
                part.only(TEXT_PART)?;
                text.push_str(part.need_text("text")?);
            }
            kind => text.push_str(&media.replace(&part, kind)?),
        }
    }
    Ok(Some(text))
}

/// Parses `tool_choice`; `allowed_tools` leaves only these in `tools`.
fn tool_choice(body: &Reader, tools: &mut Vec<Tool>) -> Result<ToolChoice, ApiError> {
    match body.get("tool_choice") {
        Some(Value::Object(map)) => {
            let choice = body.at(map, "tool_choice");
            match choice.text("type")? {
                Some("allowed_tools") => {
                    choice.only(&["type", "mode", "tools"])?;
                    return read_allowed_tools(&choice, tools, |item| {
                        item.only(&["type", "name"])?;
                        Ok(item)
                    });
                }
                Some("function" | "custom") => choice.only(&["type", "name"])?,
                _ => return Err(choice.error("type", "must be function, custom or allowed_tools")),
            }
            read_named_tool(&choice, tools)
        }
        _ => read_tool_choice(body, tools),
    }
}

fn format(body: &Reader) -> Result<Option<ResponseFormat>, ApiError> {
    let Some(text) = body.object("text")? else { return Ok(None) };
    text.only(&["format", "verbosity"])?;
    // Echoed in the response, and no more: a hint to models that are trained for it.
    if !matches!(text.text("verbosity")?, None | Some("low" | "medium" | "high")) {
        return Err(text.error("verbosity", "must be low, medium or high"));
    }
    let Some(format) = text.object("format")? else { return Ok(None) };
    format.only(&["type", "name", "description", "schema", "strict"])?;
    match format.text("type")? {
        Some("text") => Ok(None),
        Some("json_object") => read_json_object_format(&format).map(Some),
        Some("json_schema") => read_schema_format(&format).map(Some),
        _ => Err(format.error("type", "must be text, json_object or json_schema")),
    }
}
