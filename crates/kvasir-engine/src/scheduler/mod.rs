//! Decides what runs next: limits, the waiting queue, KV slot accounting, retained sessions, and
//! the policies with the view that they act through.
//!
//! Builds on `request`. Knows no executor and builds no batch.

pub(crate) mod admission;
pub(crate) mod budget;
pub(crate) mod coalescer;
pub(crate) mod defer_reason;
pub(crate) mod fair_queue;
pub(crate) mod fair_share;
pub(crate) mod idle_sequence;
pub(crate) mod invariants;
pub(crate) mod kv_manager;
pub(crate) mod limits;
pub(crate) mod policy;
pub(crate) mod queue;
pub(crate) mod queued;
pub(crate) mod recent_keys;
pub(crate) mod record;
pub(crate) mod requests;
pub(crate) mod retained_sessions;
pub(crate) mod schedule;
pub(crate) mod session_order;
pub(crate) mod share_preemption;
pub(crate) mod slab;
pub(crate) mod state;
pub(crate) mod view;
pub(crate) mod window_admission;
