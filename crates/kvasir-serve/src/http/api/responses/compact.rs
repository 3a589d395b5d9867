//! `POST /v1/responses/compact`: the served model summarizes a conversation in one item.
//!
//! The item's `encrypted_content` is the summary in plain text. In the input of a later request it
//! becomes a message of the user.

use crate::error::ApiError;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::reply::Reply;
use crate::http::answers::submit_chat::submit_chat;
use crate::http::api::responses::object::usage_object;
use crate::http::api::responses::read_request;
use crate::http::api::responses::truncation::submit_truncated;
use crate::http::app::{App, unix_seconds};
use crate::http::body::read_body;
use crate::request::body::Body;
use crate::request::chat::ChatRequest;
use crate::request::fields::COMPACT;
use crate::request::length::Overlong;
use crate::request::responses::compaction_content;
use axum::extract::{Request, State};
use kvasir_chat::Delta;
use kvasir_chat::ToolChoice;
use kvasir_chat::{Message, Role};
use serde_json::json;
use std::sync::Arc;

/// Maximum length of a summary in tokens.
const MAX_SUMMARY_TOKENS: u32 = 2048;
/// The last message of the prompt: it requests the summary.
const INSTRUCTION: &str = "Summarize the conversation so far for someone who continues it without having read it. \
     Keep the task, decisions, names, paths, numbers, results of tools, and what remains to be done. \
     Answer with the summary only.";

pub(crate) async fn compact(State(app): State<Arc<App>>, request: Request) -> Result<JsonAnswer, ApiError> {
    let (key, body) = read_body(&app, request, COMPACT).await?;
    let reply = app.run_work(body.cost(), move |app| submit(app, key, body)).await?;
    let mut summary = String::new();
    let collected = reply.whole(|_, increment| {
        for delta in increment.deltas {
            if let Delta::Content(text) = delta {
                summary.push_str(&text);
            }
        }
    });
    let (usage, memory) = collected.await?;
    if summary.trim().is_empty() {
        return Err(ApiError::failed("the model wrote no summary"));
    }
    let id = app.new_id();
    let item = json!({
        "id": format!("cmp_{id}"), "type": "compaction", "encrypted_content": compaction_content(summary.trim()),
    });
    let object = json!({
        "id": format!("resp_{id}"), "object": "response.compaction", "created_at": unix_seconds(),
        "output": [item], "usage": usage_object(&usage),
    });
    JsonAnswer::collected(&app, memory, object).await
}

/// Submits the request for a summary. The oldest messages are dropped if the conversation leaves no
/// room for it.
fn submit(app: &Arc<App>, key: u64, mut body: Body) -> Result<Reply, ApiError> {
    let (request, _) = read_request(app, key, &mut body, &[], None)?;
    drop(body);
    let mut chat = request.chat;
    chat.messages.push(Message::text(Role::User, INSTRUCTION.into()));
    // The newest message is the instruction, so images before it are history.
    chat.unread_media = None;
    chat.tools.clear();
    chat.tool_choice = ToolChoice::None;
    chat.template_kwargs.insert("enable_thinking".into(), false.into());
    chat.sampling.length.max_tokens = Some(MAX_SUMMARY_TOKENS);
    chat.sampling.length.overlong = Overlong::Reserve;
    submit_truncated(&mut chat, |chat: &ChatRequest| submit_chat(app, key, chat, "input"))
}
