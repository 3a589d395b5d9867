//! Routes of the server, with their middleware.
//!
//! Outermost first: CORS (`cors`), request context and access log (`request_context`),
//! authentication and host check (`authorize`), rejection of generation by encoders
//! (`reject_generation`).

use crate::error::ApiError;
use crate::http::api::messages::{self, COUNT_TOKENS_PATH, MESSAGES_PATH};
use crate::http::api::responses::{compact, socket, stored};
use crate::http::api::{
    chat, completions, conversations, embeddings, llama_cpp, math, ollama, openapi, pins, replicas, rerank,
    responses, server_info, sessions, slots, status, steps, tokenizers, tokens, web_ui,
};
use crate::http::app::App;
use crate::http::middleware::authorize::authorize;
use crate::http::middleware::cors::cors;
use crate::http::middleware::reject_generation::reject_generation;
use crate::http::middleware::request_context::request_context;
use crate::http::missing_route;
use axum::{
    Router,
    middleware::from_fn_with_state,
    routing::{delete, get, post},
};
use std::sync::Arc;

impl App {
    /// All routes with their middleware.
    pub fn router(self: &Arc<Self>) -> Router {
        let keyed = Router::new()
            .merge(self.generation_routes())
            .route("/openapi.json", get(openapi::openapi))
            .route("/metrics", get(status::metrics))
            .route("/v1/models", get(status::models))
            .route("/v1/models/{id}", get(status::model))
            .route("/v1/embeddings", post(embeddings::embeddings))
            .route("/v1/rerank", post(rerank::rerank))
            .route("/rerank", post(rerank::rerank))
            .route("/v1/reranking", post(rerank::rerank))
            .route("/reranking", post(rerank::rerank))
            .route("/v2/rerank", post(rerank::rerank_cohere))
            .route("/v1/score", post(rerank::score))
            .route("/score", post(rerank::score))
            .route("/v1/pins", get(pins::list).delete(pins::delete_own))
            .route("/v1/pins/{id}", delete(pins::delete))
            .route("/v1/admin/pins", get(pins::list_all).delete(pins::delete_all))
            .route("/v1/admin/pins/{id}", delete(pins::delete_any))
            .route("/v1/admin/replicas", get(replicas::list))
            .route("/v1/admin/replicas/{id}/drain", post(replicas::drain))
            .route("/v1/admin/replicas/{id}/restart", post(replicas::restart))
            .route("/v1/admin/tokenizers", get(tokenizers::list))
            // SGLang's endpoints for external routers.
            .route("/server_info", get(server_info::server_info))
            .route("/get_server_info", get(server_info::server_info))
            .route("/model_info", get(server_info::model_info))
            .route("/get_model_info", get(server_info::model_info))
            .route("/v1/loads", get(server_info::loads))
            // llama.cpp's routes, and OpenAI's for clients whose address lacks the version.
            .route("/models", get(status::models))
            .route("/embeddings", post(embeddings::embeddings))
            .route("/embedding", post(llama_cpp::embedding))
            .route("/props", get(llama_cpp::props))
            .route("/slots", get(slots::list))
            .route("/slots/{id}", post(slots::run_action))
            .route("/api/embed", post(ollama::embed))
            .route("/api/embeddings", post(ollama::embeddings))
            .route("/api/show", post(ollama::models::show))
            .route("/api/tags", get(ollama::models::tags))
            .route("/api/ps", get(ollama::models::ps))
            .route("/api/version", get(ollama::models::version))
            .route("/api/pull", post(ollama::manage::pull))
            .route("/api/create", post(ollama::manage::create))
            .route("/api/copy", post(ollama::manage::copy))
            .route("/api/push", post(ollama::manage::push))
            .route("/api/delete", delete(ollama::manage::delete))
            .route("/tokenize", post(tokens::tokenize))
            .route("/detokenize", post(tokens::detokenize))
            .route("/tokenizer_info", get(tokens::tokenizer_info))
            .route("/v1/engine/steps", get(steps::steps))
            .route("/page/math", post(math::math))
            .fallback(missing_route::no_route)
            .method_not_allowed_fallback(missing_route::wrong_method)
            .layer(from_fn_with_state(self.clone(), authorize))
            .layer(from_fn_with_state(self.clone(), request_context))
            .with_state(self.clone());
        // Without authentication: liveness probes, and the web page, which asks for a key itself.
        let open = Router::new()
            .route("/live", get(async || "live"))
            .route("/ping", get(async || "pong").post(async || "pong"))
            .merge(web_ui::routes());
        let health = Router::new()
            .route("/health", get(status::health))
            .route("/v1/health", get(status::health))
            .route("/ready", get(status::health))
            .route("/version", get(status::version));
        let health = if self.access.open_health {
            health
        } else {
            health.route_layer(from_fn_with_state(self.clone(), authorize))
        };
        let health = health.layer(from_fn_with_state(self.clone(), request_context)).with_state(self.clone());
        let open = open.merge(health);
        open.merge(keyed).layer(from_fn_with_state(self.clone(), cors))
    }

    /// Routes that generate or prepare generation; encoders reject them.
    fn generation_routes(self: &Arc<Self>) -> Router<Arc<Self>> {
        Router::new()
            .route("/v1/chat/completions", post(chat::chat_completions))
            .route("/v1/chat/completions/input_tokens", post(chat::input_tokens))
            .route("/v1/completions", post(completions::text_completions))
            .route("/v1/responses", post(responses::responses_create).get(socket::socket))
            .route("/v1/responses/input_tokens", post(responses::input_tokens))
            .route("/v1/responses/compact", post(compact::compact))
            .route("/v1/responses/{id}/cancel", post(stored::cancel))
            .route("/v1/responses/{id}", get(stored::show).delete(stored::delete))
            .route("/v1/responses/{id}/input_items", get(stored::input_items))
            .route("/v1/conversations", post(conversations::create))
            .route(
                "/v1/conversations/{id}",
                get(conversations::show).post(conversations::update).delete(conversations::delete),
            )
            .route("/v1/conversations/{id}/items", get(conversations::items).post(conversations::add_items))
            .route(
                "/v1/conversations/{id}/items/{item}",
                get(conversations::item).delete(conversations::remove_item),
            )
            .route(MESSAGES_PATH, post(messages::anthropic_messages))
            .route(COUNT_TOKENS_PATH, post(messages::count_tokens))
            .route("/v1/sessions", get(sessions::list).post(sessions::create))
            .route("/v1/sessions/{id}", get(sessions::show).delete(sessions::delete))
            .route("/v1/sessions/{id}/fork", post(sessions::fork))
            .route("/v1/sessions/{id}/rewind", post(sessions::rewind))
            .route("/v1/sessions/{id}/cut", post(sessions::cut))
            .route("/v1/sessions/{id}/keep", post(sessions::keep))
            .route("/chat/completions", post(chat::chat_completions))
            .route("/chat/completions/input_tokens", post(chat::input_tokens))
            .route("/completions", post(completions::text_completions))
            .route("/responses", post(responses::responses_create))
            .route("/completion", post(llama_cpp::completion))
            .route("/infill", post(llama_cpp::infill))
            .route("/apply-template", post(llama_cpp::apply_template))
            .route("/api/chat", post(ollama::chat))
            .route("/api/generate", post(ollama::generate))
            .route_layer(from_fn_with_state(self.clone(), reject_generation))
    }

    /// Routes of the probe listener: `/live`, `/health` and `/ready` without a key, and `/metrics` if
    /// no keys are configured, or under the metrics key.
    pub fn probes(self: &Arc<Self>) -> Router {
        let probes = Router::new()
            .route("/live", get(async || "live"))
            .route("/health", get(status::health))
            .route("/ready", get(status::health));
        let counted = Router::new().route("/metrics", get(status::metrics));
        // The host check applies to metrics, as on the main listener.
        let counted = counted.route_layer(from_fn_with_state(self.clone(), authorize));
        let shows_metrics = self.access.keys.is_empty() || self.access.metrics_key.is_some();
        let probes = if shows_metrics { probes.merge(counted) } else { probes };
        let has = if shows_metrics {
            "this listener has /live, /health, /ready and /metrics only"
        } else {
            "this listener has /live, /health and /ready only"
        };
        let not_found = async move || ApiError::not_found("path", has);
        probes.fallback(not_found).with_state(self.clone())
    }
}
