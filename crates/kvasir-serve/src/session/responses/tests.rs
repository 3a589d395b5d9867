//! Tests of the response store: shared items, background responses, owners, memory.

use crate::session::event_log::LogPart;
use crate::session::responses::*;
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
    let mut response = json!({"id": "grown", "output": []});
    response["text"] = text.into();
    store.insert(1, &Conversation::default(), Vec::new(), response);
    let table = store.table();
    let Value::String(kept) = &table.by_id["grown"].response["text"] else { panic!("a text") };
    assert!(kept == "short" && kept.capacity() < 64);
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

fn begin(store: &ResponseStore) -> BackgroundTask {
    let response = json!({"id": "a", "status": IN_PROGRESS, "output": []});
    store.begin(1, &Conversation::default(), vec![json!({"role": "user"})], response)
}

#[test]
fn a_background_response_is_completed_once() {
    let store = ResponseStore::default();
    let (log, mut end) = begin(&store);
    assert!(store.conversation("a", 1).is_err(), "there is no answer yet");
    let done = json!({"id": "a", "status": "completed", "output": [{"type": "message"}]});
    assert!(store.complete(1, done.clone()) && !store.complete(1, done.clone()));
    assert_eq!((store.get("a", 1).unwrap(), store.input("a", 1).unwrap().len()), (done, 1));
    assert_eq!(store.conversation("a", 1).unwrap().items().count(), 2);
    assert!(end.try_recv() == Err(oneshot::error::TryRecvError::Empty));
    // An ended response is not canceled.
    assert_eq!(store.cancel("a", 1, |_, _| String::new()).unwrap()["status"], "completed");
    drop(log);
    store.remove("a", 1).unwrap();
    assert_eq!((end.try_recv(), store.memory.total()), (Err(oneshot::error::TryRecvError::Closed), 0));
}

#[test]
fn a_canceled_response_ends_its_task_and_log() {
    let store = ResponseStore::default();
    let (log, mut end) = begin(&store);
    log.push("data: 0\n\n");
    let canceled = store.cancel("a", 1, |number, response| format!("{number} {}\n\n", response["status"]));
    assert_eq!(canceled.unwrap()["status"], CANCELED);
    assert_eq!(end.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    assert_eq!(log.read(1), LogPart::Events("1 \"cancelled\"\n\n".into(), 2));
    assert!(!store.complete(1, json!({"id": "a", "status": "completed", "output": []})));
    assert!(store.conversation("a", 1).is_err());
    respond(&store, "b", &Conversation::default(), "x");
    assert!(store.cancel("b", 1, |_, _| String::new()).is_err(), "it is not of background mode");
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
