use super::{
    AskedForm, COUNT_TOKENS, ChatRequest, MESSAGES, Message, Reader, Role, SamplingFields, StreamOptions,
    ThinkingBudget, Tool, ToolChoice, chat::effort_word, json::Budget, message::AssistantTurn,
    message::no_text, sampling,
};
use crate::ApiError;
use kvasir_sample::Sampling;
use serde_json::{Map, Value};

/// Most messages in one request, and most blocks in one message.
const MAX_MESSAGES: usize = 4096;

/// A checked `/v1/messages` request.
#[derive(Clone, Debug, PartialEq)]
pub struct MessagesRequest {
    /// The conversation, as any endpoint's.
    pub chat: ChatRequest,
}

impl MessagesRequest {
    /// Reads and checks a body.
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

    /// Reads and checks the body of `/v1/messages/count_tokens`, which is one without all that shapes the answer.
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
        let mut sampling = SamplingFields::read(body, defaults, vocab)?;
        sampling.stop = sampling::stops(body, "stop_sequences")?;
        let tools = tools(body)?;
        let tools = loaded(body, tools);
        let (tool_choice, parallel_tool_calls) = tool_choice(body, &tools)?;
        let mut messages: Vec<Message> = system(body, strip_billing_header)?.into_iter().collect();
        let goes_on = conversation(body, &mut messages)?;
        edit_context(body, &mut messages)?;
        let (mut template_kwargs, thinking) = thinking(body)?;
        let form = output_config(body, &mut template_kwargs)?;
        Ok(Self {
            chat: ChatRequest {
                model: Some(body.text("model")?.ok_or_else(|| body.error("model", "is missing"))?.to_owned()),
                messages,
                sampling,
                tools,
                tool_choice,
                parallel_tool_calls,
                form,
                stream: body.flag("stream", false)?.then(StreamOptions::default),
                thinking,
                template_kwargs,
                add_generation_prompt: !goes_on,
                continue_final_message: goes_on,
            },
        })
    }
}

/// Conversations are not kept under a thread's id.
fn no_threads(body: &Reader) -> Result<(), ApiError> {
    match body.get("thread") {
        Some(_) => Err(ApiError::no_threads()),
        None => Ok(()),
    }
}

/// Most edits in one request.
const MAX_EDITS: usize = 16;

/// Applies `context_management`: thinking of earlier turns is cleared as asked for. Edits that clear results of tools are
/// recorded as ignored; they save tokens, and what they would remove is still right.
fn edit_context(body: &Reader, messages: &mut [Message]) -> Result<(), ApiError> {
    let Some(management) = body.object("context_management")? else { return Ok(()) };
    management.only(&["edits"])?;
    for (i, edit) in management.list("edits", MAX_EDITS)?.unwrap_or(&[]).iter().enumerate() {
        let path = format!("edits[{i}]");
        let map = edit.as_object().ok_or_else(|| management.error(&path, "must be an object"))?;
        let edit = management.at(map, management.name(&path));
        let kind = needed(&edit, "type")?;
        if kind != CLEAR_THINKING {
            edit.ignore(kind);
            continue;
        }
        edit.only(&["type", "keep"])?;
        // As documented for requests that do not say: the last turn that thought keeps its thoughts.
        let turns = match edit.get("keep") {
            Some(Value::String(all)) if all == "all" => continue,
            None => 1,
            Some(Value::Object(_)) => {
                let keep = edit.object("keep")?;
                let turns = keep.map(|keep| keep.integer("value", 1..=i64::MAX)).transpose()?.flatten();
                turns.unwrap_or(1)
            }
            Some(_) => return Err(edit.error("keep", "must be all or an object with a number of turns")),
        };
        keep_thinking(messages, usize::try_from(turns).unwrap_or(usize::MAX));
    }
    Ok(())
}

/// The edit of `context_management` that is applied.
const CLEAR_THINKING: &str = "clear_thinking_20251015";

/// Clears the thinking of all but the last `turns` messages of the assistant that have any.
fn keep_thinking(messages: &mut [Message], turns: usize) {
    let thought = |message: &&mut Message| message.source.get("reasoning_content").is_some();
    for message in messages.iter_mut().rev().filter(thought).skip(turns) {
        if let Some(source) = message.source.as_object_mut() {
            source.shift_remove("reasoning_content");
        }
    }
}

/// A text, or a list of text blocks put together.
fn text_of(reader: &Reader, field: &str) -> Result<Option<String>, ApiError> {
    match reader.get(field) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => {
            let mut text = String::new();
            for block in blocks(reader, field)? {
                match block.text("type")? {
                    Some("text") => text.push_str(needed(&block, "text")?),
                    kind => return Err(no_text(&block, kind)),
                }
            }
            Ok(Some(text))
        }
    }
}

/// The result of a call as a text. A tool may have returned an image, which is replaced by a note: the conversation goes on.
fn result_text(reader: &Reader) -> Result<String, ApiError> {
    match reader.get("content") {
        None => Ok(String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => {
            let mut text = String::new();
            for block in blocks(reader, "content")? {
                match block.text("type")? {
                    Some("text") => text.push_str(needed(&block, "text")?),
                    Some("tool_reference") => text.push_str(needed(&block, "tool_name")?),
                    Some(kind @ ("image" | "document" | "search_result")) => {
                        block.ignore(kind);
                        text.push_str(&format!("[{kind} left out]"));
                    }
                    kind => return Err(no_text(&block, kind)),
                }
            }
            Ok(text)
        }
    }
}

fn blocks<'a>(reader: &Reader<'a>, field: &str) -> Result<Vec<Reader<'a>>, ApiError> {
    let items = reader.list(field, MAX_MESSAGES)?.unwrap_or(&[]).iter().enumerate();
    let block = |(i, item): (usize, &'a Value)| {
        let path = format!("{field}[{i}]");
        let map = item.as_object().ok_or_else(|| reader.error(&path, "must be an object"))?;
        let block = reader.at(map, reader.name(&path));
        let own: &[&str] = match block.text("type")? {
            Some("text") => &["text"],
            Some("thinking") => &["thinking", "signature"],
            Some("redacted_thinking") => &["data"],
            Some("tool_use") => &["id", "name", "input", "caller"],
            Some("tool_result") => &["tool_use_id", "content", "is_error"],
            Some("tool_reference") => &["tool_name"],
            // Only in results, where a note takes its place.
            Some("image" | "document" | "search_result") => return Ok(block),
            kind => return Err(no_text(&block, kind)),
        };
        // Marks for the provider's cache and its quotations change nothing about what is said.
        block.only(&[own, &["type", "cache_control", "citations"]].concat())?;
        Ok(block)
    };
    items.map(block).collect()
}

fn needed<'a>(reader: &Reader<'a>, field: &str) -> Result<&'a str, ApiError> {
    reader.text(field)?.ok_or_else(|| reader.error(field, "is missing"))
}

/// How the line with which Claude Code tells its provider whom to bill begins. It stands first in the system prompt, in a
/// block or line of its own, and some versions change it with every request.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// The system prompt. The rule for the billing header: where the whole text begins with it, the text up to the end of that
/// block, or of that line where the block has more, is cut out.
fn system(body: &Reader, strip_billing_header: bool) -> Result<Option<Message>, ApiError> {
    let Some(text) = text_of(body, "system")? else { return Ok(None) };
    let strip = strip_billing_header && text.starts_with(BILLING_HEADER);
    let text = if strip { text[billing_header_len(body, &text)..].to_owned() } else { text };
    Ok((!strip || !text.is_empty()).then(|| Message::said(Role::System, text)))
}

/// Bytes of a system prompt that its billing header takes.
fn billing_header_len(body: &Reader, text: &str) -> usize {
    let first = body.get("system").and_then(|system| system.get(0)?.get("text")?.as_str());
    let block = first.map_or(text.len(), str::len);
    text[..block].find('\n').map_or(block, |end| end + 1)
}

/// Reads `messages`; true if the last is the assistant's, whose words the answer then goes on with.
fn conversation(body: &Reader, messages: &mut Vec<Message>) -> Result<bool, ApiError> {
    let items = body.list("messages", MAX_MESSAGES)?.ok_or_else(|| body.error("messages", "is missing"))?;
    if items.is_empty() {
        return Err(body.error("messages", "must not be empty"));
    }
    let mut calls = Calls::default();
    for (i, item) in items.iter().enumerate() {
        let path = format!("messages[{i}]");
        let map = item.as_object().ok_or_else(|| body.error(&path, "must be an object"))?;
        let reader = body.at(map, path);
        reader.only(&["role", "content"])?;
        reader.need("content")?;
        match reader.text("role")? {
            Some("user") => user(&reader, &mut calls, messages)?,
            Some("assistant") => {
                calls.all_answered(body)?;
                messages.push(assistant(&reader, &mut calls, i)?);
            }
            Some("system") => {
                let text = text_of(&reader, "content")?.unwrap_or_default();
                messages.push(Message::said(Role::System, text));
            }
            _ => return Err(reader.error("role", "must be user, assistant or system")),
        }
    }
    calls.all_answered(body)?;
    Ok(messages.last().is_some_and(|last| last.role == Role::Assistant))
}

/// Calls of the assistant's last message that wait for their results.
#[derive(Default)]
struct Calls {
    ids: Vec<String>,
    /// Number of that message.
    message: usize,
}

impl Calls {
    fn all_answered(&self, body: &Reader) -> Result<(), ApiError> {
        let Some(id) = self.ids.first() else { return Ok(()) };
        let path = format!("messages[{}].content", self.message);
        Err(body
            .error(&path, format!("has the call `{id}`, which no `tool_result` of the next message answers")))
    }
}

fn user(reader: &Reader, calls: &mut Calls, messages: &mut Vec<Message>) -> Result<(), ApiError> {
    if let Some(text) = reader.get("content").and_then(Value::as_str) {
        messages.push(Message::said(Role::User, text.to_owned()));
        return Ok(());
    }
    let blocks = blocks(reader, "content")?;
    if blocks.is_empty() {
        return Err(reader.error("content", "must not be empty"));
    }
    let mut said: Option<String> = None;
    for block in blocks {
        match block.text("type")? {
            Some("tool_result") => {
                let id = needed(&block, "tool_use_id")?;
                let Some(at) = calls.ids.iter().position(|call| call == id) else {
                    return Err(block.error("tool_use_id", "answers no open call of the message before"));
                };
                calls.ids.remove(at);
                // A failed call's text says so itself; templates have no place for the flag.
                block.flag("is_error", false)?;
                messages.extend(said.take().map(|text| Message::said(Role::User, text)));
                messages.push(Message::result(id, result_text(&block)?));
            }
            Some("text") => said.get_or_insert_default().push_str(needed(&block, "text")?),
            // Claude Code takes these blocks out of its conversation by itself when it reads these words.
            Some("image") => {
                return Err(block.error("type", "is `image`: could not process image, the engine reads text"));
            }
            Some("document") => {
                return Err(block
                    .error("type", "is `document`: the engine reads text and does not support PDF input"));
            }
            kind @ Some("search_result") => return Err(no_text(&block, kind)),
            _ => return Err(block.error("type", "must be text or tool_result in a message of the user")),
        }
    }
    messages.extend(said.map(|text| Message::said(Role::User, text)));
    Ok(())
}

/// What the assistant said; an answer of no token comes back as a message of no block.
fn assistant(reader: &Reader, calls: &mut Calls, message: usize) -> Result<Message, ApiError> {
    if let Some(text) = reader.get("content").and_then(Value::as_str) {
        return Ok(Message::said(Role::Assistant, text.to_owned()));
    }
    let mut turn = AssistantTurn::default();
    calls.message = message;
    for block in blocks(reader, "content")? {
        match block.text("type")? {
            Some("text") => turn.say(needed(&block, "text")?),
            Some("thinking") => turn.think(needed(&block, "thinking")?),
            // Only its maker can read it.
            Some("redacted_thinking") => {}
            Some("tool_use") => {
                let (id, name) = (needed(&block, "id")?, needed(&block, "name")?);
                let input = match block.need("input")? {
                    Value::String(text) => Budget::default().arguments(text),
                    object @ Value::Object(_) => object.clone(),
                    other => other.to_string().into(),
                };
                turn.call(id, name, input);
                calls.ids.push(id.to_owned());
            }
            _ => return Err(block.error("type", "must not stand in a message of the assistant")),
        }
    }
    Ok(turn.take().unwrap_or_else(|| Message::said(Role::Assistant, String::new())))
}

fn tools(body: &Reader) -> Result<Vec<Tool>, ApiError> {
    Tool::all(body, "name", |tool| {
        if !matches!(tool.text("type")?, None | Some("custom")) {
            return Err(tool.error("type", "must be `custom`; the engine has no tools of its own"));
        }
        // Arguments are always streamed as they are made.
        tool.only(&[
            "type",
            "name",
            "description",
            "input_schema",
            "cache_control",
            "strict",
            "eager_input_streaming",
            "defer_loading",
        ])?;
        tool.need("input_schema")?;
        Ok(vec![Tool::of(tool, "input_schema")?])
    })
}

/// The tools without those whose loading is deferred until a result of a tool search refers to them.
fn loaded(body: &Reader, mut tools: Vec<Tool>) -> Vec<Tool> {
    fn list(value: Option<&Value>) -> std::slice::Iter<'_, Value> {
        value.and_then(Value::as_array).map_or(&[][..], Vec::as_slice).iter()
    }
    let is_deferred = |tool: &&Value| tool["defer_loading"] == true;
    let deferred: Vec<&Value> =
        list(body.get("tools")).filter(is_deferred).map(|tool| &tool["name"]).collect();
    if deferred.is_empty() {
        return tools;
    }
    let results = list(body.get("messages")).flat_map(|message| list(message.get("content")));
    let references = results.flat_map(|result| list(result.get("content"))).map(|part| &part["tool_name"]);
    let referenced: Vec<&Value> = references.filter(|name| deferred.contains(name)).collect();
    let is_named = |names: &[&Value], tool: &Tool| names.iter().any(|name| **name == tool.name);
    tools.retain(|tool| !is_named(&deferred, tool) || is_named(&referenced, tool));
    // Behind the others, whose place in the prompt stays what it was.
    tools.sort_by_key(|tool| is_named(&deferred, tool));
    tools
}

/// The choice, and whether one answer may hold several calls.
fn tool_choice(body: &Reader, tools: &[Tool]) -> Result<(ToolChoice, bool), ApiError> {
    let Some(choice) = body.object("tool_choice")? else { return Ok((ToolChoice::Auto, true)) };
    choice.only(&["type", "name", "disable_parallel_tool_use"])?;
    let parallel = !choice.flag("disable_parallel_tool_use", false)?;
    let choice = match choice.text("type")? {
        Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("any") => ToolChoice::Required,
        Some("tool") => ToolChoice::named(&choice, tools)?,
        _ => return Err(choice.error("type", "must be auto, any, tool or none")),
    };
    match tools.is_empty() && choice == ToolChoice::Required {
        true => Err(body.error("tool_choice", "needs `tools`")),
        false => Ok((choice, parallel)),
    }
}

/// `thinking`, as the templates of models that think take it, and how long they may.
fn thinking(body: &Reader) -> Result<(Map<String, Value>, Option<ThinkingBudget>), ApiError> {
    let Some(thinking) = body.object("thinking")? else { return Ok((Map::new(), None)) };
    thinking.only(&["type", "budget_tokens", "display"])?;
    let mut budget = None;
    let enabled = match thinking.text("type")? {
        Some("enabled") => {
            let most = body.integer("max_tokens", 1..=i64::MAX)?.unwrap_or(sampling::MAX_TOKENS);
            let most = most.saturating_sub(1).clamp(1, sampling::MAX_TOKENS);
            thinking.need("budget_tokens")?;
            let tokens = thinking.integer("budget_tokens", 1..=most)?;
            budget = tokens.map(|n| ThinkingBudget { tokens: n as u32, param: "thinking.budget_tokens" });
            true
        }
        Some("adaptive") => true,
        Some("disabled") => false,
        _ => return Err(thinking.error("type", "must be enabled, adaptive or disabled")),
    };
    Ok((Map::from_iter([("enable_thinking".to_owned(), enabled.into())]), budget))
}

/// `output_config`: the form of the answer, and how hard to try, as the templates of models that know of it take it.
fn output_config(body: &Reader, kwargs: &mut Map<String, Value>) -> Result<Option<AskedForm>, ApiError> {
    let Some(config) = body.object("output_config")? else { return Ok(None) };
    config.only(&["format", "effort"])?;
    // Whether to think is for `thinking` to say.
    effort_word(&config, "effort", &["low", "medium", "high", "xhigh", "max"], kwargs)?;
    let Some(format) = config.object("format")? else { return Ok(None) };
    format.only(&["type", "schema"])?;
    match format.text("type")? {
        Some("json_schema") => AskedForm::schema(&format).map(Some),
        _ => Err(format.error("type", "must be json_schema")),
    }
}

#[cfg(test)]
mod tests;
