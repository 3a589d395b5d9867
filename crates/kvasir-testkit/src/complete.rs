//! Offline completion: runs an engine until requests have ended and collects their answers.

use kvasir_engine::{Engine, Refusal, Request, RequestId, Summary, Turn};
use kvasir_exec::Executor;
use kvasir_kv::Token;

/// A request that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Its output tokens.
    pub tokens: Vec<Token>,
    /// Its final statistics.
    pub summary: Summary,
}

/// Completes all `requests`; results are in their order, refusals included. Empties the outbox.
pub fn complete_all<E: Executor>(
    engine: &mut Engine<E>,
    requests: Vec<Request>,
) -> Vec<Result<Completion, Refusal>> {
    let added: Vec<_> = requests.into_iter().map(|request| engine.add_request(request)).collect();
    drain(engine);
    let outbox = engine.core_mut().outbox();
    let completion = |id: RequestId| {
        let events = outbox.iter().filter(|output| output.event.request == id);
        let tokens = events.flat_map(|output| output.tokens).copied().collect();
        Completion { tokens, summary: *outbox.ended.iter().find(|one| one.request == id).unwrap() }
    };
    let completions = added.into_iter().map(|added| added.map(completion)).collect();
    outbox.clear();
    completions
}

/// Completes one request that is not refused.
pub fn complete<E: Executor>(engine: &mut Engine<E>, request: Request) -> Completion {
    complete_all(engine, vec![request]).remove(0).unwrap()
}

/// Runs an engine until no request is left.
pub fn drain<E: Executor>(engine: &mut Engine<E>) {
    while engine.step().unwrap() != Turn::Idle {}
}
