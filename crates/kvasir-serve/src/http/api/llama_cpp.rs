//! llama.cpp's own routes: `/completion`, `/infill`, `/props`, `/slots`, `/apply-template`.
//!
//! Requests are translated to OpenAI's form (`request/llama_cpp.rs`) and run like those.

use crate::error::ApiError;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::sse::{self, event_stream};
use crate::http::answers::usage::Usage;
use crate::http::api::completions::{Completion, visible_text};
use crate::http::app::App;
use crate::http::body::read_body;
use crate::request::chat::ChatRequest;
use crate::request::completions::CompletionRequest;
use crate::request::fields::{APPLY_TEMPLATE, INFILL, LLAMA_COMPLETION};
use crate::request::llama_cpp::LlamaCppRequest;
use crate::request::reader::Reader;
use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use kvasir_kv::Token;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /completion`.
pub(crate) async fn completion(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, LLAMA_COMPLETION).await?;
    let asked = LlamaCppRequest::completion(&body.reader())?;
    let reply = submit(&app, key, &body.reader(), &asked)?;
    drop(body);
    answer(&app, asked, reply).await
}

/// `POST /infill`: fills the gap between a prefix and a suffix, where the vocabulary has the tokens
/// for it.
pub(crate) async fn infill(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, INFILL).await?;
    let mut asked = LlamaCppRequest::infill(&body.reader())?;
    if let Some((before, after)) = asked.gap.take() {
        asked.body.insert("prompt".into(), app.model.fill_in_middle(&before, &after)?.into());
    }
    let reply = submit(&app, key, &body.reader(), &asked)?;
    drop(body);
    answer(&app, asked, reply).await
}

/// `GET /props`.
pub(crate) async fn props(State(app): State<Arc<App>>) -> Json<Value> {
    let (facts, sampling) = (&app.model.facts, &app.model.facts.sampling);
    let (variables, template) = app.model.template_facts();
    let params = json!({
        "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
        "min_p": sampling.min_p, "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
    });
    Json(json!({
        "default_generation_settings": {"n_ctx": facts.max_len, "params": params},
        // Requests share one pool of blocks; there are as many places as requests.
        "total_slots": app.host.at_once(1),
        "model_path": app.model.name,
        "model_alias": app.model.name,
        "chat_template": template.unwrap_or_default(),
        "bos_token": variables.get("bos_token"),
        "eos_token": facts.eos.first().and_then(|id| app.model.id_to_token(*id)),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("kvasir ", env!("CARGO_PKG_VERSION")),
    }))
}

/// `GET /slots`: one per open request.
pub(crate) async fn slots(State(app): State<Arc<App>>) -> Json<Value> {
    let slot = |id| json!({"id": id, "n_ctx": app.model.facts.max_len, "is_processing": true});
    Json((0..app.host.open()).map(slot).collect())
}

/// `POST /apply-template`: the prompt that a chat renders to.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (_, body) = read_body(&app, request, APPLY_TEMPLATE).await?;
    let body = body.reader();
    body.classify(APPLY_TEMPLATE)?;
    let facts = &app.model.facts;
    let ids = app.model.chat_prompt(&ChatRequest::read(&body, &facts.sampling, facts.vocab)?)?;
    Ok(Json(json!({"prompt": app.model.decode(&ids)})))
}

fn submit(app: &Arc<App>, key: u64, body: &Reader, asked: &LlamaCppRequest) -> Result<Reply, ApiError> {
    let (body, facts) = (body.derived(&asked.body), &app.model.facts);
    let request = CompletionRequest::read_unlimited(&body, &facts.sampling, facts.vocab)?;
    if request.prompts.len() != 1 {
        return Err(ApiError::param("prompt", "`prompt` must be one text or one list of token ids"));
    }
    Ok(Completion::submit(app, key, &body, request)?.into_reply())
}

async fn answer(app: &App, asked: LlamaCppRequest, reply: Reply) -> Result<Response, ApiError> {
    let writer = Chunks {
        model: app.model.name.clone(),
        prompt_tokens: reply.prompt_tokens(),
        timings_per_token: asked.timings_per_token,
    };
    if asked.stream {
        return Ok(event_stream(reply.events(writer)));
    }
    let (mut text, mut ids, mut logprobs) = (String::new(), Vec::new(), Vec::new());
    let mut outcome = None;
    reply
        .whole(|_, increment| {
            text += &visible_text(&increment.deltas);
            ids.extend(increment.ids);
            logprobs.extend(increment.logprobs);
            outcome = increment.ended;
        })
        .await?;
    let mut object = writer.object(&text, &ids, logprobs);
    if let Some(outcome) = outcome {
        writer.put_outcome(&mut object, &outcome);
    }
    Ok(Json(object).into_response())
}

/// Writes `/completion`'s objects.
struct Chunks {
    model: String,
    prompt_tokens: u64,
    timings_per_token: bool,
}

impl Chunks {
    fn object(&self, content: &str, ids: &[Token], logprobs: Vec<Value>) -> Value {
        let mut object = json!({
            "index": 0, "content": content, "tokens": ids, "stop": false, "id_slot": -1,
            "tokens_evaluated": self.prompt_tokens,
        });
        if !logprobs.is_empty() {
            object["completion_probabilities"] = logprobs.into();
        }
        object
    }

    fn put_outcome(&self, object: &mut Value, outcome: &AnswerOutcome) {
        let stop_type = match (outcome.reason, &outcome.stop) {
            (_, Some(_)) => "word",
            ("length", None) => "limit",
            _ => "eos",
        };
        object["stop"] = true.into();
        object["model"] = self.model.clone().into();
        object["stop_type"] = stop_type.into();
        object["stopping_word"] = outcome.stop.as_deref().unwrap_or_default().into();
        object["truncated"] = false.into();
        object["tokens_predicted"] = outcome.tokens.into();
        object["tokens_cached"] = outcome.cached.into();
        object["timings"] = outcome.timings();
    }
}

impl EventWriter for Chunks {
    fn open(&mut self, _: &mut String) {}

    fn increment(&mut self, out: &mut String, _: usize, increment: AnswerIncrement) {
        let text = visible_text(&increment.deltas);
        let mut object = self.object(&text, &increment.ids, increment.logprobs);
        object["tokens_predicted"] = increment.tokens.into();
        match &increment.ended {
            Some(outcome) => self.put_outcome(&mut object, outcome),
            None if self.timings_per_token => object["timings"] = json!({"predicted_n": increment.tokens}),
            None => {}
        }
        out.push_str(&sse::event(&object.to_string()));
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        out.push_str(&sse::error(error));
    }

    fn close(&mut self, _: &mut String, _: &Usage) {}
}
