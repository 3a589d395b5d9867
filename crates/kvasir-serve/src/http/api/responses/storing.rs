//! What becomes of a response when it has ended: it is stored, and its items are appended to its
//! conversation.

use crate::http::api::responses::items::identified;
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
    /// In the memory of a connection, until its next response.
    Connection(Arc<ResponseStore>),
}

/// What is needed to store a response when it has ended.
pub(super) struct Storing {
    pub(super) app: Arc<App>,
    pub(super) key: u64,
    pub(super) destination: Destination,
    /// The conversation in front of its input.
    pub(super) before: Conversation,
    pub(super) own_input: Vec<Value>,
    /// Id of the conversation that its items are appended to.
    pub(super) conversation: Option<String>,
}

impl Storing {
    /// Whether something becomes of the response.
    pub(super) fn is_needed(&self) -> bool {
        self.conversation.is_some() || !matches!(self.destination, Destination::None)
    }

    /// Stores a response of background mode that begins.
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
            // It was canceled or deleted.
            return;
        }
        if let Some(id) = conversation {
            let output = response["output"].as_array().into_iter().flatten();
            let items = identified(&app, own_input.iter().chain(output).cloned().collect());
            // A conversation that was deleted meanwhile stays deleted.
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

    /// Stores that a response has failed, which only clients of background mode can read.
    pub(super) fn store_failed(self, response: &Value) {
        if matches!(self.destination, Destination::Background) {
            self.app.responses.complete(self.key, response.clone());
        }
    }
}
