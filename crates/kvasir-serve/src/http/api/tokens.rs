//! `/tokenize`, `/detokenize` and `/tokenizer_info`, compatible with vLLM's routes.
//!
//! An answer of `/tokenize` is several times as long as its text, so it is written from the ids without
//! a tree of JSON values.

use crate::error::ApiError;
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::app::App;
use crate::http::body::read_body;
use crate::model::Model;
use crate::request::chat::ChatRequest;
use crate::request::fields::{DETOKENIZE, TOKENIZE};
use crate::request::reader::Reader;
use axum::{Json, extract::Request, extract::State};
use kvasir_kv::Token;
use serde::{Serialize, Serializer, ser::SerializeMap};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Maximum number of ids per `/detokenize`.
const MAX_IDS: usize = 1 << 20;

/// `POST /tokenize`: `{"prompt": text, "add_special_tokens"?: bool}` or `{"messages": [..],
/// "tools"?: [..], ..}` → `{"tokens", "count", "max_model_len"}`. `"return_token_strs": true` adds
/// `"token_strs"`; `"with_pieces": true` makes tokens objects of `id` and `piece`, as llama.cpp
/// has them.
pub(crate) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Result<JsonAnswer, ApiError> {
    let (_, body) = read_body(&app, request, TOKENIZE).await?;
    let answer = app.run_work(body.cost(), move |app| {
        let reader = body.reader();
        reader.classify(TOKENIZE)?;
        app.model_names().check(reader.text("model")?)?;
        let with_strings = reader.flag("return_token_strs", false)?;
        let with_pieces = reader.flag("with_pieces", false)?;
        let tokens = match reader.get("messages") {
            Some(_) => chat(app, &reader)?,
            None => text(app, &reader)?,
        };
        drop(body);
        JsonAnswer::of(&Tokenized { model: &app.model, tokens, with_strings, with_pieces })
    });
    answer.await
}

/// The answer of `/tokenize`.
struct Tokenized<'a> {
    model: &'a Model,
    tokens: Vec<Token>,
    with_strings: bool,
    with_pieces: bool,
}

impl Serialize for Tokenized<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { model, tokens, .. } = self;
        let mut answer = serializer.serialize_map(None)?;
        answer.serialize_entry("count", &tokens.len())?;
        answer.serialize_entry("max_model_len", &model.facts.max_len)?;
        if self.with_strings {
            let strings = || tokens.iter().map(|id| model.id_to_token(*id));
            answer.serialize_entry("token_strs", &Streamed(strings))?;
        }
        if self.with_pieces {
            let pieces =
                || tokens.iter().map(|id| IdAndPiece { id: *id, piece: piece(model.token_bytes(*id)) });
            answer.serialize_entry("tokens", &Streamed(pieces))?;
        } else {
            answer.serialize_entry("tokens", tokens)?;
        }
        answer.end()
    }
}

/// A list whose items exist one at a time.
struct Streamed<F>(F);

impl<T: Serialize, I: Iterator<Item = T>, F: Fn() -> I> Serialize for Streamed<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Serialize)]
struct IdAndPiece {
    id: Token,
    piece: Value,
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
            None => encode(app, "content", text, adds_special),
        };
    }
    let text = body.need_text("prompt")?;
    encode(app, "prompt", text, body.flag("add_special_tokens", true)?)
}

/// Tokenizes a text, which may exceed the context: it is only counted.
fn encode(app: &App, param: &str, text: &str, adds_special: bool) -> Result<Vec<Token>, ApiError> {
    app.model.encode(text, adds_special).map_err(|error| error.renamed("prompt", param))
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
) -> Result<JsonAnswer, ApiError> {
    let (_, body) = read_body(&app, request, DETOKENIZE).await?;
    let answer = app.run_work(body.cost(), move |app| {
        let ids = ids(app, &body.reader())?;
        drop(body);
        let text = app.model.decode(&ids)?;
        JsonAnswer::of(&json!({"prompt": text, "content": text}))
    });
    answer.await
}

fn ids(app: &App, body: &Reader) -> Result<Vec<Token>, ApiError> {
    body.classify(DETOKENIZE)?;
    app.model_names().check(body.text("model")?)?;
    let items = body.list("tokens", MAX_IDS)?.ok_or_else(|| body.error("tokens", "is missing"))?;
    let vocab = app.model.facts.vocab;
    let id = |item: &Value| item.as_u64().filter(|id| *id < u64::from(vocab)).map(|id| id as u32);
    let ids: Option<Vec<u32>> = items.iter().map(id).collect();
    ids.ok_or_else(|| body.error("tokens", format!("must hold token ids below {vocab}")))
}

/// `GET /tokenizer_info`: `{"tokenizer_class", "eos_token", "bos_token", "chat_template", …}`, for
/// clients such as `lm-eval` that render chats and count tokens themselves.
pub(crate) async fn tokenizer_info(State(app): State<Arc<App>>) -> Json<Value> {
    let (variables, template) = (app.model.chat.template_variables(), app.model.chat.template_source());
    let mut info = variables.clone();
    let ends = app.model.facts.eos.first().and_then(|id| app.model.id_to_token(*id));
    info.entry("eos_token").or_insert_with(|| ends.into());
    info.entry("bos_token").or_insert(Value::Null);
    info.insert("chat_template".into(), template.into());
    info.insert("model_max_length".into(), app.model.facts.max_len.into());
    info.insert("tokenizer_class".into(), "kvasir".into());
    Json(info.into())
}
