//! Responses of background mode: a task of the server generates them, whether or not a client is
//! connected.
//!
//! The task appends the events to the log of the stored response, which streams read. It ends with
//! the answer, or when the response is canceled or removed from the store.

use crate::http::answers::reply::KEEP_ALIVE_INTERVAL;
use crate::http::answers::sse;
use crate::http::api::responses::Responses;
use crate::session::event_log::{EventLog, LogPart};
use futures_util::{FutureExt, Stream, StreamExt, stream};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::timeout;

/// Closes the log when it is dropped: when the task completes, is canceled or panics.
struct LogWriter(Arc<EventLog>);

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Stores the response in progress and starts its generation; returns it and its log. `None` if it
/// is not to be stored.
pub(super) fn start(mut response: Responses) -> Option<(Value, Arc<EventLog>)> {
    let first = response.object.response();
    let (log, end) = response.storing.as_mut()?.begin(first.clone());
    let writer = LogWriter(log.clone());
    let mut events = Box::pin(response.events());
    // The events of the beginning are in the log before the response can be canceled.
    if let Some(Some(begun)) = events.next().now_or_never() {
        log.push(&begun);
    }
    tokio::spawn(async move {
        let generate = async {
            while let Some(text) = events.next().await {
                writer.0.push(&text);
            }
        };
        tokio::select! {
            () = generate => {}
            // Resolves when the store drops the sender.
            _ = end => {}
        }
    });
    Some((first, log))
}

/// The events of a log from number `from` on, as they are appended.
pub(super) fn follow(log: Arc<EventLog>, from: usize) -> impl Stream<Item = String> + Send {
    let changes = log.changes();
    stream::unfold((log, changes, from), |(log, mut changes, at)| async move {
        loop {
            // Changes after this point wake the wait below.
            drop(changes.borrow_and_update());
            match log.read(at) {
                LogPart::Events(text, next) => return Some((text, (log, changes, next))),
                LogPart::Closed => return None,
                LogPart::Open => {
                    if timeout(KEEP_ALIVE_INTERVAL, changes.changed()).await.is_err() {
                        return Some((sse::KEEP_ALIVE.into(), (log, changes, at)));
                    }
                }
            }
        }
    })
}

/// The last event of a canceled response.
pub(super) fn canceled_event(number: usize, response: &Value) -> String {
    let mut out = String::new();
    let event = json!({"type": "response.cancelled", "sequence_number": number, "response": response});
    sse::typed(&mut out, &event);
    out
}
