//! `GET /v1/engine/steps`: the steps of the engine as server-sent events.

use super::{App, event_stream, sse};
use crate::{ApiError, Sight, Sights};
use axum::{extract::State, response::Response};
use futures_util::{StreamExt, stream};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// Pause between two heartbeats. The page takes a server for unreachable soon after the second one
/// that is missing.
const SILENCE: Duration = Duration::from_secs(1);

/// Steps put into one write at most.
const AT_ONCE: usize = 256;

/// Every step of the engine as it happens, as server-sent events. `begin` says what runs and starts the drawing anew; the
/// others are steps as the trace page knows them.
pub(super) async fn steps(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let sights = app.live.watch.begin()?;
    let setup = json!({"title": app.model.name, "setup": app.live.setup}).to_string();
    let begin = format!("event: begin\n{}", sse::event(&setup));
    let first = begin.clone();
    let rest = stream::unfold((sights, begin), |(mut sights, begin)| async move {
        let text = written(&mut sights, &begin).await?;
        Some((text, (sights, begin)))
    });
    Ok(event_stream(stream::iter([first]).chain(rest)))
}

/// What there is to see now, or a sign of life.
async fn written(sights: &mut Sights, begin: &str) -> Option<String> {
    let Ok(first) = timeout(SILENCE, sights.next()).await else { return Some(": quiet\n\n".into()) };
    let mut out = sight(first?, begin);
    for _ in 1..AT_ONCE {
        let Some(next) = sights.ready() else { break };
        out.push_str(&sight(next, begin));
    }
    Some(out)
}

fn sight(sight: Sight, begin: &str) -> String {
    match sight {
        Sight::Begin => begin.to_owned(),
        // Numbers and words only: it cannot fail.
        Sight::Step(step) => sse::event(&serde_json::to_string(&step).unwrap_or_default()),
    }
}
