//! `/v1/rerank` and `/v1/score`: similarity of texts by the model's embeddings.
//!
//! A score is the cosine of the two embeddings, -1 to 1. Models made for embeddings rank well by it;
//! others give a rough order.

use crate::error::ApiError;
use crate::http::api::embeddings::{embed_all, similarity};
use crate::http::app::App;
use crate::http::body::read_body;
use crate::request::completions::Prompt;
use crate::request::embeddings::EmbeddingsRequest;
use crate::request::fields::{RERANK, SCORE};
use crate::request::rerank::{RerankRequest, ScoreRequest};
use axum::{Json, extract::Request, extract::State};
use serde_json::{Value, json};
use std::sync::Arc;

/// `POST /v1/rerank`: documents by their similarity to a query, best first.
pub(crate) async fn rerank(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, RERANK).await?;
    let RerankRequest { model, query, documents, top_n, returns_documents } =
        RerankRequest::read(&body.reader())?;
    drop(body);
    let texts = [query].into_iter().chain(documents.iter().cloned());
    let (vectors, tokens) = embed(&app, key, model, texts).await?;
    let (query, documents_of) = vectors.split_first().ok_or_else(|| ApiError::failed("no vector"))?;
    let mut scored: Vec<(usize, f64)> =
        documents_of.iter().map(|vector| similarity(query, vector)).enumerate().collect();
    scored.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    scored.truncate(top_n.unwrap_or(scored.len()));
    let result = |(index, score): (usize, f64)| {
        let mut result = json!({"index": index, "relevance_score": score});
        if returns_documents {
            result["document"] = json!({"text": documents[index]});
        }
        result
    };
    let results: Vec<Value> = scored.into_iter().map(result).collect();
    Ok(Json(json!({
        "id": format!("rerank-{}", app.new_id()), "model": app.model.name, "results": results,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

/// `POST /v1/score`: similarity of pairs of texts; one `text_1` is compared with every `text_2`.
pub(crate) async fn score(State(app): State<Arc<App>>, request: Request) -> Result<Json<Value>, ApiError> {
    let (key, body) = read_body(&app, request, SCORE).await?;
    let ScoreRequest { model, first, second } = ScoreRequest::read(&body.reader())?;
    drop(body);
    let count = first.len();
    let (vectors, tokens) = embed(&app, key, model, first.into_iter().chain(second)).await?;
    let (first, second) = vectors.split_at(count);
    let pairs = second.iter().enumerate().map(|(i, second)| similarity(&first[i % count], second));
    let data = pairs.enumerate().map(|(i, score)| json!({"index": i, "object": "score", "score": score}));
    Ok(Json(json!({
        "id": format!("score-{}", app.new_id()), "object": "list", "model": app.model.name,
        "data": data.collect::<Vec<_>>(), "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    })))
}

async fn embed(
    app: &Arc<App>,
    key: u64,
    model: Option<String>,
    texts: impl Iterator<Item = String>,
) -> Result<(Vec<Vec<f32>>, u64), ApiError> {
    let inputs = texts.map(Prompt::Text).collect();
    embed_all(app, key, EmbeddingsRequest { model, inputs, truncate: true, ..EmbeddingsRequest::default() })
        .await
}
