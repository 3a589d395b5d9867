//! The progress of a fetched model as Ollama's lines.

use crate::error::ApiError;
use crate::http::answers::sse::streamed;
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

/// The response to a pull of the served model: nothing is to be fetched.
pub(super) fn present(streams: bool) -> Response {
    if !streams {
        return Json(success()).into_response();
    }
    ndjson(stream::iter([text(&[json!({"status": "pulling manifest"}), success()])]))
}

/// The response to a pull: a line per report if it streams, else one when the model is here.
pub(super) async fn fetched(fetch: Fetch, streams: bool) -> Result<Response, ApiError> {
    if !streams {
        fetch.result().await?;
        return Ok(Json(success()).into_response());
    }
    let first = text(&[json!({"status": "pulling manifest"})]);
    let rest = stream::unfold(Some(fetch), |fetch| async move {
        let mut fetch = fetch?;
        if let Some(file) = fetch.next_file().await {
            return Some((text(&[line(&file)]), Some(fetch)));
        }
        let last = match fetch.result().await {
            Ok(name) => text(&[
                json!({"status": format!("{name} is here; serve it with: kvasir serve {name}")}),
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

fn line(file: &FetchedFile) -> Value {
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
    ([(header::CONTENT_TYPE, NDJSON)], streamed(lines)).into_response()
}
