//! What a chat template renders.

use crate::message::Message;
use crate::tool::{Tool, ToolChoice};
use serde_json::{Map, Value};

/// What a chat template renders: messages, tools and the variables of a request.
#[derive(Clone, Copy, Debug)]
pub struct Conversation<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// Offered tools.
    pub tools: &'a [Tool],
    /// Which tool must be called, if any. [`ToolChoice::None`] hides the tools.
    pub tool_choice: &'a ToolChoice,
    /// Further variables of the template.
    pub template_kwargs: &'a Map<String, Value>,
    /// Append the assistant's turn header after the messages.
    pub add_generation_prompt: bool,
    /// Continue the last message instead of starting a turn.
    pub continue_final_message: bool,
    /// The messages follow an earlier conversation, whose tokens the caller has: only what the template
    /// writes behind an answer is rendered.
    pub follows_earlier: bool,
    /// Source of a chat template instead of the model's. It gets a hundredth of the fuel.
    pub chat_template: Option<&'a str>,
}
