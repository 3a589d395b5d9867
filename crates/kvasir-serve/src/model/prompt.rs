//! Prompt rendering: from a conversation to tokens, by the model's chat template.
//!
//! A control token's spelling in client text is split by a guard character before rendering, and
//! text is encoded piecewise between guards. So client text never becomes a control token.
//! Templates that reject a conversation as sent get it folded (`folded_conversation`) and with
//! wrapped arguments (`raw_arguments`). Templates that render no tools get them as text
//! (`tool_prompt`).

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::model::Model;
use crate::model::folded_conversation::{fold, shows_late_system};
use crate::model::raw_arguments::{MAX_RESTORED, PLACEHOLDER, RawArguments};
use crate::model::tool_prompt::with_tool_prompt;
use crate::request::chat::ChatRequest;
use crate::request::tools::ToolChoice;
use kvasir_kv::Token;
use kvasir_template::{ChatTemplate, Limits};
use serde_json::{Map, Value};
use std::time::{SystemTime, UNIX_EPOCH};

/// Inserted into a control token's spelling in client text, so that it stays text.
const GUARD: char = '\u{fdd0}';
/// Put into a message's text to find the place in the rendered prompt: where the continuation of the
/// last message begins (`continue_final_message`), or where a marked prefix ends.
const END: char = '\u{fdd1}';

/// Control tokens before the prefix, the suffix and the middle, as model families spell them.
const FILL_IN_MIDDLE: [[&str; 3]; 5] = [
    ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"],
    ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
    ["<fim-prefix>", "<fim-suffix>", "<fim-middle>"],
    ["<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"],
    ["▁<PRE>", "▁<SUF>", "▁<MID>"],
];

/// Compiles a template from a request. It gets a hundredth of the fuel of a model's own.
fn client_template(source: &str) -> Result<ChatTemplate, ApiError> {
    let model = Limits::default();
    let limits = Limits {
        fuel: model.fuel / 100,
        fuel_per_value: model.fuel_per_value / 100,
        max_fuel: model.max_fuel / 100,
        total_bytes: model.total_bytes / 4,
        ..model
    };
    let template = ChatTemplate::new(source).map(|template| template.with_limits(limits));
    template.map_err(|e| ApiError::param("chat_template", format!("`chat_template` is invalid: {e}")))
}

impl Model {
    /// Renders a chat with the template and tokenizes it.
    pub fn chat_prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        self.prompt_of(request, false)
    }

    /// The prompt of a chat that is to be answered: one that cannot fit the context is rejected by its
    /// bytes, before it is tokenized.
    pub(crate) fn bounded_chat_prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        self.prompt_of(request, request.sampling.truncate_prompt.is_none())
    }

    fn prompt_of(&self, request: &ChatRequest, is_bounded: bool) -> Result<Vec<Token>, ApiError> {
        let text = self.prompt_text(request, None)?;
        if is_bounded {
            self.check_bytes("messages", &text)?;
        }
        self.encode_rendered(&text, request.add_special_tokens)
    }

    /// Tokenizes rendered text. What is between guards stays text.
    pub(super) fn encode_rendered(&self, text: &str, add_special: bool) -> Result<Vec<Token>, ApiError> {
        let mut ids = Vec::new();
        for (i, part) in text.split(GUARD).enumerate() {
            let encoded = self.encode(part, add_special && i == 0);
            ids.extend(encoded.map_err(|error| ApiError { param: Some("messages".into()), ..error })?);
        }
        Ok(ids)
    }

    /// Renders a chat with the template, with a mark in front of the text of message `marked`.
    pub(super) fn prompt_text(
        &self,
        request: &ChatRequest,
        marked: Option<usize>,
    ) -> Result<String, ApiError> {
        let own = request.chat_template.as_deref().map(client_template).transpose()?;
        let template = own.as_ref().or(self.template.as_ref());
        let template =
            template.ok_or_else(|| ApiError::param("messages", "this model has no chat template"))?;
        let mut variables = self.variables.clone();
        let kwargs = request.template_kwargs.iter();
        variables.extend(kwargs.map(|(name, value)| (name.clone(), self.guarded(value))));
        let mut messages: Vec<Value> =
            request.messages.iter().map(|message| self.guarded(&message.source)).collect();
        if let Some(message) = marked.and_then(|at| messages.get_mut(at)) {
            let text = message["content"].as_str().unwrap_or_default();
            message["content"] = format!("{END}{text}").into();
        }
        if let Some(last) = messages.last_mut().filter(|_| request.continue_final_message) {
            let content = last["content"].as_str().unwrap_or_default();
            last["content"] = format!("{content}{END}").into();
        }
        let mut tools: Vec<Value> = match request.tool_choice {
            ToolChoice::None => Vec::new(),
            _ => request.tools.iter().map(|tool| self.guarded(&tool.source)).collect(),
        };
        let renders_tools = match &request.chat_template {
            Some(source) => source.contains("tools"),
            None => !self.needs_tool_prompt(),
        };
        if !renders_tools {
            messages = with_tool_prompt(messages, &std::mem::take(&mut tools));
        }
        variables.insert("tools".into(), if tools.is_empty() { Value::Null } else { tools.into() });
        variables.insert("add_generation_prompt".into(), request.add_generation_prompt.into());
        let mut text = match own {
            Some(_) => self.render_once(template, variables, messages)?,
            None => self.render_messages(template, variables, messages)?,
        };
        if let Some(end) = text.rfind(END).filter(|_| request.continue_final_message) {
            text.truncate(end);
        }
        Ok(text)
    }

    /// The prompt that makes the model fill the gap between two texts: prefix, suffix, middle.
    /// Control tokens in the texts stay text.
    pub(crate) fn fill_in_middle(&self, before: &str, after: &str) -> Result<Vec<Token>, ApiError> {
        let marks = FILL_IN_MIDDLE.iter().find_map(|marks| {
            let [prefix, suffix, middle] = marks.map(|mark| self.tokenizer.token_to_id(mark));
            Some([prefix?, suffix?, middle?])
        });
        let [prefix, suffix, middle] = marks.ok_or_else(|| {
            ApiError::unsupported("suffix", "the model's vocabulary has no tokens to fill in the middle")
        })?;
        let text = |text: &str| -> Result<Vec<Token>, ApiError> {
            let guarded = self.guarded_text(text);
            let parts = guarded.split(GUARD).map(|part| self.encode(part, false));
            Ok(parts.collect::<Result<Vec<_>, _>>()?.concat())
        };
        Ok([vec![prefix], text(before)?, vec![suffix], text(after)?, vec![middle]].concat())
    }

    /// Renders the conversation as sent, once: a client's own template is taken at its word, and its
    /// time is bounded.
    fn render_once(
        &self,
        template: &ChatTemplate,
        mut variables: Map<String, Value>,
        mut messages: Vec<Value>,
    ) -> Result<String, ApiError> {
        let raw = RawArguments::take(&mut messages);
        variables.insert("messages".into(), messages.into());
        let rendered = self.render(template, &variables, &raw);
        rendered.map_err(|error| ApiError { param: Some("chat_template".into()), ..error })
    }

    /// Renders the conversation as sent. If the template fails or drops a late system message,
    /// renders it folded; then with non-object arguments wrapped in objects.
    fn render_messages(
        &self,
        template: &ChatTemplate,
        mut variables: Map<String, Value>,
        mut messages: Vec<Value>,
    ) -> Result<String, ApiError> {
        let raw = RawArguments::take(&mut messages);
        let render = |variables: &Map<String, Value>| self.render(template, variables, &raw);
        variables.insert("messages".into(), messages.into());
        let as_sent = render(&variables);
        let sent = variables["messages"].as_array().map_or(&[][..], Vec::as_slice);
        if let Ok(text) = &as_sent
            && shows_late_system(sent, text)
        {
            return as_sent;
        }
        let (mut messages, mut folded) = (sent.to_vec(), fold(sent.to_vec()));
        let mut render_messages = |messages: &[Value]| {
            variables.insert("messages".into(), messages.into());
            render(&variables)
        };
        let mut as_folded = render_messages(&folded);
        if as_folded.is_err() && !raw.is_empty() {
            raw.as_objects(&mut messages);
            raw.as_objects(&mut folded);
            as_folded = render_messages(&messages).or_else(|_| render_messages(&folded));
        }
        // Errors refer to the conversation as sent.
        as_folded.or(as_sent)
    }

    fn render(
        &self,
        template: &ChatTemplate,
        variables: &Map<String, Value>,
        raw: &RawArguments,
    ) -> Result<String, ApiError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let canceled = &RequestContext::current().gone;
        let rendered = template.render_cancelable(variables, now, canceled);
        let text = rendered.map_err(|e| ApiError::param("messages", e.to_string()))?;
        raw.restore(text).ok_or_else(|| {
            ApiError::param("messages", format!("the rendered chat is longer than {MAX_RESTORED} bytes"))
        })
    }

    /// Guards every control token's spelling in the strings of a value.
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
        let text = text.replace([GUARD, END, PLACEHOLDER], "\u{fffd}");
        self.specials.iter().fold(text, |text, special| {
            let mut chars = special.chars();
            match chars.next().filter(|_| text.contains(special)) {
                Some(first) => text.replace(special, &format!("{first}{GUARD}{}", chars.as_str())),
                None => text,
            }
        })
    }
}
