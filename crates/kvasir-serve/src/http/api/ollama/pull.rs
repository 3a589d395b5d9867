//! Progress of a model fetch as Ollama's lines (NDJSON).

use crate::error::ApiError;
use crate::http::answers::sse::streaming_body;
use crate::http::api::ollama::NDJSON;
use crate::http::api::ollama::lines::push;
use crate::http::model_fetcher::{Fetch, FetchedFile};
use axum::{
    Json,
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::{Stream, StreamExt, stream};
use serde_json::{Value, json};

/// The response to a pull of the served model, which fetches nothing.
pub(super) fn already_present(streams: bool) -> Response {
    if !streams {
        return Json(success()).into_response();
    }
    ndjson(stream::iter([text(&[json!({"status": "pulling manifest"}), success()])]))
}

/// The response to a pull: one line per progress report if it streams, else one object at the end.
pub(super) async fn progress(fetch: Fetch, streams: bool) -> Result<Response, ApiError> {
    if !streams {
        fetch.result().await?;
        return Ok(Json(success()).into_response());
    }
    let first = text(&[json!({"status": "pulling manifest"})]);
    let rest = stream::unfold(Some(fetch), |fetch| async move {
        let mut fetch = fetch?;
        if let Some(file) = fetch.next_file().await {
            return Some((text(&[progress_line(&file)]), Some(fetch)));
        }
        let last = match fetch.result().await {
            Ok(name) => text(&[
                json!({"status": format!("{name} is fetched; serve it with: kvasir serve {name}")}),
                success(),
            ]),
            Err(error) => text(&[error.to_ollama()]),
        };
        Some((last, None))
    });
    Ok(ndjson(stream::iter([first]).chain(rest)))
}

fn success() -> Value {
    json!({"status": "success"})
}

fn progress_line(file: &FetchedFile) -> Value {
    let FetchedFile { name, sha256, total, completed } = file;
    let mut line = json!({"status": format!("pulling {name}"), "total": total, "completed": completed});
    if let Some(sha256) = sha256 {
        line["digest"] = format!("sha256:{sha256}").into();
    }
    line
}

fn text(lines: &[Value]) -> String {
    let mut text = String::new();
    lines.iter().for_each(|line| push(&mut text, line));
    text
}

fn ndjson(lines: impl Stream<Item = String> + Send + 'static) -> Response {
    ([(header::CONTENT_TYPE, NDJSON)], streaming_body(lines)).into_response()
}
