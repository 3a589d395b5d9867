//! Store of `/v1/conversations`: named lists of items, to which responses append their input and
//! output.
//!
//! Invariants: a key sees only its own conversations. The store keeps at most [`MAX_CONVERSATIONS`]
//! and about [`MAX_BYTES`], each for [`TTL`] after its last use. When memory is full, the least
//! recently used conversations of the key that holds most of it are dropped first.

use crate::error::ApiError;
use crate::session::responses::Conversation;
use crate::session::shared_memory::SharedMemory;
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum conversations over all keys.
const MAX_CONVERSATIONS: usize = 16384;
/// Maximum conversations of one key.
const MAX_OF_KEY: usize = MAX_CONVERSATIONS / 2;
/// Estimated heap bytes beyond which the least recently used conversations are dropped.
const MAX_BYTES: usize = 256 << 20;
/// Time that an unused conversation is kept.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// A conversation without its items.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ConversationHead {
    /// Unix time of its creation, in seconds.
    pub(crate) created: u64,
    /// The client's own fields.
    pub(crate) metadata: Value,
}

#[derive(Debug)]
struct StoredConversation {
    owner: u64,
    head: ConversationHead,
    items: Conversation,
    used: Instant,
}

/// Conversations by id. Shared by all handlers.
#[derive(Debug, Default)]
pub(crate) struct Conversations {
    by_id: Mutex<HashMap<String, StoredConversation>>,
    memory: Arc<SharedMemory>,
}

impl Conversations {
    /// Stores a conversation under a new id.
    pub(crate) fn insert(&self, owner: u64, id: String, head: ConversationHead, items: Vec<Value>) {
        let mut conversation = Conversation::default();
        conversation.push(owner, items, &self.memory);
        let stored = StoredConversation { owner, head, items: conversation, used: Instant::now() };
        let mut by_id = self.lock();
        by_id.insert(id.clone(), stored);
        self.enforce_limits(&mut by_id, owner, &id);
    }

    /// Creation time and metadata.
    pub(crate) fn head(&self, id: &str, owner: u64) -> Result<ConversationHead, ApiError> {
        self.with(id, owner, |stored| stored.head.clone())
    }

    /// Replaces the metadata; returns the head.
    pub(crate) fn update(&self, id: &str, owner: u64, metadata: Value) -> Result<ConversationHead, ApiError> {
        self.with(id, owner, |stored| {
            stored.head.metadata = metadata;
            stored.head.clone()
        })
    }

    /// A snapshot of the items.
    pub(crate) fn items(&self, id: &str, owner: u64) -> Result<Conversation, ApiError> {
        self.with(id, owner, |stored| stored.items.clone())
    }

    /// Appends items.
    pub(crate) fn append(&self, id: &str, owner: u64, items: Vec<Value>) -> Result<(), ApiError> {
        self.with(id, owner, |stored| stored.items.push(owner, items, &self.memory))?;
        self.enforce_limits(&mut self.lock(), owner, id);
        Ok(())
    }

    /// Removes the item of this id; returns the head.
    pub(crate) fn remove_item(&self, id: &str, owner: u64, item: &str) -> Result<ConversationHead, ApiError> {
        self.with(id, owner, |stored| {
            let is_kept = |kept: &Value| kept["id"] != item;
            let kept: Vec<Value> = stored.items.items().filter(|kept| is_kept(kept)).cloned().collect();
            if kept.len() == stored.items.items().count() {
                return Err(no_item(item));
            }
            stored.items = Conversation::default();
            stored.items.push(owner, kept, &self.memory);
            Ok(stored.head.clone())
        })?
    }

    /// Removes a conversation. Responses that were created in it keep its items.
    pub(crate) fn remove(&self, id: &str, owner: u64) -> Result<(), ApiError> {
        self.with(id, owner, |_| ())?;
        self.lock().remove(id);
        Ok(())
    }

    /// Drops expired conversations, then the least recently used ones except `kept` until number
    /// and memory are within their limits.
    fn enforce_limits(&self, by_id: &mut HashMap<String, StoredConversation>, owner: u64, kept: &str) {
        by_id.retain(|_, stored| stored.used.elapsed() < TTL);
        let oldest = |by_id: &HashMap<String, StoredConversation>, of: Option<u64>| {
            let others = by_id.iter().filter(|(id, _)| *id != kept);
            let others = others.filter(|(_, stored)| of.is_none_or(|owner| stored.owner == owner));
            others.min_by_key(|(_, stored)| stored.used).map(|(id, _)| id.clone())
        };
        loop {
            let of_key = by_id.values().filter(|stored| stored.owner == owner).count();
            let of = match () {
                () if of_key > MAX_OF_KEY => Some(owner),
                () if by_id.len() > MAX_CONVERSATIONS => None,
                () if self.memory.total() > MAX_BYTES => self.memory.largest(),
                () => return,
            };
            let Some(id) = oldest(by_id, of) else { return };
            by_id.remove(&id);
        }
    }

    fn with<T>(
        &self,
        id: &str,
        owner: u64,
        read: impl FnOnce(&mut StoredConversation) -> T,
    ) -> Result<T, ApiError> {
        let mut by_id = self.lock();
        let found = by_id.get_mut(id).filter(|stored| stored.owner == owner && stored.used.elapsed() < TTL);
        let stored = found.ok_or_else(|| {
            let why = format!("there is no conversation `{id}`, or it has expired");
            ApiError::not_found("conversation_id", why)
        })?;
        stored.used = Instant::now();
        Ok(read(stored))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, StoredConversation>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The error for an item that the conversation does not have.
pub(crate) fn no_item(item: &str) -> ApiError {
    ApiError::not_found("item_id", format!("there is no item `{item}` in the conversation"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn head() -> ConversationHead {
        ConversationHead { created: 1, metadata: json!({}) }
    }

    fn ids(store: &Conversations, id: &str) -> Vec<Value> {
        store.items(id, 1).unwrap().items().map(|item| item["id"].clone()).collect()
    }

    #[test]
    fn items_are_appended_and_removed() {
        let store = Conversations::default();
        store.insert(1, "c".into(), head(), vec![json!({"id": "a"}), json!({"id": "b"})]);
        let before = store.items("c", 1).unwrap();
        store.append("c", 1, vec![json!({"id": "d"})]).unwrap();
        store.remove_item("c", 1, "a").unwrap();
        assert_eq!((ids(&store, "c"), before.items().count()), (vec![json!("b"), json!("d")], 2));
        assert_eq!(store.remove_item("c", 1, "a").unwrap_err().status, 404);
        assert_eq!(store.update("c", 1, json!({"x": "y"})).unwrap().metadata, json!({"x": "y"}));
        drop(before);
        store.remove("c", 1).unwrap();
        assert_eq!((store.head("c", 1).unwrap_err().status, store.memory.total()), (404, 0));
    }

    #[test]
    fn other_keys_see_nothing() {
        let store = Conversations::default();
        store.insert(1, "c".into(), head(), Vec::new());
        assert!(store.head("c", 2).is_err() && store.remove("c", 2).is_err() && store.head("c", 1).is_ok());
    }

    #[test]
    fn full_memory_drops_the_least_recently_used() {
        let store = Conversations::default();
        let long = json!({"id": "a", "text": "x".repeat(MAX_BYTES / 4)});
        for id in ["1", "2", "3"] {
            store.insert(1, id.into(), head(), vec![long.clone()]);
        }
        store.head("1", 1).unwrap();
        store.insert(1, "4".into(), head(), vec![long]);
        let kept: Vec<bool> = ["1", "2", "3", "4"].iter().map(|id| store.head(id, 1).is_ok()).collect();
        assert_eq!(kept, [true, false, true, true]);
        assert!(store.memory.total() <= MAX_BYTES);
    }
}
