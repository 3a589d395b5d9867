//! Errors for a path or method without a route. They name the route with that function, or say that
//! it is not offered.

use crate::error::ApiError;
use crate::request::endpoints::{ENDPOINTS, Endpoint};
use axum::http::{Method, Uri};

/// Maximum length of a path in an error, in bytes; a longer one is truncated.
const MAX_PATH_BYTES: usize = 120;

/// Routes of other servers, and what to do instead. Of the entries that a path equals or lies
/// below, the longest applies.
const UNSUPPORTED_ROUTES: &[(&str, &str)] = &[
    // OpenAI's.
    ("/v1/audio", "audio is not offered: models read and write text"),
    ("/v1/realtime", "audio is not offered; text streams over POST /v1/responses with `stream`"),
    ("/v1/images", "images are not offered: models read and write text"),
    ("/v1/videos", "videos are not offered: models read and write text"),
    ("/v1/moderations", "there is no moderation model"),
    ("/v1/files", "files are not stored; send texts with the request"),
    ("/v1/uploads", "files are not stored; send texts with the request"),
    ("/v1/batches", "batches are not offered; send the requests concurrently, they run together"),
    (
        "/v1/vector_stores",
        "there is no vector store; POST /v1/embeddings and POST /v1/rerank help to search texts",
    ),
    ("/v1/fine_tuning", "models are not trained here"),
    ("/v1/evals", "evaluations are not offered"),
    ("/v1/assistants", "assistants are not offered; use POST /v1/responses"),
    ("/v1/threads", "threads are not offered; use POST /v1/responses with `previous_response_id`"),
    ("/v1/containers", "the server runs no tools; offer functions in `tools`"),
    ("/v1/skills", "the server runs no tools; offer functions in `tools`"),
    ("/v1/chat/completions", "chat completions are not stored; POST /v1/responses stores its responses"),
    ("/v1/edits", "edits are not offered; use POST /v1/chat/completions"),
    ("/v1/engines", "use POST /v1/completions, with the model in `model`"),
    ("/v1/organization", "organizations are not offered; GET /metrics counts requests and tokens"),
    // Anthropic's.
    (
        "/v1/messages/batches",
        "batches are not offered; send the requests concurrently to POST /v1/messages, they run together",
    ),
    (
        "/v1/complete",
        "text completions of Anthropic are not offered; use POST /v1/messages or POST /v1/completions",
    ),
    // Cohere's.
    ("/v1/chat", "use POST /v1/chat/completions"),
    ("/v2/chat", "use POST /v1/chat/completions"),
    ("/v1/embed", "use POST /v1/embeddings"),
    ("/v2/embed", "use POST /v1/embeddings"),
    // Ollama's.
    ("/api/blobs", "models are not created over HTTP; start `kvasir serve FILE`"),
    // llama.cpp's, vLLM's, SGLang's and text-generation-inference's.
    ("/lora-adapters", "one model is served, without adapters"),
    ("/v1/load_lora_adapter", "one model is served, without adapters"),
    ("/v1/unload_lora_adapter", "one model is served, without adapters"),
    ("/generate", "use POST /completion"),
    ("/generate_stream", "use POST /completion with `stream`"),
    ("/embed", "use POST /v1/embeddings"),
    ("/similarity", "use POST /v1/score"),
    ("/pooling", "use POST /v1/embeddings"),
    ("/classify", "classification is not offered; POST /v1/score compares texts"),
    ("/invocations", "use POST /v1/chat/completions or POST /v1/completions"),
    ("/info", "use GET /v1/models"),
    ("/get_model_info", "use GET /v1/models"),
    ("/model_info", "use GET /v1/models"),
    ("/server_info", "use GET /props"),
    ("/load", "use GET /metrics"),
    ("/healthz", "use GET /health"),
    ("/readyz", "use GET /ready"),
    ("/livez", "use GET /live"),
    ("/docs", "GET /openapi.json describes all routes"),
];

/// The error for an unknown path.
pub(super) async fn no_route(method: Method, uri: Uri) -> ApiError {
    ApiError::not_found("path", explanation(method.as_str(), uri.path()))
}

/// The error for a known path with a method that it does not accept.
pub(super) async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    let path = shortened(uri.path());
    let is_literal = ENDPOINTS.iter().any(|endpoint| endpoint.path == uri.path());
    let is_own = |endpoint: &&Endpoint| {
        let is_same = endpoint.path == uri.path();
        is_same || !is_literal && match_suffix(endpoint, &segments(uri.path())) == Some(true)
    };
    let own = ENDPOINTS.iter().filter(is_own);
    let taken: Vec<String> = own.map(|endpoint| endpoint.method.to_uppercase()).collect();
    let message = format!("`{path}` takes {}, not {method}", taken.join(" and "));
    // The router answers HEAD where it answers GET.
    ApiError::wrong_method(message, taken.join(", ").replace("GET", "GET, HEAD"))
}

fn explanation(method: &str, path: &str) -> String {
    let begin = format!("there is no route `{method} {}`", shortened(path));
    let is_below =
        |other: &str| path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let other =
        UNSUPPORTED_ROUTES.iter().filter(|(other, _)| is_below(other)).max_by_key(|(other, _)| other.len());
    if let Some((_, what)) = other {
        return format!("{begin}: {what}");
    }
    match similar(method, path) {
        Some(Endpoint { method, path, .. }) => {
            format!("{begin}; did you mean `{} {path}`?", method.to_uppercase())
        }
        None => format!("{begin}; GET /openapi.json lists all routes"),
    }
}

/// The endpoint whose path is a suffix of this one, or the reverse: clients are configured with
/// addresses with and without `/v1`. Among equally similar paths, endpoints with this method come
/// first.
fn similar(method: &str, path: &str) -> Option<&'static Endpoint> {
    let requested = segments(path);
    let method = if method == "HEAD" { "GET" } else { method };
    let alike = ENDPOINTS.iter().filter(|endpoint| match_suffix(endpoint, &requested).is_some());
    alike.min_by_key(|endpoint| {
        let distance = endpoint.path.split('/').count().abs_diff(requested.len() + 1);
        (distance, !endpoint.method.eq_ignore_ascii_case(method))
    })
}

fn segments(path: &str) -> Vec<&str> {
    path.split('/').filter(|segment| !segment.is_empty()).collect()
}

/// Compares the paths from their ends. `None` unless all segments of the shorter one match, and one
/// of them is neither a parameter nor `v1`; else whether both have equally many segments.
fn match_suffix(endpoint: &Endpoint, requested: &[&str]) -> Option<bool> {
    let own = segments(endpoint.path);
    let is_parameter = |segment: &str| segment.starts_with('{');
    let mut pairs = own.iter().rev().zip(requested.iter().rev());
    let is_alike = pairs.clone().all(|(own, other)| is_parameter(own) || own.eq_ignore_ascii_case(other));
    let is_named = pairs.any(|(own, _)| !is_parameter(own) && *own != "v1");
    (is_alike && is_named).then_some(own.len() == requested.len())
}

fn shortened(path: &str) -> &str {
    &path[..path.floor_char_boundary(MAX_PATH_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_other_servers_are_explained() {
        for (path, words) in [
            ("/v1/audio/speech", "audio is not offered"),
            ("/v1/chat/completions/chatcmpl-1", "POST /v1/responses stores"),
            ("/v1/messages/batches/1", "POST /v1/messages"),
            ("/v1/complete", "POST /v1/messages"),
            ("/conversations", "`POST /v1/conversations`?"),
            ("/v1/v1/chat/completions", "`POST /v1/chat/completions`?"),
            ("/openai/v1/models", "`GET /v1/models`?"),
            ("/v1/models/", "`GET /v1/models`?"),
            ("/v1/sessions/s1/forks", "GET /openapi.json lists all routes"),
            ("/v1", "GET /openapi.json lists all routes"),
            ("/", "GET /openapi.json lists all routes"),
        ] {
            let text = explanation("POST", path);
            assert!(text.contains(words) && text.contains(path), "{path}: {text}");
        }
        assert!(explanation("GET", &"/x".repeat(10_000)).len() < 300);
        for (method, path, route) in [
            ("GET", "/pins", "`GET /v1/pins`?"),
            ("HEAD", "/pins", "`GET /v1/pins`?"),
            ("DELETE", "/sessions/s1", "`DELETE /v1/sessions/{id}`?"),
            ("PUT", "/sessions/s1", "`GET /v1/sessions/{id}`?"),
        ] {
            let text = explanation(method, path);
            assert!(text.contains(route), "{method} {path}: {text}");
        }
    }

    #[test]
    fn explanations_name_routes_that_exist() {
        for (_, what) in UNSUPPORTED_ROUTES {
            for route in what.split([' ', ',', ';']).filter(|word| word.starts_with('/')) {
                assert!(ENDPOINTS.iter().any(|endpoint| endpoint.path == route), "{route}");
            }
        }
    }
}
