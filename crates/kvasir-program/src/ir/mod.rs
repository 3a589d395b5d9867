//! The op list and what it names: ops, values, weights, ropes, the KV layout of layers, and
//! recurrent states.
//!
//! Plain data. Knows no config and no checkpoint.

pub(crate) mod activation;
pub(crate) mod collective;
pub(crate) mod elementwise;
pub(crate) mod grouping;
pub(crate) mod hyper_connection;
pub(crate) mod key_pool;
pub(crate) mod layer;
pub(crate) mod lookup;
pub(crate) mod moe;
pub(crate) mod ngram;
pub(crate) mod number_type;
pub(crate) mod op;
pub(crate) mod operands;
pub(crate) mod pooling;
pub(crate) mod print;
pub(crate) mod program;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod state_layout;
pub(crate) mod usage;
pub(crate) mod value;
pub(crate) mod weight;
