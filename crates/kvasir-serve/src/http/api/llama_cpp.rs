//! llama.cpp's own routes: `/completion`, `/infill`, `/embedding`, `/props`, `/apply-template`.
//!
//! Requests are translated to OpenAI's form (`request/llama_cpp.rs`) and run like those.

use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::answers::answer_stream::{AnswerIncrement, AnswerOutcome};
use crate::http::answers::json_answer::JsonAnswer;
use crate::http::answers::progress::PromptProgress;
use crate::http::answers::reply::{EventWriter, Reply};
use crate::http::answers::sse::{self, event_stream};
use crate::http::answers::usage::Usage;
use crate::http::api::completions::{Completion, visible_text};
use crate::http::api::embeddings::{Embedded, Vector, embed_all};
use crate::http::app::App;
use crate::http::body::read_body;
use crate::model::Model;
use crate::request::chat::ChatRequest;
use crate::request::completions::CompletionRequest;
use crate::request::embeddings::{Encoding, llama_embedding};
use crate::request::fields::{APPLY_TEMPLATE, INFILL, LLAMA_COMPLETION, LLAMA_EMBEDDING};
use crate::request::llama_cpp::LlamaCppRequest;
use crate::request::reader::Reader;
use crate::request::sampling::SamplingFields;
use axum::{
    Extension, Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use kvasir_kv::Token;
use kvasir_sample::{MirostatVersion, Sampler, SamplerChain};
use serde::Serialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /completion`.
pub(crate) async fn completion(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, LLAMA_COMPLETION).await?;
    let submitted = app.run_work(body.cost(), move |app| {
        let request = LlamaCppRequest::completion(&body.reader())?;
        submit(app, key, &body.reader(), request)
    });
    answer(&app, submitted.await?).await
}

/// `POST /infill`: fill-in-the-middle; needs a vocabulary with FIM tokens.
pub(crate) async fn infill(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let (key, body) = read_body(&app, request, INFILL).await?;
    let submitted = app.run_work(body.cost(), move |app| {
        let mut request = LlamaCppRequest::infill(&body.reader())?;
        if let Some((before, after)) = request.gap.take() {
            let prompt = app.model.fill_in_middle(&before, &after);
            let prompt = prompt.map_err(|error| error.renamed("suffix", "input_suffix"))?;
            request.body.insert("prompt".into(), prompt.into());
        }
        submit(app, key, &body.reader(), request)
    });
    answer(&app, submitted.await?).await
}

/// `GET /props`.
pub(crate) async fn props(State(app): State<Arc<App>>, Extension(caller): Extension<Caller>) -> Json<Value> {
    let (facts, sampling) = (&app.model.facts, &app.model.facts.sampling);
    let (variables, template) = (app.model.chat.template_variables(), app.model.chat.template_source());
    let params = json!({
        "temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p,
        "min_p": sampling.min_p, "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty, "frequency_penalty": sampling.frequency_penalty,
        "seed": facts.seed.map_or(-1, |seed| seed as i64),
    });
    Json(json!({
        "default_generation_settings": {"n_ctx": facts.max_len, "params": params},
        // All requests share one block pool: `n_ctx` is the model's, and slots are concurrent requests.
        "total_slots": app.slot_count(caller.0),
        "model_path": facts.card.file,
        "model_alias": app.model.name,
        "chat_template": template.unwrap_or_default(),
        "bos_token": variables.get("bos_token"),
        "eos_token": facts.eos.first().and_then(|id| app.model.id_to_token(*id)),
        "modalities": {"vision": false, "audio": false},
        "build_info": concat!("kvasir ", env!("CARGO_PKG_VERSION")),
    }))
}

/// `POST /embedding`: one vector per text, each inside a list: llama.cpp returns one per token there.
pub(crate) async fn embedding(State(app): State<Arc<App>>, request: Request) -> Result<JsonAnswer, ApiError> {
    let (key, body) = read_body(&app, request, LLAMA_EMBEDDING).await?;
    let cost = body.cost();
    let request = llama_embedding(&body.reader(), app.model.facts.vocab)?;
    drop(body);
    let Embedded { vectors, memory, .. } = embed_all(&app, key, cost, request).await?;
    #[derive(Serialize)]
    struct Entry {
        index: usize,
        embedding: [Vector; 1],
    }
    let entry = |(index, vector)| Entry { index, embedding: [Vector { vector, encoding: Encoding::Float }] };
    let entries: Vec<Entry> = vectors.into_iter().enumerate().map(entry).collect();
    JsonAnswer::collected(&app, memory, entries).await
}

/// `POST /apply-template`: the prompt that a chat renders to.
pub(crate) async fn apply_template(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<JsonAnswer, ApiError> {
    let (_, body) = read_body(&app, request, APPLY_TEMPLATE).await?;
    let answer = app.run_work(body.cost(), move |app| {
        let body = body.reader();
        body.classify(APPLY_TEMPLATE)?;
        app.model_names().check(body.text("model")?)?;
        let facts = &app.model.facts;
        let ids = app.model.chat_prompt(&ChatRequest::read(&body, &facts.sampling, facts.vocab)?)?;
        JsonAnswer::of(&json!({"prompt": app.model.decode(&ids)?}))
    });
    answer.await
}

/// A request that has been submitted.
struct Submitted {
    reply: Reply,
    is_list: bool,
    is_streamed: bool,
    writer: Chunks,
}

fn submit(
    app: &Arc<App>,
    key: u64,
    body: &Reader,
    mut request: LlamaCppRequest,
) -> Result<Submitted, ApiError> {
    for (text, bias) in std::mem::take(&mut request.biased_texts) {
        request.bias_tokens(&app.model.encode(&text, false)?, &bias);
    }
    let (body, facts) = (body.derived(&request.body), &app.model.facts);
    let mut completion = CompletionRequest::read_unlimited(&body, &facts.sampling, facts.vocab)?;
    // Sampler parameters without an explicit order (`samplers`) run in llama.cpp's order here.
    if let Some(samplers) = completion.sampling.samplers.as_mut().filter(|samplers| !samplers.is_ordered) {
        samplers.chain.order = Sampler::llama_cpp_order();
    }
    completion.sampling.context_shift = shift_keep(&app.model, &body, &request)?;
    let count = completion.prompts.len();
    let settings = settings(&app.model, &completion.sampling, &request);
    let reply = Completion::submit(app, key, &body, completion)?.into_reply();
    let prompt = |answer| EchoedPrompt::decode(&app.model, &reply.prompt_ids(answer).unwrap_or_default());
    let prompts = (0..count).map(prompt).collect::<Result<_, _>>()?;
    let is_streamed = request.stream;
    let has_new_line = vec![false; count];
    let (model, slots) = (app.model.clone(), reply.slots());
    let writer = Chunks { model, request, settings, prompts, slots, has_new_line };
    Ok(Submitted { reply, is_list: count > 1, is_streamed, writer })
}

/// Prompt tokens that a context shift keeps: the leading special tokens plus `n_keep`.
fn shift_keep(model: &Model, body: &Reader, request: &LlamaCppRequest) -> Result<Option<u32>, ApiError> {
    if !model.facts.context_shift {
        if request.keep.is_some() {
            body.ignore("n_keep");
        }
        return Ok(None);
    }
    let special = model.encode("", true)?.len() as u32;
    let kept = u32::try_from(request.keep.unwrap_or(0)).unwrap_or(u32::MAX);
    Ok(Some(kept.saturating_add(special)))
}

/// `generation_settings`: the effective sampling parameters, under llama.cpp's names.
fn settings(model: &Model, fields: &SamplingFields, request: &LlamaCppRequest) -> Value {
    let sampling = &fields.sampling;
    let bias = fields.bias.iter().map(|(token, bias)| json!({"token": token, "bias": bias}));
    // JSON has no minus infinity: an excluded token has bias null.
    let ends = model.facts.eos.iter().filter(|_| fields.ignore_eos);
    let bias: Vec<Value> = bias.chain(ends.map(|token| json!({"token": token, "bias": null}))).collect();
    let limit = fields.length.max_tokens.filter(|_| !request.is_warmup).map_or(-1, i64::from);
    let mut settings = json!({
        "n_predict": if request.is_warmup { 0 } else { limit },
        "max_tokens": if request.is_warmup { 0 } else { limit },
        "n_keep": request.keep.unwrap_or(0),
        "seed": fields.seed.or(model.facts.seed).map_or(-1, |seed| seed as i64),
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "n_probs": sampling.logprobs.unwrap_or(0),
        "stop": fields.stop,
        "ignore_eos": fields.ignore_eos,
        "logit_bias": bias,
        "grammar": request.body.get("grammar").cloned().unwrap_or_else(|| "".into()),
        "stream": request.stream,
        "timings_per_token": request.timings_per_token,
        "post_sampling_probs": sampling.processed_logprobs,
    });
    let samplers = fields.samplers.clone().unwrap_or_default();
    if let (Some(all), Value::Object(own)) = (settings.as_object_mut(), sampler_settings(&samplers.chain)) {
        all.extend(own);
        all.insert("dry_sequence_breakers".into(), samplers.breakers.into());
    }
    settings
}

/// The sampler chain's parameters under llama.cpp's field names.
fn sampler_settings(chain: &SamplerChain) -> Value {
    let last_n = |n: Option<u32>| n.map_or(-1, |n| i64::from(i32::try_from(n).unwrap_or(-1)));
    let (dry, mirostat) = (chain.dry.clone().unwrap_or_default(), chain.mirostat.unwrap_or_default());
    let version = chain.mirostat.map_or(0, |mirostat| match mirostat.version {
        MirostatVersion::V1 => 1,
        MirostatVersion::V2 => 2,
    });
    json!({
        "typical_p": chain.typical_p,
        "top_n_sigma": chain.top_n_sigma,
        "xtc_probability": chain.xtc_probability,
        "xtc_threshold": chain.xtc_threshold,
        "dynatemp_range": chain.dynatemp_range,
        "dynatemp_exponent": chain.dynatemp_exponent,
        "repeat_last_n": last_n(chain.penalty_last_n),
        "dry_multiplier": dry.multiplier,
        "dry_base": dry.base,
        "dry_allowed_length": dry.allowed_length,
        "dry_penalty_last_n": last_n(Some(dry.last_n)),
        "mirostat": version,
        "mirostat_tau": mirostat.tau,
        "mirostat_eta": mirostat.eta,
        "min_keep": chain.min_keep,
        "samplers": chain.order.iter().map(|sampler| sampler.name()).collect::<Vec<_>>(),
    })
}

/// One object, or a list of them for several prompts.
async fn answer(app: &Arc<App>, submitted: Submitted) -> Result<Response, ApiError> {
    let Submitted { reply, is_list, is_streamed, mut writer } = submitted;
    if is_streamed {
        return Ok(event_stream(reply.events(writer)));
    }
    let mut whole: Vec<Whole> = (0..writer.prompts.len()).map(|_| Whole::default()).collect();
    let (_, memory) = reply.whole(|index, increment| whole[index].take(increment)).await?;
    let object = |(index, Whole { text, ids, logprobs, outcome })| {
        let ids = if writer.request.return_tokens { ids } else { Vec::new() };
        let mut object = writer.object(index, &text, ids, logprobs);
        if let Some(outcome) = outcome {
            writer.put_outcome(&mut object, index, outcome);
        }
        object
    };
    let mut objects: Vec<Value> = whole.into_iter().enumerate().map(object).collect();
    let body: Value = if is_list { objects.into() } else { objects.pop().unwrap_or_default() };
    Ok(JsonAnswer::collected(app, memory, body).await?.into_response())
}

/// Accumulates one whole answer.
#[derive(Default)]
struct Whole {
    text: String,
    ids: Vec<Token>,
    logprobs: Vec<Value>,
    outcome: Option<AnswerOutcome>,
}

impl Whole {
    fn take(&mut self, increment: AnswerIncrement) {
        self.text += &visible_text(&increment.deltas);
        self.ids.extend(increment.ids);
        self.logprobs.extend(increment.logprobs);
        self.outcome = increment.ended;
    }
}

/// Prompt of an answer, returned in the answer's last object.
struct EchoedPrompt {
    /// Number of tokens.
    tokens: u32,
    text: String,
}

impl EchoedPrompt {
    /// Detokenizes a prompt. Takes CPU time and may wait for a tokenizer process, so it must not run
    /// on the async runtime.
    fn decode(model: &Model, ids: &[Token]) -> Result<Self, ApiError> {
        Ok(Self { tokens: ids.len() as u32, text: model.decode(ids)? })
    }
}

/// Writes `/completion`'s objects.
struct Chunks {
    model: Arc<Model>,
    request: LlamaCppRequest,
    settings: Value,
    prompts: Vec<EchoedPrompt>,
    /// The slot number of each answer; −1 if slots are not recorded.
    slots: Vec<i64>,
    /// Whether the answers so far hold a line feed.
    has_new_line: Vec<bool>,
}

impl Chunks {
    fn object(&mut self, index: usize, content: &str, ids: Vec<Token>, logprobs: Vec<Value>) -> Value {
        let (content, ids, logprobs) =
            if self.request.is_warmup { ("", Vec::new(), Vec::new()) } else { (content, ids, logprobs) };
        self.has_new_line[index] |= content.contains('\n');
        let mut object = json!({
            "index": index, "content": content, "tokens": ids, "stop": false, "id_slot": self.slots[index],
            "tokens_evaluated": self.prompts[index].tokens,
        });
        if !logprobs.is_empty() {
            object["completion_probabilities"] = logprobs.into();
        }
        object
    }

    /// Adds the fields that an answer's last object has, then drops all that `response_fields` does not name.
    fn put_outcome(&self, object: &mut Value, index: usize, mut outcome: AnswerOutcome) {
        if self.request.is_warmup {
            outcome.tokens = 0;
        }
        let stop_type = match (outcome.reason, &outcome.stop) {
            (_, Some(_)) => "word",
            ("length", None) => "limit",
            _ => "eos",
        };
        let is_full = outcome.prompt.saturating_add(outcome.tokens) >= self.model.facts.max_len;
        object["stop"] = true.into();
        object["model"] = self.model.name.clone().into();
        object["prompt"] = self.prompts[index].text.as_str().into();
        object["generation_settings"] = self.settings.clone();
        object["stop_type"] = stop_type.into();
        object["stopping_word"] = outcome.stop.as_deref().unwrap_or_default().into();
        object["truncated"] = (outcome.dropped > 0 || stop_type == "limit" && is_full).into();
        object["has_new_line"] = self.has_new_line[index].into();
        object["tokens_predicted"] = outcome.tokens.into();
        object["tokens_cached"] = outcome.cached.into();
        object["timings"] = outcome.timings();
        if !self.request.response_fields.is_empty() {
            let paths = self.request.response_fields.iter();
            let kept =
                paths.filter_map(|path| Some((path.clone(), object.pointer(&format!("/{path}"))?.clone())));
            *object = Value::Object(kept.collect());
        }
    }
}

impl EventWriter for Chunks {
    fn open(&mut self, _: &mut String) {}

    fn increment(&mut self, out: &mut String, index: usize, increment: AnswerIncrement) {
        if self.request.is_warmup && increment.ended.is_none() {
            return;
        }
        let text = visible_text(&increment.deltas);
        let mut object = self.object(index, &text, increment.ids, increment.logprobs);
        object["tokens_predicted"] = increment.tokens.into();
        match increment.ended {
            Some(outcome) => self.put_outcome(&mut object, index, outcome),
            None if self.request.timings_per_token => {
                let prompt = self.prompts[index].tokens;
                object["timings"] = increment.progress.timings(prompt, increment.tokens);
            }
            None => {}
        }
        out.push_str(&sse::event(&object.to_string()));
    }

    fn prompt_progress(&mut self, out: &mut String, index: usize, progress: PromptProgress) {
        let mut object = self.object(index, "", Vec::new(), Vec::new());
        object["tokens_predicted"] = 0.into();
        object["prompt_progress"] = progress.to_json();
        if self.request.timings_per_token {
            object["timings"] = progress.timings();
        }
        out.push_str(&sse::event(&object.to_string()));
    }

    fn fail(&mut self, out: &mut String, error: &ApiError) {
        out.push_str(&sse::event(&error.to_llama_cpp().to_string()));
    }

    fn close(&mut self, _: &mut String, _: &Usage) {}
}
