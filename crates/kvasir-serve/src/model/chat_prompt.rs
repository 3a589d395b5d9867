//! Prompts of chats: rendered by the model's chat template and tokenized within the memory budget
//! of tokenizations.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::model::Model;
use crate::request::chat::ChatRequest;
use kvasir_chat::{Conversation, RenderedPrompt};
use kvasir_kv::Token;

impl Model {
    /// Renders a chat with the template and tokenizes it.
    pub fn chat_prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        self.prompt_of(request, false)
    }

    /// Renders and tokenizes a chat that will be answered. Rejects a prompt whose number of bytes
    /// alone exceeds the context before tokenizing it.
    pub(crate) fn bounded_chat_prompt(&self, request: &ChatRequest) -> Result<Vec<Token>, ApiError> {
        self.prompt_of(request, request.sampling.truncate_prompt.is_none())
    }

    fn prompt_of(&self, request: &ChatRequest, is_bounded: bool) -> Result<Vec<Token>, ApiError> {
        let rendered = self.rendered_prompt(request, None)?;
        if is_bounded {
            self.check_bytes("messages", rendered.as_str())?;
        }
        let encode =
            |add_special| rendered.encode(add_special, |piece, special| self.encode_message(piece, special));
        if request.earlier.is_empty() {
            return encode(request.add_special_tokens);
        }
        // A complete answer ends with an EOS token, and the template's continuation begins with it:
        // keep one of them. Any other token at both places is kept twice.
        let (mut ids, next) = (request.earlier.clone(), encode(false)?);
        let is_repeated =
            next.first() == ids.last() && ids.last().is_some_and(|id| self.facts.eos.contains(id));
        ids.extend(&next[usize::from(is_repeated)..]);
        Ok(ids)
    }

    /// Tokenizes a piece of rendered text.
    pub(super) fn encode_message(&self, piece: &str, add_special: bool) -> Result<Vec<Token>, ApiError> {
        let encoded = self.encode(piece, add_special);
        encoded.map_err(|error| ApiError { param: Some("messages".into()), ..error })
    }

    /// Renders a chat with the template, with a mark in front of the text of message `marked`.
    pub(super) fn rendered_prompt(
        &self,
        request: &ChatRequest,
        marked: Option<usize>,
    ) -> Result<RenderedPrompt, ApiError> {
        if let Some(unread) = &request.unread_media {
            return Err(unread.refusal(&self.name));
        }
        let conversation = Conversation {
            messages: &request.messages,
            tools: &request.tools,
            tool_choice: &request.tool_choice,
            template_kwargs: &request.template_kwargs,
            add_generation_prompt: request.add_generation_prompt,
            continue_final_message: request.continue_final_message,
            follows_earlier: !request.earlier.is_empty(),
            chat_template: request.chat_template.as_deref(),
        };
        Ok(self.chat.render_marked(&conversation, marked, &RequestContext::current().gone)?)
    }

    /// The fill-in-the-middle prompt for the gap between two texts.
    pub(crate) fn fill_in_middle(&self, before: &str, after: &str) -> Result<Vec<Token>, ApiError> {
        self.chat.fill_in_middle(before, after, |text| self.encode(text, false))
    }
}
