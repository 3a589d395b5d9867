//! Stores a response when it has ended, and appends its items to its conversation.

use crate::http::api::responses::items::with_ids;
use crate::http::app::App;
use crate::session::responses::{BackgroundTask, Conversation, ResponseStore};
use serde_json::Value;
use std::sync::Arc;

/// Where a response is stored.
pub(super) enum Destination {
    /// Nowhere (`store: false`).
    None,
    /// In the store, when it has ended.
    Store,
    /// In the store from its beginning (`background`).
    Background,
    /// In the store of a WebSocket, until its next response.
    Connection(Arc<ResponseStore>),
}

/// The state needed to store a response when it has ended.
pub(super) struct Storing {
    pub(super) app: Arc<App>,
    pub(super) key: u64,
    pub(super) destination: Destination,
    /// The conversation that precedes the request's input.
    pub(super) before: Conversation,
    /// The input items of the request itself.
    pub(super) own_input: Vec<Value>,
    /// Id of the conversation to which the items of the request and the response are appended.
    pub(super) conversation: Option<String>,
}

impl Storing {
    /// Whether the response is stored, or its items appended to a conversation.
    pub(super) fn is_needed(&self) -> bool {
        self.conversation.is_some() || !matches!(self.destination, Destination::None)
    }

    /// Stores a response of background mode, in progress.
    pub(super) fn begin(&mut self, response: Value) -> BackgroundTask {
        let own_input = match self.conversation {
            Some(_) => self.own_input.clone(),
            None => std::mem::take(&mut self.own_input),
        };
        self.app.responses.begin(self.key, &self.before, own_input, response)
    }

    /// Stores a response that has ended.
    pub(super) fn store(self, response: &Value) {
        let Self { app, key, destination, before, own_input, conversation } = self;
        let is_background = matches!(destination, Destination::Background);
        if is_background && !app.responses.complete(key, response.clone()) {
            // The response was canceled or deleted.
            return;
        }
        if let Some(id) = conversation {
            let output = response["output"].as_array().into_iter().flatten();
            let items = with_ids(&app, own_input.iter().chain(output).cloned().collect());
            // Fails if the conversation was deleted or has no room left; it is then unchanged.
            let _ = app.conversations.append(&id, key, items);
        }
        match destination {
            Destination::None | Destination::Background => {}
            Destination::Store => app.responses.insert(key, &before, own_input, response.clone()),
            Destination::Connection(store) => {
                store.insert_only(key, &before, own_input, response.clone());
            }
        }
    }

    /// Stores a failed response of background mode; others are not stored, their clients have the
    /// error.
    pub(super) fn store_failed(self, response: &Value) {
        if matches!(self.destination, Destination::Background) {
            self.app.responses.complete(self.key, response.clone());
        }
    }
}
