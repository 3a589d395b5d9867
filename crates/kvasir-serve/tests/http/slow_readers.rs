//! Streams that are read late: their backlog arrives whole, in events of bounded size.

use super::server::Server;
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::CacheKind;
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::{thread::sleep, time::Duration};

/// Step time of [`SlowToy`] in milliseconds.
const STEP_MS: u64 = 30;

/// The toy executor with steps of at least [`STEP_MS`].
struct SlowToy(Toy);

impl Executor for SlowToy {
    type Pending = u64;

    fn abilities(&self) -> Abilities {
        self.0.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.0.bind(row, spec);
    }

    fn submit(&mut self, step: Box<Step>) -> Result<u64, Refused> {
        self.0.submit(step)
    }

    fn wait(&mut self, pending: u64) -> (Box<Step>, Result<(), StepError>) {
        sleep(Duration::from_millis(STEP_MS));
        self.0.wait(pending)
    }
}

fn ids(choice: &Value) -> Vec<u64> {
    let ids = choice["token_ids"].as_array();
    ids.into_iter().flatten().map(|id| id.as_u64().unwrap()).collect()
}

#[test]
fn backlogs_arrive_whole_in_events_of_bounded_size() {
    let server = Server::start(CacheKind::Radix, 1000, &[]);
    let mut body = json!({"model": "tiny", "prompt": "hello", "max_tokens": 900, "ignore_eos": true,
        "temperature": 0, "return_token_ids": true});
    let (status, whole) = server.post("/v1/completions", &body);
    assert_eq!(status, 200, "{whole}");
    body["stream"] = true.into();
    let events = server.late_events("/v1/completions", &body);
    let parts: Vec<Vec<u64>> = events.iter().map(|event| ids(&event["choices"][0])).collect();
    assert!(parts.iter().all(|part| part.len() <= 256));
    assert!(parts.iter().any(|part| part.len() > 1), "it was read late");
    assert_eq!((parts.concat().len(), parts.concat()), (900, ids(&whole["choices"][0])));
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(whole["choices"][0]["text"], text);
}

#[test]
fn prefill_progress_is_timed_by_its_steps() {
    let server = Server::on(SlowToy(Toy::new()), CacheKind::Radix, 1000, &[]);
    let body = json!({"prompt": vec![7; 700], "n_predict": 2, "stream": true, "return_progress": true});
    let events = server.late_events("/completion", &body);
    let reports: Vec<&Value> = events.iter().filter_map(|event| event.get("prompt_progress")).collect();
    let last = reports.last().unwrap();
    assert_eq!((&reports[0]["time_ms"], &last["processed"]), (&json!(0), &json!(700)), "{reports:?}");
    // Three chunks of at most 256 tokens, the first of which may begin with the admission.
    assert!(last["time_ms"].as_u64().unwrap() >= 2 * STEP_MS, "{last}");
}
