//! Prompt rendering: applies the chat template to a conversation.
//!
//! Control tokens' spellings in client text are split (`guard`), so client text never becomes a
//! control token. Templates that reject a conversation as sent get it folded (`folded_conversation`)
//! or with wrapped arguments (`raw_arguments`). Templates that render no tools get them as text
//! (`tool_prompt`).

use crate::error::ChatError;
use crate::model::chat_model::ChatModel;
use crate::model::conversation::Conversation;
use crate::model::folded_conversation::{fold, shows_late_system};
use crate::model::guard::POSITION_MARK;
use crate::model::raw_arguments::{MAX_RESTORED, RawArguments};
use crate::model::rendered_prompt::RenderedPrompt;
use crate::model::tool_prompt::with_tool_prompt;
use crate::tool::ToolChoice;
use kvasir_template::{ChatTemplate, Limits, strftime};
use serde_json::{Map, Value, json};
use std::sync::{Arc, atomic::AtomicBool};
use std::time::{SystemTime, UNIX_EPOCH};

/// Compiles a template that a client sent, with a hundredth of the fuel of a model's template.
fn client_template(source: &str) -> Result<ChatTemplate, ChatError> {
    let model = Limits::default();
    let limits = Limits {
        fuel: model.fuel / 100,
        fuel_per_value: model.fuel_per_value / 100,
        max_fuel: model.max_fuel / 100,
        total_bytes: model.total_bytes / 4,
        ..model
    };
    let template = ChatTemplate::new(source).map(|template| template.with_limits(limits));
    template.map_err(|e| ChatError::invalid("chat_template", format!("`chat_template` is invalid: {e}")))
}

/// A template with the clock and the cancellation flag of the request.
struct Renderer<'a> {
    template: &'a ChatTemplate,
    /// Unix time in seconds.
    now: i64,
    canceled: &'a Arc<AtomicBool>,
}

/// The date variables that llama.cpp passes to every template. Without `date_string` the Llama 3
/// template writes a fixed date of 2024.
fn dates(now: i64) -> impl Iterator<Item = (String, Value)> {
    let formats = [("date_string", "%d %b %Y"), ("datetime", "%b %d %Y")];
    formats.into_iter().map(move |(name, format)| (name.to_owned(), strftime(format, now).into()))
}

impl ChatModel {
    /// Renders a conversation. Fails soon after `canceled` is set.
    pub fn render(
        &self,
        conversation: &Conversation<'_>,
        canceled: &Arc<AtomicBool>,
    ) -> Result<RenderedPrompt, ChatError> {
        self.render_marked(conversation, None, canceled)
    }

    /// Renders a conversation with a mark in front of the text of message `marked`. The text of
    /// this message begins where the result first differs from that of [`ChatModel::render`].
    pub fn render_marked(
        &self,
        conversation: &Conversation<'_>,
        marked: Option<usize>,
        canceled: &Arc<AtomicBool>,
    ) -> Result<RenderedPrompt, ChatError> {
        let own = conversation.chat_template.map(client_template).transpose()?;
        let template = own.as_ref().or(self.template());
        let template =
            template.ok_or_else(|| ChatError::invalid("messages", "this model has no chat template"))?;
        let guard = self.guard();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64);
        let mut variables: Map<String, Value> = dates(now).collect();
        variables.extend(self.template_variables().clone());
        let kwargs = conversation.template_kwargs.iter();
        variables.extend(kwargs.map(|(name, value)| (name.clone(), guard.value(value))));
        let mut messages: Vec<Value> =
            conversation.messages.iter().map(|message| guard.value(&message.source)).collect();
        if conversation.follows_earlier {
            // A dummy turn stands for the earlier conversation; the prompt is cut behind it.
            let turn = [("user", "-".to_owned()), ("assistant", format!("-{POSITION_MARK}"))];
            let turn = turn.map(|(role, content)| json!({"role": role, "content": content}));
            messages.splice(..0, turn);
        }
        if let Some(message) = marked.and_then(|at| messages.get_mut(at)) {
            let text = message["content"].as_str().unwrap_or_default();
            message["content"] = format!("{POSITION_MARK}{text}").into();
        }
        if let Some(last) = messages.last_mut().filter(|_| conversation.continue_final_message) {
            let content = last["content"].as_str().unwrap_or_default();
            last["content"] = format!("{content}{POSITION_MARK}").into();
        }
        let mut tools: Vec<Value> = match conversation.tool_choice {
            ToolChoice::None => Vec::new(),
            _ => conversation.tools.iter().map(|tool| guard.value(&tool.source)).collect(),
        };
        let renders_tools = match conversation.chat_template {
            Some(source) => source.contains("tools"),
            None => !self.needs_tool_prompt(),
        };
        if !renders_tools {
            messages = with_tool_prompt(messages, &std::mem::take(&mut tools));
        }
        variables.insert("tools".into(), if tools.is_empty() { Value::Null } else { tools.into() });
        variables.insert("add_generation_prompt".into(), conversation.add_generation_prompt.into());
        let renderer = Renderer { template, now, canceled };
        let mut text = match own {
            Some(_) => renderer.render_once(variables, messages)?,
            None => renderer.render_messages(variables, messages)?,
        };
        if let Some(end) = text.rfind(POSITION_MARK).filter(|_| conversation.continue_final_message) {
            text.truncate(end);
        }
        if conversation.follows_earlier {
            let end = text.find(POSITION_MARK).ok_or_else(|| {
                let why = "the chat template drops earlier answers; send the whole text in `prompt`";
                ChatError::invalid("context", why)
            })?;
            text.drain(..end + POSITION_MARK.len_utf8());
        }
        Ok(RenderedPrompt(text))
    }
}

impl Renderer<'_> {
    /// Renders the conversation as sent, once: a client's own template gets no fallbacks, so its
    /// time is bounded.
    fn render_once(
        &self,
        mut variables: Map<String, Value>,
        mut messages: Vec<Value>,
    ) -> Result<String, ChatError> {
        let raw = RawArguments::take(&mut messages);
        variables.insert("messages".into(), messages.into());
        self.render(&variables, &raw).map_err(|message| ChatError::invalid("chat_template", message))
    }

    /// Renders the conversation as sent. If the template fails or drops a late system message,
    /// renders it folded; then with non-object arguments wrapped in objects.
    fn render_messages(
        &self,
        mut variables: Map<String, Value>,
        mut messages: Vec<Value>,
    ) -> Result<String, ChatError> {
        let raw = RawArguments::take(&mut messages);
        variables.insert("messages".into(), messages.into());
        let as_sent = self.render(&variables, &raw);
        let sent = variables["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let as_sent = match as_sent {
            Ok(text) if shows_late_system(sent, &text) => return Ok(text),
            other => other,
        };
        let (mut messages, mut folded) = (sent.to_vec(), fold(sent.to_vec()));
        let mut render_messages = |messages: &[Value]| {
            variables.insert("messages".into(), messages.into());
            self.render(&variables, &raw)
        };
        let mut as_folded = render_messages(&folded);
        if as_folded.is_err() && !raw.is_empty() {
            raw.as_objects(&mut messages);
            raw.as_objects(&mut folded);
            as_folded = render_messages(&messages).or_else(|_| render_messages(&folded));
        }
        // Errors refer to the conversation as sent.
        as_folded.or(as_sent).map_err(|message| ChatError::invalid("messages", message))
    }

    /// Renders once. The error is the template's error message.
    fn render(&self, variables: &Map<String, Value>, raw: &RawArguments) -> Result<String, String> {
        let rendered = self.template.render_cancelable(variables, self.now, self.canceled);
        let text = rendered.map_err(|error| error.to_string())?;
        raw.restore(text).ok_or_else(|| format!("the rendered chat is longer than {MAX_RESTORED} bytes"))
    }
}
