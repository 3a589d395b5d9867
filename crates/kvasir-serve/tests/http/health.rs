//! `/health` reports whether requests can be served: failed steps, lost devices, panics and stalled
//! engines.

use super::server::Server;
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::CacheKind;
use kvasir_sim::Toy;
use serde_json::{Value, json};
use std::{panic::resume_unwind, thread, time::Duration};

fn complete(server: &Server) -> (u16, Value) {
    server.post("/v1/completions", &json!({"prompt": [20, 21, 22], "max_tokens": 4, "ignore_eos": true}))
}

#[test]
fn failed_steps_fail_their_requests_only() {
    let mut device = Toy::new();
    device.fail_next(false);
    let server = Server::on(device, CacheKind::Radix, 512, &[]);
    let (status, answer) = complete(&server);
    assert_eq!((status, &answer["error"]["code"]), (500, &"internal_error".into()));
    assert_eq!(server.send("GET", "/health", "", "").0, 200);
    assert_eq!(complete(&server).0, 200);
}

#[test]
fn stopped_engine_is_unhealthy() {
    let mut device = Toy::new();
    device.lose_next();
    let server = Server::on(device, CacheKind::Radix, 512, &[]);
    assert_eq!(server.send("GET", "/health", "", "").0, 200);
    assert!(complete(&server).0 >= 500);
    // Clients receive the error before the engine's thread exits.
    while server.send("GET", "/health", "", "").0 == 200 {}
    let (status, answer) = server.send("GET", "/health", "", "");
    let why = answer["error"]["message"].as_str().unwrap();
    assert!(status == 503 && why.contains("device lost"), "{why}");
    assert_eq!(complete(&server).0, 503);
    assert_eq!(server.send("GET", "/live", "", "").0, 200, "the process is there");
}

/// A device that panics when its first step is waited for.
struct Panicking(Toy);

impl Executor for Panicking {
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

    fn wait(&mut self, _: u64) -> (Box<Step>, Result<(), StepError>) {
        resume_unwind(Box::new("a bug of the device"))
    }
}

#[test]
fn panics_of_the_engine_thread_end_open_answers() {
    for stream in [false, true] {
        let server = Server::on(Panicking(Toy::new()), CacheKind::Radix, 512, &[]);
        let body = json!({"prompt": [20, 21, 22], "max_tokens": 4, "stream": stream});
        // The panic may precede the head of a stream, which then has the error's status.
        let (_, answer) = server.post("/v1/completions", &body);
        assert!(answer.to_string().contains("the engine has stopped"), "{answer}");
        // The exit is known before the answers end.
        let (status, answer) = server.send("GET", "/health", "", "");
        let why = answer["error"]["message"].as_str().unwrap();
        assert!(status == 503 && why.contains("panicked: a bug of the device"), "{why}");
        assert_eq!(complete(&server).0, 503);
    }
}

#[test]
fn hung_step_is_unhealthy_until_it_completes() {
    let mut device = Toy::new();
    let release = device.hang_next();
    let server = Server::watched(device, CacheKind::Radix, 512, &[], Duration::ZERO);
    assert_eq!(server.send("GET", "/health", "", "").0, 200, "nobody waits, however long");
    thread::scope(|scope| {
        let waits = scope.spawn(|| complete(&server));
        while server.send("GET", "/health", "", "").0 == 200 {}
        let (status, answer) = server.send("GET", "/health", "", "");
        let why = answer["error"]["message"].as_str().unwrap();
        assert!(status == 503 && why.contains("1 open answers"), "{why}");
        assert_eq!(server.send("GET", "/live", "", "").0, 200, "the process is there");
        release.send(()).unwrap();
        assert_eq!(waits.join().unwrap().0, 200, "it was late, not lost");
    });
    assert_eq!(server.send("GET", "/health", "", "").0, 200);
}
