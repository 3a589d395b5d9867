//! SGLang's worker endpoints, which external routers read: `/server_info`, `/model_info` and
//! `/v1/loads`.

use crate::error::ApiError;
use crate::http::app::App;
use crate::http::query::Query;
use crate::timestamp::rfc3339;
use axum::{
    Json,
    extract::{RawQuery, State},
};
use kvasir_engine::RankLoad;
use serde_json::{Value, json};
use std::{sync::Arc, time::SystemTime};

/// `GET /server_info`. Lengths and limits are those of one engine.
pub(crate) async fn server_info(State(app): State<Arc<App>>) -> Json<Value> {
    let (metrics, config) = (app.host.metrics(), &app.live.ranks);
    let loads = metrics.rank_loads();
    let capacity = loads.iter().map(|(load, _)| load.capacity).min();
    Json(json!({
        "model_path": app.model.name, "served_model_name": app.model.name,
        "version": env!("CARGO_PKG_VERSION"), "is_embedding": false,
        "tp_size": 1, "pp_size": 1, "dp_size": metrics.ranks(),
        "load_balance_method": config.route.map(|route| route.to_string()),
        "disaggregation_mode": "null",
        "context_length": app.model.facts.max_len, "page_size": metrics.block_size(),
        "max_total_num_tokens": capacity, "max_running_requests": config.max_num_seqs,
        "max_prefill_tokens": config.max_num_batched_tokens,
        // With EAGLE, routers hash token bigrams; the block hashes here are over single tokens.
        "speculative_algorithm": null,
        "kv_events": config.streams.descriptor(metrics.block_size()),
        "timestamp": rfc3339(SystemTime::now()),
        "internal_states": loads_json(&app, loads),
    }))
}

/// `GET /model_info`.
pub(crate) async fn model_info(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({
        "model_path": app.model.name, "tokenizer_path": app.model.name, "is_generation": true,
        "has_image_understanding": false, "has_audio_understanding": false,
        "model_type": app.model.facts.card.family,
    }))
}

/// `GET /v1/loads`: the load of each running engine. Only SGLang's section `core` is included.
pub(crate) async fn loads(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, ApiError> {
    let query = Query::parse(query.as_deref());
    query.only(&["dp_rank", "include", "format"], app.rules.unknown_fields)?;
    if query.get("format").is_some_and(|format| format != "json") {
        return Err(ApiError::param("format", "`format` must be json; /metrics has Prometheus' format"));
    }
    let metrics = app.host.metrics();
    let ranks = metrics.ranks();
    let wanted = query.integer("dp_rank", 0..=ranks - 1)?;
    let loads = metrics.rank_loads().into_iter().filter(|(load, _)| wanted.is_none_or(|w| w == load.rank));
    Ok(Json(json!({
        "timestamp": rfc3339(SystemTime::now()), "version": env!("CARGO_PKG_VERSION"),
        "dp_rank_count": ranks, "loads": loads_json(&app, loads),
    })))
}

/// Loads and prefix cache hit rates in SGLang's format.
fn loads_json(app: &App, loads: impl IntoIterator<Item = (RankLoad, f64)>) -> Vec<Value> {
    loads.into_iter().map(|(load, hit_rate)| load_json(app, load, hit_rate)).collect()
}

fn load_json(app: &App, load: RankLoad, hit_rate: f64) -> Value {
    let RankLoad { rank, running, waiting, used_tokens, capacity } = load;
    json!({
        "dp_rank": rank, "num_running_reqs": running, "num_waiting_reqs": waiting,
        "num_total_reqs": running + waiting, "num_used_tokens": used_tokens,
        "max_total_num_tokens": capacity, "token_usage": used_tokens as f64 / capacity as f64,
        "cache_hit_rate": hit_rate, "max_running_requests": app.live.ranks.max_num_seqs,
    })
}
