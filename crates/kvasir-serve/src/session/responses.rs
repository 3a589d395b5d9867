//! Store of `/v1/responses`: response objects and their conversations, for `previous_response_id`.
//!
//! A conversation is a list of shared segments, one per response: its own input and output. So a
//! chain of responses holds each item once. K/V is not held: a continued conversation finds it in
//! the prefix cache.
//!
//! Invariants: a key sees only its own responses. The store keeps at most [`MAX_RESPONSES`] and
//! about [`MAX_BYTES`], each for [`TTL`]. When memory is full, the oldest responses of the key that holds
//! most of it go first. A response object counts until it is removed, a segment until no conversation
//! has it.

use crate::error::ApiError;
use crate::request::body::heap_bytes;
use crate::session::shared_memory::{HeldBytes, SharedMemory};
use serde_json::Value;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum responses over all keys.
const MAX_RESPONSES: usize = 16384;
/// Maximum responses per key, so that one key cannot push out all others.
const MAX_OF_KEY: usize = MAX_RESPONSES / 2;
/// Estimated heap bytes beyond which the oldest responses are dropped.
const MAX_BYTES: usize = 256 << 20;
/// Time that a response is kept.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Heap bytes of a response's id, in both tables.
const TABLE_ENTRY: usize = 256;

/// Gives back the unused capacity of texts and lists, which grew as the answer did: up to half.
fn shrink(value: &mut Value) {
    match value {
        Value::String(text) => text.shrink_to_fit(),
        Value::Array(items) => {
            items.iter_mut().for_each(shrink);
            items.shrink_to_fit();
        }
        Value::Object(fields) => fields.values_mut().for_each(shrink),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Items that one response adds to its conversation; their memory is counted until drop.
#[derive(Debug)]
struct Segment {
    items: Vec<Value>,
    _bytes: HeldBytes,
}

/// A conversation up to and including a response. Clones share the items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation(Vec<Arc<Segment>>);

impl Conversation {
    /// All items, from the first input on.
    pub(crate) fn items(&self) -> impl Iterator<Item = &Value> {
        self.0.iter().flat_map(|segment| &segment.items)
    }
}

#[derive(Debug)]
struct StoredResponse {
    owner: u64,
    response: Value,
    /// Items of its own input, at the front of its segment.
    own_input: usize,
    conversation: Conversation,
    since: Instant,
    /// The memory of `response`, of the list of segments and of its places in the table.
    _bytes: HeldBytes,
}

/// Responses by id. Shared by all handlers.
#[derive(Debug, Default)]
pub(crate) struct ResponseStore {
    table: Mutex<Table>,
    memory: Arc<SharedMemory>,
}

#[derive(Debug, Default)]
struct Table {
    by_id: HashMap<String, StoredResponse>,
    /// The ids of `by_id`, oldest first.
    order: VecDeque<String>,
}

impl ResponseStore {
    /// Stores a response that continues `before` by its own input and its output.
    pub(crate) fn insert(&self, owner: u64, before: &Conversation, own_input: Vec<Value>, response: Value) {
        let Some(id) = response["id"].as_str().map(str::to_owned) else { return };
        let mut response = response;
        shrink(&mut response);
        let output = response["output"].as_array().cloned().unwrap_or_default();
        let (count, mut items) = (own_input.len(), own_input);
        items.reserve_exact(output.len());
        items.extend(output);
        items.iter_mut().for_each(shrink);
        let hold = |bytes| self.memory.hold(owner, bytes);
        let bytes = items.iter().map(heap_bytes).sum();
        let segment = Arc::new(Segment { items, _bytes: hold(bytes) });
        let mut conversation = before.clone();
        conversation.0.push(segment);
        conversation.0.shrink_to_fit();
        let list = conversation.0.len() * size_of::<Arc<Segment>>();
        let bytes = hold(heap_bytes(&response) + list + size_of::<StoredResponse>() + TABLE_ENTRY);
        let since = Instant::now();
        let stored = StoredResponse { owner, response, own_input: count, conversation, since, _bytes: bytes };
        let mut table = self.table();
        table.by_id.insert(id.clone(), stored);
        table.order.push_back(id);
        self.drop_oldest(&mut table, owner);
    }

    /// Drops expired responses, and the oldest ones while there are too many.
    fn drop_oldest(&self, table: &mut Table, owner: u64) {
        let of_key = table.by_id.values().filter(|stored| stored.owner == owner).count();
        if of_key > MAX_OF_KEY {
            let is_own = |id: &String| table.by_id.get(id).is_some_and(|stored| stored.owner == owner);
            let oldest = table.order.iter().position(is_own).and_then(|at| table.order.remove(at));
            oldest.map(|id| table.by_id.remove(&id));
        }
        while let Some(id) = table.order.front() {
            let keeps = table.by_id.get(id).is_some_and(|oldest| oldest.since.elapsed() < TTL);
            if keeps && table.by_id.len() <= MAX_RESPONSES {
                break;
            }
            let id = table.order.pop_front();
            id.map(|id| table.by_id.remove(&id));
        }
        while self.memory.total() > MAX_BYTES {
            let largest = self.memory.largest();
            let is_of = |id: &String| table.by_id.get(id).is_some_and(|stored| Some(stored.owner) == largest);
            // The response just stored is kept in any case.
            let Some(at) = table.order.iter().position(is_of).filter(|at| at + 1 < table.order.len()) else {
                break;
            };
            let id = table.order.remove(at);
            id.map(|id| table.by_id.remove(&id));
        }
    }

    /// The response object.
    pub(crate) fn get(&self, id: &str, owner: u64) -> Result<Value, ApiError> {
        self.with(id, owner, |stored| stored.response.clone())
    }

    /// The conversation up to and including the response.
    pub(crate) fn conversation(&self, id: &str, owner: u64) -> Result<Conversation, ApiError> {
        self.with(id, owner, |stored| stored.conversation.clone())
    }

    /// Items that the response's request sent.
    pub(crate) fn input(&self, id: &str, owner: u64) -> Result<Vec<Value>, ApiError> {
        self.with(id, owner, |stored| {
            let own = stored.conversation.0.last().map_or(&[][..], |segment| &segment.items);
            own[..stored.own_input].to_vec()
        })
    }

    /// Removes a response. Responses that continue it keep its items.
    pub(crate) fn remove(&self, id: &str, owner: u64) -> Result<(), ApiError> {
        self.with(id, owner, |_| ())?;
        let mut table = self.table();
        table.by_id.remove(id);
        table.order.retain(|kept| kept != id);
        Ok(())
    }

    fn with<T>(&self, id: &str, owner: u64, read: impl FnOnce(&StoredResponse) -> T) -> Result<T, ApiError> {
        let table = self.table();
        let found =
            table.by_id.get(id).filter(|stored| stored.owner == owner && stored.since.elapsed() < TTL);
        found.map(read).ok_or_else(|| {
            ApiError::not_found("response_id", format!("there is no response `{id}`, or it has expired"))
        })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn respond(store: &ResponseStore, id: &str, before: &Conversation, text: &str) {
        let response = json!({"id": id, "output": [{"type": "message", "text": text}]});
        store.insert(1, before, vec![json!({"role": "user", "content": id})], response);
    }

    #[test]
    fn a_chain_holds_each_item_once_and_survives_its_parts() {
        let store = ResponseStore::default();
        respond(&store, "a", &Conversation::default(), "one");
        let first = store.memory.total();
        respond(&store, "b", &store.conversation("a", 1).unwrap(), "two");
        assert_eq!(store.memory.total(), 2 * first + size_of::<Arc<Segment>>(), "its list is longer");
        let items = |id: &str| store.conversation(id, 1).unwrap().items().count();
        assert_eq!((items("a"), items("b"), store.input("b", 1).unwrap().len()), (2, 4, 1));
        store.remove("a", 1).unwrap();
        assert_eq!(items("b"), 4);
        assert_eq!(store.get("a", 1).unwrap_err().status, 404);
        store.remove("b", 1).unwrap();
        assert_eq!(store.memory.total(), 0);
    }

    #[test]
    fn the_whole_response_counts_until_it_is_removed() {
        let store = ResponseStore::default();
        let tools = json!([{"type": "function", "name": "x".repeat(1 << 20)}]);
        let response = json!({"id": "a", "instructions": "y".repeat(1 << 20), "tools": tools, "output": []});
        store.insert(1, &Conversation::default(), Vec::new(), response);
        assert!(store.memory.total() > 2 << 20);
        respond(&store, "b", &store.conversation("a", 1).unwrap(), "two");
        store.remove("a", 1).unwrap();
        assert!(store.memory.total() < 1 << 20, "what continues it keeps its items only");
    }

    #[test]
    fn long_chains_and_unused_capacity_take_no_uncounted_memory() {
        let store = ResponseStore::default();
        let (links, mut before) = (500, Conversation::default());
        for i in 0..links {
            respond(&store, &i.to_string(), &before, "one");
            before = store.conversation(&i.to_string(), 1).unwrap();
        }
        let lists = links * links / 2 * size_of::<Arc<Segment>>();
        assert!(store.memory.total() > lists, "each response has a list of all before it");
        let mut text = String::with_capacity(1 << 20);
        text.push_str("short");
        let response = json!({"id": "grown", "output": []});
        let mut response = response;
        response["text"] = text.into();
        store.insert(1, &Conversation::default(), Vec::new(), response);
        let Value::String(kept) = store.get("grown", 1).unwrap()["text"].take() else { panic!("a text") };
        assert_eq!(kept, "short");
        let table = store.table();
        let Value::String(kept) = &table.by_id["grown"].response["text"] else { panic!("a text") };
        assert!(kept.capacity() < 64);
    }

    #[test]
    fn removed_responses_leave_no_id_behind() {
        let store = ResponseStore::default();
        for i in 0..100 {
            let id = i.to_string();
            respond(&store, &id, &Conversation::default(), "one");
            if i > 0 {
                store.remove(&id, 1).unwrap();
            }
        }
        assert_eq!(store.table().order, ["0"]);
    }

    #[test]
    fn other_keys_see_nothing() {
        let store = ResponseStore::default();
        respond(&store, "a", &Conversation::default(), "one");
        assert!(store.get("a", 2).is_err() && store.remove("a", 2).is_err() && store.get("a", 1).is_ok());
    }

    #[test]
    fn a_key_that_fills_memory_pushes_out_its_own() {
        let store = ResponseStore::default();
        let respond = |owner, id: &str, text: &str| {
            let response = json!({"id": id, "output": [{"type": "message", "text": text}]});
            store.insert(owner, &Conversation::default(), Vec::new(), response);
        };
        respond(2, "other", "short");
        let long = "x".repeat(MAX_BYTES / 8);
        for i in 0..6 {
            respond(1, &i.to_string(), &long);
        }
        assert!(store.get("other", 2).is_ok() && store.get("0", 1).is_err() && store.get("5", 1).is_ok());
    }

    #[test]
    fn the_oldest_go_when_memory_is_full() {
        let store = ResponseStore::default();
        let long = "x".repeat(MAX_BYTES / 8);
        for i in 0..6 {
            respond(&store, &i.to_string(), &Conversation::default(), &long);
        }
        let kept: Vec<bool> = (0..6).map(|i| store.get(&i.to_string(), 1).is_ok()).collect();
        assert!(store.memory.total() <= MAX_BYTES);
        assert_eq!(kept, [false, false, false, true, true, true]);
    }
}
