//! `/tokenize`, `/detokenize` and `/tokenizer_info`, compatible with vLLM's routes.

use crate::error::ApiError;
use crate::http::app::App;
use crate::http::body::read_body;
use crate::request::chat::ChatRequest;
use crate::request::fields::{DETOKENIZE, TOKENIZE};
use crate::request::reader::Reader;
use axum::{Json, extract::Request, extract::State};
use kvasir_kv::Token;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Maximum number of ids per `/detokenize`.
const MAX_IDS: usize = 1 << 20;

/// `POST /tokenize`: `{"prompt": text, "add_special_tokens"?: bool}` or `{"messages": [..],
/// "tools"?: [..], ..}` → `{"tokens", "count", "max_model_len"}`. `"return_token_strs": true` adds
/// `"token_strs"`; `"with_pieces": true` makes tokens objects of `id` and `piece`, as llama.cpp
/// has them.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, TOKENIZE).await?;
    let body = body.reader();
    body.classify(TOKENIZE)?;
    app.check_model(body.text("model")?)?;
    let with_strings = body.flag("return_token_strs", false)?;
    let with_pieces = body.flag("with_pieces", false)?;
    let tokens = match body.get("messages") {
        Some(_) => chat(&app, &body)?,
        None => text(&app, &body)?,
    };
    let mut answer = json!({"count": tokens.len(), "max_model_len": app.model.facts.max_len});
    if with_strings {
        answer["token_strs"] = tokens.iter().map(|id| app.model.id_to_token(*id)).collect();
    }
    answer["tokens"] = match with_pieces {
        true => {
            tokens.iter().map(|id| json!({"id": id, "piece": piece(app.model.token_bytes(*id))})).collect()
        }
        false => tokens.into(),
    };
    Ok(Json(answer))
}

/// A token's text, or its bytes where they are no whole characters.
fn piece(bytes: Vec<u8>) -> Value {
    String::from_utf8(bytes).map_or_else(|error| error.into_bytes().into(), Value::from)
}

/// Fields of chats, invalid with `prompt`.
const OF_CHATS: &[&str] =
    &["tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs"];
/// Fields of texts, invalid with `messages`.
const OF_TEXTS: &[&str] = &["prompt", "content", "add_special_tokens", "add_special"];

fn text(app: &App, body: &Reader) -> Result<Vec<Token>, ApiError> {
    if let Some(field) = OF_CHATS.iter().find(|field| body.get(field).is_some()) {
        return Err(body.error(field, "needs `messages`"));
    }
    // llama.cpp's names, of which the second is off by default.
    let adds_special = body.flag("add_special", false)?;
    if let Some(text) = body.text("content")? {
        let other = ["prompt", "add_special_tokens"].into_iter().find(|field| body.get(field).is_some());
        return match other {
            Some(field) => Err(body.error(field, "does not go with `content`")),
            None => app.model.encode(text, adds_special),
        };
    }
    let text = body.need_text("prompt")?;
    app.model.encode(text, body.flag("add_special_tokens", true)?)
}

fn chat(app: &App, body: &Reader) -> Result<Vec<Token>, ApiError> {
    if let Some(field) = OF_TEXTS.iter().find(|field| body.get(field).is_some()) {
        return Err(body.error(field, "does not go with `messages`"));
    }
    let own = ["messages"].into_iter().chain(OF_CHATS.iter().copied());
    let own = own.filter_map(|name| Some((name.to_owned(), body.get(name)?.clone())));
    let chat: Map<String, Value> = own.collect();
    let facts = &app.model.facts;
    app.model.chat_prompt(&ChatRequest::read(&body.derived(&chat), &facts.sampling, facts.vocab)?)
}

/// `POST /detokenize`: `{"tokens": [id]}` → `{"prompt": text, "content": text}`; llama.cpp's
/// clients read the second.
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, DETOKENIZE).await?;
    let body = body.reader();
    body.classify(DETOKENIZE)?;
    app.check_model(body.text("model")?)?;
    let items = body.list("tokens", MAX_IDS)?.ok_or_else(|| body.error("tokens", "is missing"))?;
    let vocab = app.model.facts.vocab;
    let id = |item: &Value| item.as_u64().filter(|id| *id < u64::from(vocab)).map(|id| id as u32);
    let ids: Option<Vec<u32>> = items.iter().map(id).collect();
    let ids = ids.ok_or_else(|| body.error("tokens", format!("must hold token ids below {vocab}")))?;
    let text = app.model.decode(&ids);
    Ok(Json(json!({"prompt": text, "content": text})))
}

/// `GET /tokenizer_info`: `{"tokenizer_class", "eos_token", "bos_token", "chat_template", …}`, for
/// clients such as `lm-eval` that render chats and count tokens themselves.
pub(crate) async fn tokenizer_info(State(app): State<Arc<App>>) -> Json<Value> {
    let (variables, template) = app.model.template_facts();
    let mut info = variables.clone();
    let ends = app.model.facts.eos.first().and_then(|id| app.model.id_to_token(*id));
    info.entry("eos_token").or_insert_with(|| ends.into());
    info.entry("bos_token").or_insert(Value::Null);
    info.insert("chat_template".into(), template.into());
    info.insert("model_max_length".into(), app.model.facts.max_len.into());
    info.insert("tokenizer_class".into(), "kvasir".into());
    Json(info.into())
}
