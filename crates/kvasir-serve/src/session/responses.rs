//! Store of `/v1/responses`: response objects and their conversations, for `previous_response_id`.
//!
//! A conversation is a list of shared segments, one per response: its own input and output. So a
//! chain of responses holds each item once. K/V is not held: a continued conversation finds it in
//! the prefix cache.
//!
//! A response of background mode is stored when it begins, with its event log, and completed when
//! it ends. Removing or canceling it ends its generation.
//!
//! Invariants: a key sees only its own responses. The store keeps at most [`MAX_RESPONSES`] and
//! about [`MAX_BYTES`], each for [`TTL`]. When memory is full, the oldest responses of the key that
//! holds most of it are dropped first. A response object counts until it is removed, a segment
//! until no conversation has it.

#[cfg(test)]
mod tests;

use crate::error::ApiError;
use crate::request::body::heap_bytes;
use crate::session::event_log::EventLog;
use crate::session::shared_memory::{HeldBytes, SharedMemory};
use serde_json::Value;
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Maximum responses over all keys.
const MAX_RESPONSES: usize = 16384;
/// Maximum responses per key, so that one key cannot push out all others.
const MAX_OF_KEY: usize = MAX_RESPONSES / 2;
/// Estimated heap bytes beyond which the oldest responses are dropped.
const MAX_BYTES: usize = 256 << 20;
/// Time that a response is kept.
const TTL: Duration = Duration::from_secs(24 * 3600);

/// Estimated heap bytes of an id in the tables of a store.
pub(super) const TABLE_ENTRY: usize = 256;

/// Frees the unused capacity of strings and arrays: up to half, since they grew with the answer.
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

/// Estimated bytes of a stored response beside the items of its conversation.
fn stored_bytes(response: &Value, conversation: &Conversation) -> usize {
    heap_bytes(response) + conversation.list_bytes() + size_of::<StoredResponse>() + TABLE_ENTRY
}

/// Items that one response adds to its conversation; their memory is counted until drop.
#[derive(Debug)]
pub(super) struct Segment {
    items: Vec<Value>,
    bytes: HeldBytes,
}

/// A conversation up to and including a response. Clones share the items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation(Vec<Arc<Segment>>);

impl Segment {
    /// Counts the items toward a key.
    pub(super) fn new(owner: u64, items: Vec<Value>, memory: &Arc<SharedMemory>) -> Arc<Self> {
        let bytes = size_of::<Self>() + items.iter().map(heap_bytes).sum::<usize>();
        Arc::new(Self { items, bytes: memory.hold(owner, bytes) })
    }

    /// Estimated bytes of it and its entry in a list of segments.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.bytes() + Conversation::LIST_ENTRY
    }
}

impl Conversation {
    /// Bytes of the list of segments per segment.
    pub(super) const LIST_ENTRY: usize = size_of::<Arc<Segment>>();

    /// Bytes that dropping the conversation frees: those of segments without another owner.
    pub(super) fn reclaimable_bytes(&self) -> usize {
        let unshared = self.0.iter().filter(|segment| Arc::strong_count(segment) == 1);
        unshared.map(|segment| segment.bytes.bytes()).sum()
    }

    /// Appends a segment.
    pub(super) fn push(&mut self, segment: Arc<Segment>) {
        self.0.push(segment);
    }

    /// Removes the last segment.
    pub(super) fn pop(&mut self) {
        self.0.pop();
    }

    /// Removes items; returns whether any was removed. Clones that share a segment keep its items.
    pub(super) fn remove(
        &mut self,
        owner: u64,
        is_removed: impl Fn(&Value) -> bool,
        memory: &Arc<SharedMemory>,
    ) -> bool {
        let mut has_removed = false;
        for segment in self.0.iter_mut().filter(|segment| segment.items.iter().any(&is_removed)) {
            let kept = segment.items.iter().filter(|item| !is_removed(item)).cloned().collect();
            *segment = Segment::new(owner, kept, memory);
            has_removed = true;
        }
        self.0.retain(|segment| !segment.items.is_empty());
        has_removed
    }

    /// Estimated bytes of the items and of the list of segments.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|segment| segment.bytes()).sum()
    }

    /// Estimated bytes of the list of segments, which clones do not share.
    pub(super) fn list_bytes(&self) -> usize {
        self.0.len() * Self::LIST_ENTRY
    }

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
    /// The generation of a response of background mode.
    background: Option<Background>,
    /// The memory of `response`, of the list of segments and of the entries in the table.
    _bytes: HeldBytes,
}

/// Generation in the background. Dropping it ends the task.
#[derive(Debug)]
struct Background {
    log: Arc<EventLog>,
    _task: oneshot::Sender<()>,
}

/// The task's side of [`Background`]: the log, and a receiver that resolves when the task must end.
pub(crate) type BackgroundTask = (Arc<EventLog>, oneshot::Receiver<()>);

/// Status of a response that is being generated.
pub(crate) const IN_PROGRESS: &str = "in_progress";
/// Status of a response that was canceled.
const CANCELED: &str = "cancelled";

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
        self.put(owner, before, own_input, response, None);
    }

    /// An empty store whose memory is counted together with this one's.
    pub(crate) fn sharing_memory(&self) -> Self {
        Self { table: Mutex::default(), memory: self.memory.clone() }
    }

    /// Stores a response and drops all others.
    pub(crate) fn insert_only(
        &self,
        owner: u64,
        before: &Conversation,
        own_input: Vec<Value>,
        response: Value,
    ) {
        *self.table() = Table::default();
        self.insert(owner, before, own_input, response);
    }

    /// Stores a response that is generated in the background from now on.
    pub(crate) fn begin(
        &self,
        owner: u64,
        before: &Conversation,
        own_input: Vec<Value>,
        response: Value,
    ) -> BackgroundTask {
        let log = Arc::new(EventLog::new(owner, &self.memory));
        let (_task, end) = oneshot::channel();
        self.put(owner, before, own_input, response, Some(Background { log: log.clone(), _task }));
        (log, end)
    }

    /// Completes a response of background mode that is still in progress. Returns whether it was.
    pub(crate) fn complete(&self, owner: u64, response: Value) -> bool {
        let mut response = response;
        shrink(&mut response);
        let Some(id) = response["id"].as_str() else { return false };
        let mut table = self.table();
        let Some(stored) = table.by_id.get_mut(id).filter(|stored| stored.is_in_progress()) else {
            return false;
        };
        let own = stored.conversation.0.pop();
        let own_input = own.map_or_else(Vec::new, |segment| {
            // No other conversation shares the segment of a response in progress.
            Arc::try_unwrap(segment).map_or_else(|shared| shared.items.clone(), |segment| segment.items)
        });
        stored.conversation.0.push(self.segment(owner, own_input, &response));
        stored._bytes = self.memory.hold(owner, stored_bytes(&response, &stored.conversation));
        stored.response = response;
        self.drop_oldest(&mut table, owner);
        true
    }

    /// Cancels a response of background mode; one that has ended stays as it is. `event` writes the
    /// last event of its log from its number and the response.
    pub(crate) fn cancel(
        &self,
        id: &str,
        owner: u64,
        event: impl FnOnce(usize, &Value) -> String,
    ) -> Result<Value, ApiError> {
        self.with(id, owner, |_| ())?;
        let mut table = self.table();
        let stored = table.by_id.get_mut(id).ok_or_else(|| no_response(id))?;
        let is_in_progress = stored.is_in_progress();
        let Some(background) = &mut stored.background else {
            let why = "only responses with `background` can be canceled; close the connection of others";
            return Err(ApiError::param("response_id", why));
        };
        if is_in_progress {
            stored.response["status"] = CANCELED.into();
            background.log.end(|number| event(number, &stored.response));
            // Drops the sender, which ends the task.
            background._task = oneshot::channel().0;
        }
        Ok(stored.response.clone())
    }

    fn segment(&self, owner: u64, own_input: Vec<Value>, response: &Value) -> Arc<Segment> {
        let output = response["output"].as_array().cloned().unwrap_or_default();
        let mut items = own_input;
        items.reserve_exact(output.len());
        items.extend(output);
        items.iter_mut().for_each(shrink);
        Segment::new(owner, items, &self.memory)
    }

    fn put(
        &self,
        owner: u64,
        before: &Conversation,
        own_input: Vec<Value>,
        response: Value,
        background: Option<Background>,
    ) {
        let Some(id) = response["id"].as_str().map(str::to_owned) else { return };
        let (count, mut response) = (own_input.len(), response);
        shrink(&mut response);
        let mut conversation = before.clone();
        conversation.0.push(self.segment(owner, own_input, &response));
        conversation.0.shrink_to_fit();
        let _bytes = self.memory.hold(owner, stored_bytes(&response, &conversation));
        let (since, own_input) = (Instant::now(), count);
        let stored = StoredResponse { owner, response, own_input, conversation, since, background, _bytes };
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

    /// The conversation up to and including the response. Fails if the response is in progress,
    /// canceled or failed.
    pub(crate) fn conversation(&self, id: &str, owner: u64) -> Result<Conversation, ApiError> {
        self.with(id, owner, |stored| match stored.response["status"].as_str() {
            Some(status @ (IN_PROGRESS | CANCELED | "failed")) => {
                let why = format!("response `{id}` is `{status}`: it has no answer to continue");
                Err(ApiError::param("response_id", why))
            }
            _ if stored.response.get("session").is_some() => {
                let why = format!("response `{id}` is part of a session: continue the session");
                Err(ApiError::param("response_id", why))
            }
            _ => Ok(stored.conversation.clone()),
        })?
    }

    /// The event log of a response of background mode.
    pub(crate) fn log(&self, id: &str, owner: u64) -> Result<Option<Arc<EventLog>>, ApiError> {
        self.with(id, owner, |stored| stored.background.as_ref().map(|background| background.log.clone()))
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
        found.map(read).ok_or_else(|| no_response(id))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoredResponse {
    fn is_in_progress(&self) -> bool {
        self.response["status"] == IN_PROGRESS
    }
}

fn no_response(id: &str) -> ApiError {
    ApiError::not_found("response_id", format!("there is no response `{id}`, or it has expired"))
}
