//! Reads request bodies: JSON only, bounded in size and time, charged to a memory budget shared by
//! all bodies.

use crate::context::request_context::RequestContext;
use crate::error::ApiError;
use crate::http::access::api_keys::Caller;
use crate::http::access::rate_limits::Charge;
use crate::http::app::App;
use crate::http::transport::connection::ReadTimeout;
use crate::memory_budget::{BODIES, HeldMemory};
use crate::request::body;
use crate::request::field::Field;
use crate::work_pool::fair_queue::Cost;
use axum::{
    body::{Body, BodyDataStream, Bytes},
    extract::Request,
    http::{HeaderMap, header},
};
use futures_util::StreamExt;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum body size in bytes.
const MAX_BODY: usize = 32 << 20;
/// Time limit of a whole body, as a multiple of that of one chunk.
const BODY_TIMEOUT_FACTOR: u32 = 10;
/// Size in bytes from which a body is parsed on the work pool.
const LARGE_BODY: usize = 64 << 10;
/// Bytes of an oversized body that are drained before the connection closes.
const MAX_DRAINED: usize = 8 * MAX_BODY;

/// Accepted content types of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ContentTypes {
    /// `application/json`, for which a browser asks the server before it sends another site's
    /// request.
    Json,
    /// Any, as `curl -d` and Ollama's clients send it. From browsers, which send an `origin`, JSON
    /// only.
    Any,
}

/// The API key index and the parsed body of a request, validated against the endpoint's field
/// table. Counts the request toward its key's rate.
///
/// Handlers must drop the body before they wait for the engine, which may take minutes.
pub(crate) async fn read_body(
    app: &App,
    request: Request,
    table: &'static [Field],
) -> Result<(u64, body::Body), ApiError> {
    read_body_as(ContentTypes::Json, app, request, table).await
}

/// [`read_body`] with these content types.
pub(crate) async fn read_body_as(
    types: ContentTypes,
    app: &App,
    request: Request,
    table: &'static [Field],
) -> Result<(u64, body::Body), ApiError> {
    let (head, body) = request.into_parts();
    let key = head.extensions.get::<Caller>().map_or(0, |caller| caller.0);
    check_type(types, &head.headers)?;
    let read_timeout =
        head.extensions.get::<ReadTimeout>().map_or(Duration::MAX, |read_timeout| read_timeout.0);
    let whole = timeout(
        read_timeout.saturating_mul(BODY_TIMEOUT_FACTOR),
        body_bytes(&head.headers, body, read_timeout),
    );
    let (bytes, memory) = whole.await.map_err(|_| ApiError::too_slow())??;
    app.access.charge(key, Charge { requests: 1, tokens: 0 }, app.host.metrics())?;
    let ignored = RequestContext::current().ignored.with_rule(app.rules.unknown_fields);
    if bytes.len() < LARGE_BODY {
        return Ok((key, body::Body::parse(&bytes, table, ignored)?));
    }
    let parse = move || {
        let _memory = memory;
        body::Body::parse(&bytes, table, ignored)
    };
    Ok((key, app.work.run(Cost::Light, parse).await?))
}

/// Reads the whole body. An oversized one is rejected as early as possible.
async fn body_bytes(
    headers: &HeaderMap,
    body: Body,
    read_timeout: Duration,
) -> Result<(Vec<u8>, HeldMemory), ApiError> {
    let content_length =
        headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let mut chunks = body.into_data_stream();
    let (mut memory, mut bytes) = (BODIES.hold(), Vec::new());
    // Pages of the buffer are committed as they are written; without it, the buffer grows by doubling.
    let _ = bytes.try_reserve_exact(content_length.unwrap_or(0).min(MAX_BODY));
    if content_length.unwrap_or(0) <= MAX_BODY {
        loop {
            let Some(chunk) = next_chunk(&mut chunks, read_timeout).await? else {
                return Ok((bytes, memory));
            };
            if bytes.len() + chunk.len() > MAX_BODY {
                break;
            }
            let grows = bytes.capacity() - bytes.len() < chunk.len();
            // While a buffer of unknown length is copied to one of twice its size, both exist.
            memory.grow_to(if grows { 3 * bytes.len() + chunk.len() } else { bytes.len() + chunk.len() })?;
            bytes.extend_from_slice(&chunk);
        }
    }
    // With `expect: 100-continue`, the client gets the response before it sends.
    if !headers.contains_key(header::EXPECT) {
        tokio::spawn(drain(chunks, read_timeout));
    }
    Err(ApiError::too_large(MAX_BODY))
}

async fn next_chunk(chunks: &mut BodyDataStream, read_timeout: Duration) -> Result<Option<Bytes>, ApiError> {
    let chunk = timeout(read_timeout, chunks.next()).await.map_err(|_| ApiError::too_slow())?;
    chunk.transpose().map_err(|error| ApiError::body(format!("the body could not be read: {error}")))
}

/// Drains the rest of a rejected body: a client that is still writing when the connection closes
/// never sees the response.
async fn drain(mut chunks: BodyDataStream, read_timeout: Duration) {
    let mut dropped = 0;
    while let Ok(Some(chunk)) = next_chunk(&mut chunks, read_timeout).await {
        dropped += chunk.len();
        if dropped > MAX_DRAINED {
            return;
        }
    }
}

/// Requires an accepted content type without compression: a decompression bomb would bypass the
/// size limit.
fn check_type(types: ContentTypes, headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let main = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    let wrong = |why| Err(ApiError { status: 415, ..ApiError::body(why) });
    if !matches!(text(header::CONTENT_ENCODING), "" | "identity") {
        return wrong("the body must not be compressed");
    }
    let any = types == ContentTypes::Any && !headers.contains_key(header::ORIGIN);
    if any || main.eq_ignore_ascii_case("application/json") {
        Ok(())
    } else {
        wrong("the content type must be application/json (curl: -H 'content-type: application/json')")
    }
}
