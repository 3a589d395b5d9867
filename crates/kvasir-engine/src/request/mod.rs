//! A request and what becomes of it: ids, parameters, the stop rule, finish reasons, the sequence
//! of tokens with its drafts, and events with the outbox.
//!
//! Knows no scheduler, cache state or step.

pub(crate) mod event;
pub(crate) mod finish;
pub(crate) mod gaps;
pub(crate) mod ids;
pub(crate) mod kv_transfer;
pub(crate) mod params;
pub(crate) mod prefix_match;
pub(crate) mod proposal;
pub(crate) mod resumption;
pub(crate) mod sequence;
pub(crate) mod stop;
pub(crate) mod timings;
