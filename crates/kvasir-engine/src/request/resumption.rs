//! What a request has generated in another engine before it continues in this one.
//!
//! A resumed request is in the state of a preempted one: its outputs are part of its tokens and are
//! computed again, its noise continues at the next position, and its constraint, penalties and stop
//! sequences see the outputs. So its tokens are those that the other engine would have sampled.
//!
//! Guarded by `tests/resumption.rs`.

use crate::request::timings::Timings;
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};

/// The state of a request that another engine ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resumption {
    /// Its outputs; none of them ended it.
    pub outputs: Vec<Token>,
    /// Mirostat's `mu` after them, if the request has Mirostat: it does not follow from the tokens.
    pub mu: Option<f32>,
    /// When it arrived, and had its first token. It is admitted anew.
    pub timings: Timings,
}
