//! The op list and what it names: ops, values, weights, ropes and the KV layout of layers.
//!
//! Plain data. Knows no config and no checkpoint.

pub(crate) mod layer;
pub(crate) mod op;
pub(crate) mod print;
pub(crate) mod program;
pub(crate) mod rope;
pub(crate) mod usage;
pub(crate) mod value;
pub(crate) mod weight;
