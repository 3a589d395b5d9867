//! The input of a chat template.

use crate::message::Message;
use crate::tool::{Tool, ToolChoice};
use serde_json::{Map, Value};

/// The input of a chat template: messages, tools and further variables.
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
    /// The messages continue a conversation whose tokens the caller already has. The prompt begins
    /// after the text of its last answer, with what the template writes there.
    pub follows_earlier: bool,
    /// Source of a chat template that replaces the model's. Its fuel is limited to a hundredth.
    pub chat_template: Option<&'a str>,
}
