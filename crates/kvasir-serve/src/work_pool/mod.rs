//! Thread pool for CPU-bound request work, whose run time depends on client input: JSON of large
//! bodies, templates, tokenization, grammars, formulas.
//!
//! - `fair_queue`: the queue, fair among tenants.
//! - `pool`: its threads, with deadlines and cancellation.
//!
//! The async runtime runs none of this work, so sockets, timers and `/live` never wait for it. Must
//! not know HTTP routes or the engine.

pub(crate) mod fair_queue;
pub(crate) mod pool;
