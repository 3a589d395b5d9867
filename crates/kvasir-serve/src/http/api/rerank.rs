//! `/v1/rerank` and `/v1/score`: how well documents answer a query.
//!
//! By embeddings, a score is the cosine of the two vectors, -1 to 1. Models made for embeddings
//! rank well by it; others give a rough order. By prompts (cross-encoding), each pair of texts is
//! one request of one token, and a score is `p(yes) / (p(yes) + p(no))` of that token. Models with a
//! classification head return its score for each pair (`cross_encoder`). `/v2/rerank` takes and
//! returns the format of Cohere's API, version 2.

use crate::error::ApiError;
use crate::host::engine_thread::Submission;
use crate::http::answers::single_token;
use crate::http::api::cross_encoder::by_cross_encoder;
use crate::http::api::embeddings::{Embedded, embed_all, similarity};
use crate::http::api::text_pairs::{PairScores, TextPairs};
use crate::http::app::App;
use crate::http::body::read_body;
use crate::model::judge_prompt::DEFAULT_INSTRUCTION;
use crate::request::completions::Prompt;
use crate::request::embeddings::EmbeddingsRequest;
use crate::request::fields::{COHERE_RERANK, RERANK, SCORE};
use crate::request::rerank::{RerankRequest, ScoreRequest, Scoring};
use crate::request::sampling::SamplingFields;
use crate::work_pool::fair_queue::Cost;
use axum::{Json, extract::Request, extract::State};
use futures_util::{StreamExt, TryStreamExt, stream};
use kvasir_kv::Token;
use kvasir_sample::Sampling;
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/rerank`: documents by how well they answer a query, best first.
pub(crate) async fn rerank(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, RERANK).await?;
    let cost = body.cost();
    let request = RerankRequest::read(&body.reader())?;
    drop(body);
    let (returns_documents, is_tei) = (request.returns_documents, request.is_tei);
    let Ranking { scored, tokens, pairs } = rank(&app, key, cost, request).await?;
    let result = |(index, score): (usize, f64)| {
        let (score_name, text_name) =
            if is_tei { ("score", "text") } else { ("relevance_score", "document") };
        let mut result = json!({"index": index, score_name: score});
        if returns_documents {
            let text = &pairs.second[index];
            result[text_name] = if is_tei { json!(text) } else { json!({"text": text}) };
        }
        result
    };
    let results: Vec<Value> = scored.into_iter().map(result).collect();
    if is_tei {
        return Ok(Json(results.into()));
    }
    Ok(Json(json!({
        "id": format!("rerank-{}", app.new_id()), "model": app.model.name, "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// `POST /v2/rerank`, in Cohere's format.
pub(crate) async fn rerank_cohere(
    State(app): State<Arc<App>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, COHERE_RERANK).await?;
    let cost = body.cost();
    let request = RerankRequest::read_cohere(&body.reader())?;
    drop(body);
    let Ranking { scored, tokens, .. } = rank(&app, key, cost, request).await?;
    let result = |(index, score): (usize, f64)| json!({"index": index, "relevance_score": score});
    Ok(Json(json!({
        "id": format!("rerank-{}", app.new_id()),
        "results": scored.into_iter().map(result).collect::<Vec<_>>(),
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": tokens},
        },
    })))
}

/// Documents ranked by their scores for a query.
struct Ranking {
    /// Index and score of each document, best first.
    scored: Vec<(usize, f64)>,
    /// Number of tokens that the model has processed.
    tokens: u64,
    pairs: Arc<TextPairs>,
}

async fn rank(app: &Arc<App>, key: u64, cost: Cost, request: RerankRequest) -> Result<Ranking, ApiError> {
    let RerankRequest { model, query, mut documents, top_n, document_tokens, scoring, .. } = request;
    app.model_names().check(model.as_deref())?;
    if let Some(max_tokens) = document_tokens {
        documents = app.run_work(cost, move |app| truncated(app, documents, max_tokens)).await?;
    }
    let pairs = Arc::new(TextPairs { first: vec![query], second: documents });
    let PairScores { scores, prompt_tokens: tokens } = compare(app, key, cost, scoring, &pairs).await?;
    let mut scored: Vec<(usize, f64)> = scores.into_iter().enumerate().collect();
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scored.truncate(top_n.unwrap_or(scored.len()));
    Ok(Ranking { scored, tokens, pairs })
}

/// Truncates each document to `max_tokens` tokens.
fn truncated(app: &App, documents: Vec<String>, max_tokens: usize) -> Result<Vec<String>, ApiError> {
    let truncate = |text: String| {
        // A token has at least one byte.
        if text.len() <= max_tokens {
            return Ok(text);
        }
        let ids = app.model.encode(&text, false)?;
        Ok(if ids.len() <= max_tokens { text } else { app.model.decode(&ids[..max_tokens])? })
    };
    documents.into_iter().map(truncate).collect()
}

/// `POST /v1/score`: scores of pairs of texts; one `text_1` is compared with every `text_2`.
pub(crate) async fn score(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, SCORE).await?;
    let cost = body.cost();
    let ScoreRequest { model, first, second, scoring } = ScoreRequest::read(&body.reader())?;
    drop(body);
    app.model_names().check(model.as_deref())?;
    let PairScores { scores, prompt_tokens: tokens } =
        compare(&app, key, cost, scoring, &Arc::new(TextPairs { first, second })).await?;
    let data = scores.iter().enumerate();
    let data = data.map(|(i, score)| json!({"index": i, "object": "score", "score": score}));
    Ok(Json(json!({
        "id": format!("score-{}", app.new_id()), "object": "list", "model": app.model.name,
        "data": data.collect::<Vec<_>>(), "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

async fn compare(
    app: &Arc<App>,
    key: u64,
    cost: Cost,
    scoring: Option<Scoring>,
    pairs: &Arc<TextPairs>,
) -> Result<PairScores, ApiError> {
    let facts = &app.model.facts;
    match (facts.encoder, &scoring) {
        (Some(encoder), None) if encoder.labels > 0 => {
            return by_cross_encoder(app, key, cost, encoder, pairs.clone()).await;
        }
        (Some(encoder), Some(_)) if encoder.labels > 0 => {
            return Err(ApiError::param(
                "method",
                "this model is a cross-encoder: leave `method` and `instruction` out",
            ));
        }
        (Some(_), None) => return by_embeddings(app, key, cost, pairs).await,
        (Some(encoder), Some(Scoring::Prompt { .. })) => {
            return Err(encoder.generation_error(&app.model.name));
        }
        _ => {}
    }
    match scoring.unwrap_or_else(|| app.rules.scoring.clone()) {
        Scoring::Embeddings => by_embeddings(app, key, cost, pairs).await,
        Scoring::Prompt { instruction } => by_prompts(app, key, cost, instruction, pairs.clone()).await,
    }
}

async fn by_embeddings(
    app: &Arc<App>,
    key: u64,
    cost: Cost,
    pairs: &TextPairs,
) -> Result<PairScores, ApiError> {
    let inputs = pairs.first.iter().chain(&pairs.second).cloned().map(Prompt::Text).collect();
    let request = EmbeddingsRequest { inputs, truncate: true, ..EmbeddingsRequest::default() };
    let Embedded { vectors, tokens, memory: _memory } = embed_all(app, key, cost, request).await?;
    let (first, second) = vectors.split_at(pairs.first.len());
    let pairs = second.iter().zip(first.iter().cycle());
    let scores = pairs.map(|(second, first)| similarity(first, second)).collect();
    Ok(PairScores { scores, prompt_tokens: tokens })
}

/// All prompts are built first, so that an invalid one is rejected before anything is computed.
async fn by_prompts(
    app: &Arc<App>,
    key: u64,
    cost: Cost,
    instruction: Option<String>,
    pairs: Arc<TextPairs>,
) -> Result<PairScores, ApiError> {
    app.model.chat.require_logits("probability")?;
    let verdicts = app.model.verdict_tokens()?;
    // Logits of two tokens that need not be among the likeliest: all are reported.
    let sampling = Sampling { logprobs: Some(app.model.facts.vocab), ..Sampling::default() };
    let fields = single_token::single_token(SamplingFields { sampling, ..SamplingFields::default() });
    let submissions = app.run_work(cost, move |app| {
        let instruction = instruction.as_deref().unwrap_or(DEFAULT_INSTRUCTION);
        let submission = |(document, query): (&String, &String)| {
            let prompt = app.model.judge_prompt(instruction, query, document)?;
            app.submission("documents", prompt, &fields, key)
        };
        pairs.iter().map(submission).collect::<Result<Vec<_>, ApiError>>()
    });
    let mut submissions = submissions.await?;
    let at_once = single_token::at_once(app, &submissions);
    // The first alone: the others then find the prompt's prefix in the cache.
    let rest = submissions.split_off(submissions.len().min(1));
    let mut judged = Vec::with_capacity(1 + rest.len());
    for first in submissions {
        judged.push(judge(app, first, verdicts).await?);
    }
    let rest: Vec<(f64, u32)> = stream::iter(rest)
        .map(|submission| judge(app, submission, verdicts))
        .buffered(at_once)
        .try_collect()
        .await?;
    judged.extend(rest);
    let prompt_tokens = judged.iter().map(|(_, tokens)| u64::from(*tokens)).sum();
    Ok(PairScores { scores: judged.into_iter().map(|(score, _)| score).collect(), prompt_tokens })
}

/// The score of one prompt, and its number of tokens.
async fn judge(app: &Arc<App>, submission: Submission, verdicts: [Token; 2]) -> Result<(f64, u32), ApiError> {
    let output = single_token::run(app, submission).await?;
    let logprobs = output.logprobs.map(|logprobs| logprobs.top).unwrap_or_default();
    let of = |token| logprobs.iter().find(|(id, _)| *id == token).map(|(_, logprob)| f64::from(*logprob));
    let [Some(yes), Some(no)] = verdicts.map(of) else {
        return Err(ApiError::failed("no probability of the verdict"));
    };
    Ok((1.0 / (1.0 + (no - yes).exp()), output.prompt_tokens))
}
