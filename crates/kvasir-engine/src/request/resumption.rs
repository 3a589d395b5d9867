//! `Resumption`: the state of a request that moves to this engine after another has generated a
//! part.
//!
//! A resumed request is in the state of a preempted one: its outputs are part of its tokens and are
//! recomputed, its sampling noise continues at the next position, and its constraint, penalties and
//! stop sequences see the outputs. So it samples the tokens that the other engine would have
//! sampled.
//!
//! Guarded by `tests/resumption.rs`.

use crate::request::timings::Timings;
use kvasir_kv::Token;
use serde::{Deserialize, Serialize};

/// The state of a request that another engine ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resumption {
    /// Outputs so far; none of them met a stop condition.
    pub outputs: Vec<Token>,
    /// Mirostat's `mu` after the outputs, if the request uses Mirostat; it cannot be derived from
    /// the tokens.
    pub mu: Option<f32>,
    /// Timings in the other engine; `admitted` and `finished` are ignored.
    pub timings: Timings,
}
