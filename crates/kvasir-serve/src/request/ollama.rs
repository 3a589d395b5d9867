//! Translates Ollama's requests to bodies of OpenAI's form, which one parser then validates.
//!
//! What differs: answers stream by default, sampling parameters stand in `options`, a tool result may
//! name its tool instead of a call id, tool call arguments are objects, and a final message of the
//! assistant is continued.

pub(crate) mod models;
#[cfg(test)]
mod tests;

use crate::error::ApiError;
use crate::request::fields::{OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_EMBEDDINGS, OLLAMA_GENERATE};
use crate::request::media::{MediaParts, UnreadMedia};
use crate::request::reader::Reader;
use crate::request::sampling::chat_logprobs;
use serde_json::{Map, Value, json};
use std::collections::{HashSet, VecDeque};

/// Maximum messages per request.
const MAX_MESSAGES: usize = 4096;
/// Maximum images per message.
const MAX_IMAGES: usize = 256;

/// Option of the prompt tokens that a context shift keeps; a negative number keeps all.
const NUM_KEEP: &str = "options.num_keep";
/// Default of that option.
pub(crate) const DEFAULT_KEEP: u32 = 4;

/// Option of the maximum answer tokens.
pub(crate) const NUM_PREDICT: &str = "options.num_predict";

/// Options with an effect on sampling, each with its field in the translated body.
const OPTIONS: &[(&str, &str)] = &[
    ("options.temperature", "temperature"),
    ("options.top_k", "top_k"),
    ("options.top_p", "top_p"),
    ("options.min_p", "min_p"),
    ("options.seed", "seed"),
    ("options.stop", "stop"),
    ("options.presence_penalty", "presence_penalty"),
    ("options.frequency_penalty", "frequency_penalty"),
    ("options.repeat_penalty", "repetition_penalty"),
    ("options.repeat_last_n", "repeat_last_n"),
    ("options.typical_p", "typical_p"),
    ("options.mirostat", "mirostat"),
    ("options.mirostat_tau", "mirostat_tau"),
    ("options.mirostat_eta", "mirostat_eta"),
    (NUM_PREDICT, "max_tokens"),
];

/// Further fields of a translated body that have another name in the request.
const OTHER_NAMES: &[(&str, &str)] = &[
    ("format", "response_format.json_schema.schema"),
    ("format", "response_format.type"),
    ("think", "chat_template_kwargs"),
    ("think", "reasoning_effort"),
];

/// The operation of a translated request.
#[derive(Clone, Debug, PartialEq)]
pub enum OllamaTask {
    /// Load the model, which always is.
    Load,
    /// Unload the model, which has no effect.
    Unload,
    /// A chat: the body of `/v1/chat/completions`.
    Chat(Map<String, Value>),
    /// A completion without a chat template: the body of `/v1/completions`.
    Completion(Map<String, Value>),
}

/// A translated `/api/chat` or `/api/generate`.
#[derive(Clone, Debug, PartialEq)]
pub struct OllamaRequest {
    /// The requested model.
    pub model: Option<String>,
    /// The translated body.
    pub task: OllamaTask,
    /// Name of the field that holds the conversation, for errors.
    pub param: &'static str,
    /// Images in the newest message of the user, for which the request is refused.
    pub unread_media: Option<UnreadMedia>,
    /// Whether reasoning is requested. Refused if the model has none.
    pub thinks: bool,
    /// Whether the answer is streamed.
    pub stream: bool,
    /// `shift`: whether the context may be shifted when it is full; none leaves it to the server.
    pub shift: Option<bool>,
    /// `options.num_keep`.
    pub keep: Option<i64>,
    /// Token ids of the conversation so far, if the answer returns the extended conversation:
    /// `/api/generate` with a chat template.
    pub context: Option<Vec<u32>>,
}

impl OllamaRequest {
    /// Translates `/api/chat`.
    pub fn chat(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_CHAT)?;
        let (messages, unread_media) = messages(body)?;
        let mut out = common(body)?;
        if let Some(mut tools) = body.get("tools").cloned() {
            // The type may be missing: all tools are functions.
            for tool in tools.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
                let kind = tool.entry("type").or_insert(Value::Null);
                if kind.is_null() || *kind == "" {
                    *kind = "function".into();
                }
            }
            out.insert("tools".into(), tools);
        }
        // Calls come behind the text, which therefore cannot continue.
        let continues = |last: &Value| last["role"] == "assistant" && last.get("tool_calls").is_none();
        if messages.last().is_some_and(continues) {
            out.insert("continue_final_message".into(), true.into());
        }
        out.insert("messages".into(), messages.into());
        let empty = empty_task(body)?;
        let is_empty = out["messages"].as_array().is_some_and(Vec::is_empty);
        Ok(Self {
            model: model(body)?,
            task: if is_empty { empty } else { OllamaTask::Chat(out) },
            param: "messages",
            unread_media,
            thinks: thinks(body),
            stream: body.flag("stream", true)?,
            shift: shift(body)?,
            keep: keep(body)?,
            context: None,
        })
    }

    /// Translates `/api/generate`: one user message, or with `raw` the prompt as it is.
    pub fn generate(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_GENERATE)?;
        let prompt = body.text("prompt")?.unwrap_or_default();
        let system = body.text("system")?.filter(|text| !text.is_empty());
        let is_raw = body.flag("raw", false)?;
        let context = context(body)?;
        let mut out = common(body)?;
        let empty = empty_task(body)?;
        // With `raw`, the model reads only the prompt.
        if is_raw && !context.is_empty() {
            body.ignore("context");
        }
        let task = if prompt.is_empty() {
            empty
        } else if is_raw {
            if system.is_some() {
                return Err(body.error("system", "does not go with `raw`, which renders no template"));
            }
            ["chat_template_kwargs", "reasoning_effort"].iter().for_each(|name| drop(out.remove(*name)));
            // Completions have one field for both: how many alternatives are listed.
            ["logprobs", "top_logprobs"].iter().for_each(|name| drop(out.remove(*name)));
            out.extend(chat_logprobs(body)?.map(|top| ("logprobs".to_owned(), top.into())));
            out.insert("prompt".into(), prompt.into());
            OllamaTask::Completion(out)
        } else {
            // The context begins with the system prompt of its first request.
            if system.is_some() && !context.is_empty() {
                body.ignore("system");
            }
            let system = system.filter(|_| context.is_empty());
            let system = system.map(|text| json!({"role": "system", "content": text}));
            let user = json!({"role": "user", "content": prompt});
            out.insert("messages".into(), system.into_iter().chain([user]).collect());
            OllamaTask::Chat(out)
        };
        let (model, stream) = (model(body)?, body.flag("stream", true)?);
        let (shift, keep) = (shift(body)?, keep(body)?);
        let context = (!is_raw).then_some(context);
        let mut media = MediaParts::new(Some(0));
        media.enter(0);
        media.replace_images(body, "images", images(body)?);
        let (param, unread_media, thinks) = ("prompt", media.unread(), thinks(body));
        Ok(Self { model, task, param, unread_media, thinks, stream, shift, keep, context })
    }

    /// Prompt tokens that a context shift keeps; none if the context is not shifted. `is_on` tells whether
    /// the server shifts contexts; if not, what requests it is recorded as ignored.
    pub(crate) fn context_shift(&self, body: &Reader, is_on: bool) -> Option<u32> {
        if !is_on && self.keep.is_some() {
            body.ignore(NUM_KEEP);
        }
        if !is_on && self.shift == Some(true) {
            body.ignore("shift");
        }
        let keep = self.keep.map_or(DEFAULT_KEEP, |keep| u32::try_from(keep).unwrap_or(u32::MAX));
        (is_on && self.shift != Some(false)).then_some(keep)
    }

    /// An error about the translated body, under the names that the client's fields have.
    pub fn client_error(&self, error: ApiError) -> ApiError {
        let names = OPTIONS.iter().chain(OTHER_NAMES).copied().chain([(self.param, "messages")]);
        names.fold(error, |error, (to, from)| error.renamed(from, to))
    }
}

/// A translated `/api/embed` or `/api/embeddings`.
#[derive(Clone, Debug, PartialEq)]
pub struct OllamaEmbedding {
    /// The requested model.
    pub model: Option<String>,
    /// The body of `/v1/embeddings`; without an input, the request loads the model.
    pub fields: Option<Map<String, Value>>,
}

impl OllamaEmbedding {
    /// Translates `/api/embed` (`input`).
    pub fn embed(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_EMBED)?;
        let truncate = body.flag("truncate", true)?;
        let input = body.get("input").filter(|input| **input != "" && **input != json!([]));
        let mut embedding = Self::new(body, input, truncate)?;
        // Checked, as the input is, by the parser of `/v1/embeddings`.
        if let (Some(fields), Some(dimensions)) = (&mut embedding.fields, body.get("dimensions")) {
            fields.insert("dimensions".into(), dimensions.clone());
        }
        Ok(embedding)
    }

    /// Translates the older `/api/embeddings` (`prompt`).
    pub fn embeddings(body: &Reader) -> Result<Self, ApiError> {
        body.classify(OLLAMA_EMBEDDINGS)?;
        body.text("prompt")?;
        Self::new(body, body.get("prompt").filter(|prompt| **prompt != ""), true)
    }

    fn new(body: &Reader, input: Option<&Value>, truncate: bool) -> Result<Self, ApiError> {
        // Nothing is sampled, and the context is the server's.
        if let Some(options) = body.object("options")? {
            let set = options.fields().iter().filter(|(_, value)| !value.is_null());
            set.for_each(|(name, _)| options.ignore(name));
        }
        let fields = input.map(|input| {
            [("input".to_owned(), input.clone()), ("truncate".to_owned(), truncate.into())]
                .into_iter()
                .collect()
        });
        Ok(Self { model: model(body)?, fields })
    }
}

fn model(body: &Reader) -> Result<Option<String>, ApiError> {
    Ok(body.text("model")?.map(str::to_owned))
}

/// The task of a request without a conversation: a `keep_alive` of zero unloads the model.
fn empty_task(body: &Reader) -> Result<OllamaTask, ApiError> {
    let is_zero = match body.get("keep_alive") {
        None => Some(false),
        Some(Value::Number(seconds)) => Some(seconds.as_f64() == Some(0.0)),
        Some(Value::String(text)) if text.is_empty() => Some(false),
        Some(Value::String(text)) => is_zero_duration(text),
        Some(_) => None,
    };
    match is_zero {
        Some(true) => Ok(OllamaTask::Unload),
        Some(false) => Ok(OllamaTask::Load),
        None => Err(body.error("keep_alive", "must be a number of seconds, or a duration such as 5m")),
    }
}

/// Whether a duration in Go's syntax (`1h30m`), or a number of seconds, is zero; `None` if it is
/// neither.
fn is_zero_duration(text: &str) -> Option<bool> {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    let mut is_zero = true;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits);
        is_zero &= number.parse::<f64>().ok()? == 0.0;
        let (unit, more) = behind.split_at(behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len()));
        if !["", "ns", "us", "µs", "ms", "s", "m", "h"].contains(&unit) {
            return None;
        }
        if more.is_empty() {
            return Some(is_zero);
        }
        rest = more;
    }
}

/// Fields that chats and completions share.
fn common(body: &Reader) -> Result<Map<String, Value>, ApiError> {
    let mut out = Map::new();
    options(body, &mut out)?;
    format(body, &mut out)?;
    think(body, &mut out)?;
    for name in ["logprobs", "top_logprobs"] {
        out.extend(body.get(name).map(|value| (name.to_owned(), value.clone())));
    }
    Ok(out)
}

/// `options`: sampling parameters under Ollama's names. Runner options, such as `num_ctx`, have no
/// effect: the context is the server's.
fn options(body: &Reader, out: &mut Map<String, Value>) -> Result<(), ApiError> {
    let Some(options) = body.object("options")? else { return Ok(()) };
    for (name, value) in options.fields() {
        if value.is_null() {
            continue;
        }
        // Read by `keep`.
        if options.name(name) == NUM_KEEP {
            continue;
        }
        let Some((_, field)) = OPTIONS.iter().find(|(option, _)| *option == options.name(name)) else {
            options.ignore(name);
            continue;
        };
        if *field == "max_tokens" {
            // Negative: without a limit of its own.
            let limit = options.integer(name, -2..=i64::from(i32::MAX))?;
            out.extend(limit.filter(|n| *n > 0).map(|n| ((*field).to_owned(), n.into())));
        } else {
            out.insert((*field).to_owned(), value.clone());
        }
    }
    Ok(())
}

/// `context`: the token ids of a conversation.
fn context(body: &Reader) -> Result<Vec<u32>, ApiError> {
    let items = body.list("context", usize::MAX)?.unwrap_or_default().iter();
    let id = |item: &Value| item.as_u64().and_then(|id| u32::try_from(id).ok());
    let ids: Option<Vec<u32>> = items.map(id).collect();
    ids.ok_or_else(|| body.error("context", "must be a list of token ids, as an answer returned it"))
}

/// `shift`.
fn shift(body: &Reader) -> Result<Option<bool>, ApiError> {
    body.get("shift").map(|_| body.flag("shift", true)).transpose()
}

/// `options.num_keep`.
fn keep(body: &Reader) -> Result<Option<i64>, ApiError> {
    let Some(options) = body.object("options")? else { return Ok(None) };
    options.integer("num_keep", -1..=i64::from(i32::MAX))
}

/// `format`: `json`, or a JSON schema.
fn format(body: &Reader, out: &mut Map<String, Value>) -> Result<(), ApiError> {
    let format = match body.get("format") {
        None => return Ok(()),
        Some(Value::String(text)) if text.is_empty() => return Ok(()),
        Some(Value::String(text)) if text == "json" => json!({"type": "json_object"}),
        Some(schema @ Value::Object(_)) => {
            json!({"type": "json_schema", "json_schema": {"name": "format", "schema": schema}})
        }
        Some(_) => return Err(body.error("format", "must be json or a JSON schema")),
    };
    out.insert("response_format".into(), format);
    Ok(())
}

/// `think`: on, off, or an effort.
fn think(body: &Reader, out: &mut Map<String, Value>) -> Result<(), ApiError> {
    match body.get("think") {
        None => {}
        Some(Value::String(effort)) if effort.is_empty() => {}
        Some(Value::Bool(on)) => {
            out.insert("chat_template_kwargs".into(), json!({"enable_thinking": on}));
        }
        Some(Value::String(effort)) if matches!(effort.as_str(), "low" | "medium" | "high") => {
            out.insert("reasoning_effort".into(), effort.as_str().into());
        }
        Some(_) => return Err(body.error("think", "must be true, false, low, medium or high")),
    }
    Ok(())
}

/// Whether `think` enables reasoning.
fn thinks(body: &Reader) -> bool {
    match body.get("think") {
        Some(Value::Bool(on)) => *on,
        Some(Value::String(effort)) => !effort.is_empty(),
        _ => false,
    }
}

/// Number of images of a message.
fn images(message: &Reader) -> Result<usize, ApiError> {
    Ok(message.list("images", MAX_IMAGES)?.map_or(0, <[Value]>::len))
}

/// Parses `messages`; also returns the images in the newest message of the user.
fn messages(body: &Reader) -> Result<(Vec<Value>, Option<UnreadMedia>), ApiError> {
    let items = body.list("messages", MAX_MESSAGES)?.unwrap_or(&[]);
    let mut calls = Calls::default();
    let mut messages = Vec::with_capacity(items.len());
    let mut media = MediaParts::new(items.iter().rposition(|item| item["role"] == "user"));
    for (i, item) in items.iter().enumerate() {
        media.enter(i);
        let message = body.item("messages", i, item)?;
        let role = message.need_text("role")?;
        let mut out = Map::new();
        out.insert("role".into(), role.into());
        let omitted = media.replace_images(&message, "images", images(&message)?);
        let content = message.text("content")?.unwrap_or_default().to_owned() + &omitted;
        out.insert("content".into(), content.into());
        if let Some(thinking) = message.text("thinking")?.filter(|text| !text.is_empty()) {
            out.insert("reasoning_content".into(), thinking.into());
        }
        let own = calls.make(&message)?;
        if !own.is_empty() {
            out.insert("tool_calls".into(), own.into());
        }
        let id = message.text("tool_call_id")?.filter(|id| !id.is_empty());
        let name = message.text("tool_name")?.or(message.text("name")?);
        if role == "tool" {
            out.insert("tool_call_id".into(), calls.answer(&message, id, name)?.into());
        }
        messages.push(Value::Object(out));
    }
    Ok((messages, media.unread()))
}

/// The tool calls of a conversation. Those without an id get one.
#[derive(Default)]
struct Calls {
    /// Number of calls so far.
    count: usize,
    /// Name and id of the calls without a result.
    open: VecDeque<(String, String)>,
    /// Ids that the client sent.
    ids: HashSet<String>,
}

impl Calls {
    /// The calls of a message, with ids.
    fn make(&mut self, message: &Reader) -> Result<Vec<Value>, ApiError> {
        let items = message.list("tool_calls", 1024)?.unwrap_or(&[]);
        let mut calls = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            let call = message.item("tool_calls", i, item)?;
            call.only(&["id", "type", "function"])?;
            call.text("type")?;
            let function = call.need_object("function")?;
            function.only(&["index", "name", "arguments"])?;
            function.integer("index", 0..=i64::from(u32::MAX))?;
            let name = function.need_text("name")?;
            let id = match call.text("id")?.filter(|id| !id.is_empty()) {
                Some(id) => {
                    self.ids.insert(id.to_owned());
                    id.to_owned()
                }
                None => format!("call_{}", self.count),
            };
            self.count += 1;
            let arguments = function.get("arguments").cloned().unwrap_or_else(|| json!({}));
            calls.push(
                json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}),
            );
            self.open.push_back((name.to_owned(), id));
        }
        Ok(calls)
    }

    /// The id of the call whose result a message is: the sent `id` where calls have ids, else the id of
    /// the oldest open call of the tool `name`, or of any.
    fn answer(&mut self, message: &Reader, id: Option<&str>, name: Option<&str>) -> Result<String, ApiError> {
        let stray = |field: &str| message.error(field, "answers no call of an earlier message");
        if let Some(id) = id.filter(|_| !self.ids.is_empty()) {
            if !self.ids.contains(id) {
                return Err(stray("tool_call_id"));
            }
            self.open.retain(|(_, open)| open != id);
            return Ok(id.to_owned());
        }
        let at = name.map_or(Some(0), |name| self.open.iter().position(|(open, _)| open == name));
        let call = at.and_then(|at| self.open.remove(at));
        call.map(|(_, id)| id).ok_or_else(|| stray("tool_name"))
    }
}
