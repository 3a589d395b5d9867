//! Store of `/v1/conversations`: named lists of items, to which responses append their input and
//! output.
//!
//! Invariants: a key sees only its own conversations. The store keeps at most [`MAX_CONVERSATIONS`]
//! and about [`MAX_BYTES`], each for [`TTL`] after its last use, and a conversation at most
//! [`MAX_OF_CONVERSATION`]. When memory is full, the least recently used conversations of the key
//! that holds most of it are dropped first. Items that stored responses share count, too:
//! insertions that exceed the limit because of them are refused.

use crate::error::ApiError;
use crate::request::body::heap_bytes;
use crate::session::responses::{Conversation, Segment, TABLE_ENTRY};
use crate::session::shared_memory::{HeldBytes, SharedMemory};
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
/// Maximum estimated heap bytes of one conversation.
const MAX_OF_CONVERSATION: usize = MAX_BYTES / 2;
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
    /// Estimated bytes of `items`.
    size: usize,
    used: Instant,
    /// Memory of `head`, of the list of segments and of the table entry.
    overhead: HeldBytes,
}

/// Estimated bytes of a conversation beside its segments.
fn overhead_bytes(head: &ConversationHead, items: &Conversation) -> usize {
    heap_bytes(&head.metadata) + items.list_bytes() + size_of::<StoredConversation>() + TABLE_ENTRY
}

/// Refuses a conversation of more than [`MAX_OF_CONVERSATION`].
fn check_size(bytes: usize) -> Result<(), ApiError> {
    if bytes <= MAX_OF_CONVERSATION {
        return Ok(());
    }
    let why = format!(
        "the items of the conversation would take {bytes} bytes, of at most {MAX_OF_CONVERSATION}; begin a new one"
    );
    Err(ApiError::param("items", why))
}

/// Conversations by id. Shared by all handlers.
#[derive(Debug, Default)]
pub(crate) struct Conversations {
    by_id: Mutex<ById>,
    memory: Arc<SharedMemory>,
}

type ById = HashMap<String, StoredConversation>;

impl Conversations {
    /// Stores a conversation under a new id. May drop others.
    pub(crate) fn insert(
        &self,
        owner: u64,
        id: String,
        head: ConversationHead,
        first: Vec<Value>,
    ) -> Result<(), ApiError> {
        let mut items = Conversation::default();
        if !first.is_empty() {
            items.push(Segment::new(owner, first, &self.memory));
        }
        let size = items.bytes();
        check_size(size)?;
        let overhead = self.memory.hold(owner, overhead_bytes(&head, &items));
        let stored = StoredConversation { owner, head, items, size, used: Instant::now(), overhead };
        let mut by_id = self.lock();
        by_id.insert(id.clone(), stored);
        self.make_room(&mut by_id, owner, &id).inspect_err(|_| drop(by_id.remove(&id)))
    }

    /// Creation time and metadata.
    pub(crate) fn head(&self, id: &str, owner: u64) -> Result<ConversationHead, ApiError> {
        self.with(id, owner, |stored| stored.head.clone())
    }

    /// Replaces the metadata; returns the head.
    pub(crate) fn update(&self, id: &str, owner: u64, metadata: Value) -> Result<ConversationHead, ApiError> {
        self.with(id, owner, |stored| {
            stored.head.metadata = metadata;
            stored.recount(&self.memory);
            stored.head.clone()
        })
    }

    /// A snapshot of the items.
    pub(crate) fn items(&self, id: &str, owner: u64) -> Result<Conversation, ApiError> {
        self.with(id, owner, |stored| stored.items.clone())
    }

    /// Fails if the conversation has no room for items of `bytes` bytes. Counts as a use.
    pub(crate) fn check_room(&self, id: &str, owner: u64, bytes: usize) -> Result<(), ApiError> {
        self.with(id, owner, |stored| check_size(stored.size.saturating_add(bytes)))?
    }

    /// Appends items; may drop other conversations. On error the conversation is unchanged.
    pub(crate) fn append(&self, id: &str, owner: u64, items: Vec<Value>) -> Result<(), ApiError> {
        if items.is_empty() {
            return self.with(id, owner, |_| ());
        }
        let segment = Segment::new(owner, items, &self.memory);
        let mut by_id = self.lock();
        let stored = find(&mut by_id, id, owner)?;
        check_size(stored.size + segment.bytes())?;
        stored.size += segment.bytes();
        stored.overhead.grow(Conversation::LIST_ENTRY);
        stored.items.push(segment);
        let checked = self.make_room(&mut by_id, owner, id);
        if checked.is_err() {
            let stored = find(&mut by_id, id, owner)?;
            stored.items.pop();
            stored.recount(&self.memory);
        }
        checked
    }

    /// Removes the item of this id; returns the head.
    pub(crate) fn remove_item(&self, id: &str, owner: u64, item: &str) -> Result<ConversationHead, ApiError> {
        let mut by_id = self.lock();
        let stored = find(&mut by_id, id, owner)?;
        if !stored.items.remove(owner, |kept| kept["id"] == item, &self.memory) {
            return Err(no_item(item));
        }
        stored.recount(&self.memory);
        let head = stored.head.clone();
        // A response may share the old segment, whose memory then still counts.
        self.enforce_limits(&mut by_id, owner, id);
        Ok(head)
    }

    /// Removes a conversation. Responses that were created in it keep its items.
    pub(crate) fn remove(&self, id: &str, owner: u64) -> Result<(), ApiError> {
        self.with(id, owner, |_| ())?;
        self.lock().remove(id);
        Ok(())
    }

    /// Drops other conversations until `kept` fits the limits. Fails without dropping any if that
    /// would free too little: stored responses may share their items.
    fn make_room(&self, by_id: &mut ById, owner: u64, kept: &str) -> Result<(), ApiError> {
        let others = by_id.iter().filter(|(id, _)| *id != kept);
        let reclaimable = others.map(|(_, other)| other.overhead.bytes() + other.items.reclaimable_bytes());
        if self.memory.total().saturating_sub(reclaimable.sum()) > MAX_BYTES {
            self.check_memory(owner)?;
        }
        self.enforce_limits(by_id, owner, kept);
        self.check_memory(owner)
    }

    /// Refuses growth while memory exceeds its limit and the key holds more than its share.
    fn check_memory(&self, owner: u64) -> Result<(), ApiError> {
        match self.memory.excess(owner, MAX_BYTES) {
            Some(own) => Err(ApiError::too_many(format!(
                "the conversations of this key, and the responses in them, take {own} bytes, of at most \
                 {MAX_BYTES} for all keys: delete some"
            ))),
            None => Ok(()),
        }
    }

    /// Drops expired conversations, then the least recently used ones except `kept` until number
    /// and memory are within their limits.
    fn enforce_limits(&self, by_id: &mut ById, owner: u64, kept: &str) {
        by_id.retain(|_, stored| stored.used.elapsed() < TTL);
        let oldest = |by_id: &ById, of: Option<u64>| {
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
        find(&mut self.lock(), id, owner).map(read)
    }

    fn lock(&self) -> MutexGuard<'_, ById> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredConversation {
    /// Recomputes `size` and `overhead`.
    fn recount(&mut self, memory: &Arc<SharedMemory>) {
        self.size = self.items.bytes();
        self.overhead = memory.hold(self.owner, overhead_bytes(&self.head, &self.items));
    }
}

/// A key's conversation. Counts as a use.
fn find<'a>(by_id: &'a mut ById, id: &str, owner: u64) -> Result<&'a mut StoredConversation, ApiError> {
    let found = by_id.get_mut(id).filter(|stored| stored.owner == owner && stored.used.elapsed() < TTL);
    let stored = found.ok_or_else(|| {
        let why = format!("there is no conversation `{id}`, or it has expired");
        ApiError::not_found("conversation_id", why)
    })?;
    stored.used = Instant::now();
    Ok(stored)
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
        store.insert(1, "c".into(), head(), vec![json!({"id": "a"}), json!({"id": "b"})]).unwrap();
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
        store.insert(1, "c".into(), head(), Vec::new()).unwrap();
        assert!(store.head("c", 2).is_err() && store.remove("c", 2).is_err() && store.head("c", 1).is_ok());
    }

    #[test]
    fn full_memory_drops_the_least_recently_used() {
        let store = Conversations::default();
        let long = json!({"id": "a", "text": "x".repeat(MAX_BYTES / 4)});
        for id in ["1", "2", "3"] {
            store.insert(1, id.into(), head(), vec![long.clone()]).unwrap();
        }
        store.head("1", 1).unwrap();
        store.insert(1, "4".into(), head(), vec![long]).unwrap();
        let kept: Vec<bool> = ["1", "2", "3", "4"].iter().map(|id| store.head(id, 1).is_ok()).collect();
        assert_eq!(kept, [true, false, true, true]);
        assert!(store.memory.total() <= MAX_BYTES);
    }

    #[test]
    fn refused_conversations_drop_no_others() {
        let store = Conversations::default();
        let long = json!({"id": "a", "text": "x".repeat(MAX_BYTES / 4)});
        store.insert(1, "small".into(), head(), vec![json!({"id": "a"})]).unwrap();
        // Snapshots share the items, as stored responses do.
        let shared = ["1", "2", "3"].map(|id| {
            store.insert(1, id.into(), head(), vec![long.clone()]).unwrap();
            store.items(id, 1).unwrap()
        });
        let refused = |long: &Value| store.insert(1, "4".into(), head(), vec![long.clone()]).is_err();
        assert!(refused(&long));
        assert!(["small", "1", "2", "3"].iter().all(|id| store.head(id, 1).is_ok()));
        drop(shared);
        assert!(!refused(&long));
    }

    #[test]
    fn a_conversation_alone_stays_within_the_limits() {
        let store = Conversations::default();
        store.insert(1, "other".into(), head(), Vec::new()).unwrap();
        store.insert(1, "c".into(), head(), Vec::new()).unwrap();
        let long = || vec![json!({"id": "a", "text": "x".repeat(MAX_BYTES / 16)})];
        let appended = (0..20).take_while(|_| store.append("c", 1, long()).is_ok()).count();
        assert!((7..16).contains(&appended) && store.memory.total() <= MAX_BYTES, "{appended}");
        assert!(store.head("other", 1).is_ok(), "a refused append drops nothing");
    }

    #[test]
    fn metadata_and_lists_of_segments_are_counted() {
        let store = Conversations::default();
        let metadata = |bytes: usize| json!({"text": "x".repeat(bytes)});
        store
            .insert(1, "c".into(), ConversationHead { created: 1, metadata: metadata(1 << 20) }, Vec::new())
            .unwrap();
        assert!(store.memory.total() > 1 << 20);
        store.update("c", 1, metadata(2 << 20)).unwrap();
        assert!(store.memory.total() > 2 << 20);
        let before = store.memory.total();
        for _ in 0..1000 {
            store.append("c", 1, vec![json!(1)]).unwrap();
        }
        assert!(store.memory.total() - before > 1000 * (size_of::<Value>() + size_of::<usize>()));
        store.remove("c", 1).unwrap();
        assert_eq!(store.memory.total(), 0);
    }
}
