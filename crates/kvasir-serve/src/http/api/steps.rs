//! `GET /v1/engine/steps`: live engine steps as server-sent events, for the web UI's engine view.

use crate::error::ApiError;
use crate::host::step_subscription::{StepSubscription, Visibility};
use crate::http::access::api_keys::{Caller, SeesAll};
use crate::http::answers::sse::{self, event_stream};
use crate::http::app::App;
use crate::http::query::Query;
use axum::{
    Extension,
    extract::{RawQuery, State},
    response::Response,
};
use futures_util::{StreamExt, stream};
use kvasir_engine::StepEvent;
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// Heartbeat interval. The page reports the server as unreachable soon after two missing
/// heartbeats.
const SILENCE: Duration = Duration::from_secs(1);
/// Maximum number of steps per write.
const AT_ONCE: usize = 256;

/// Streams every step of an engine, with the requests of the caller's key or, for an admin, all. With
/// replicas, `replica` names the engine, by default the first. `begin` events carry the configuration
/// and reset the drawing; all others are steps in the trace page's format.
pub(crate) async fn steps(
    State(app): State<Arc<App>>,
    Extension(Caller(key)): Extension<Caller>,
    Extension(SeesAll(sees_all)): Extension<SeesAll>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = Query::parse(query.as_deref());
    query.only(&["replica"], app.rules.unknown_fields)?;
    let replicas = app.host.replicas().map(|replicas| replicas.status().len());
    let replica = match replicas {
        Some(count) => query.integer("replica", 0..=count.saturating_sub(1))?,
        None if query.get("replica").is_some() => {
            let why = "the server has no replicas: its engine runs in its own process";
            return Err(ApiError::param("replica", why));
        }
        None => None,
    };
    let sees = if sees_all { Visibility::All } else { Visibility::Key(key) };
    let replica = replica.unwrap_or(0);
    let subscription = app.live.feed.subscribe_to(sees, replica)?;
    let mut begin = json!({"title": app.model.name, "setup": app.live.setup});
    if let Some(replicas) = replicas {
        (begin["replica"], begin["replicas"]) = (replica.into(), replicas.into());
    }
    let begin = format!("event: begin\n{}", sse::event(&begin.to_string()));
    let first = begin.clone();
    let rest = stream::unfold((subscription, begin), |(mut subscription, begin)| async move {
        let text = written(&mut subscription, &begin).await?;
        Some((text, (subscription, begin)))
    });
    Ok(event_stream(stream::iter([first]).chain(rest)))
}

/// Available events, or a heartbeat; `None` at the end.
async fn written(subscription: &mut StepSubscription, begin: &str) -> Option<String> {
    let Ok(first) = timeout(SILENCE, subscription.next()).await else { return Some(": quiet\n\n".into()) };
    let mut out = written_event(first?, begin);
    for _ in 1..AT_ONCE {
        let Some(next) = subscription.try_next() else { break };
        out.push_str(&written_event(next, begin));
    }
    Some(out)
}

fn written_event(event: StepEvent, begin: &str) -> String {
    match event {
        StepEvent::Begin => begin.to_owned(),
        // Serialization of plain numbers and strings cannot fail.
        StepEvent::Step(step) => sse::event(&serde_json::to_string(&step).unwrap_or_default()),
    }
}
