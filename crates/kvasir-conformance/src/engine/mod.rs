//! Replay runners for the engine core: schedulers, sequences, routing, toy workloads and tables.
//!
//! Also the JSON field helpers shared by these runners.
//!
//! Guarded by `tests/replay_engine.rs`, `tests/replay_tables.rs` and `tests/mutations.rs`.

pub(crate) mod blocks;
pub(crate) mod minisgl_scheduler;
pub(crate) mod minisgl_tables;
pub(crate) mod nano_scheduler;
pub(crate) mod routing;
pub(crate) mod scheduler;
pub(crate) mod sequence;
pub(crate) mod tables;
pub(crate) mod toy_engine;

use crate::case::CaseError;
use crate::outcome::Runner;
use kvasir_engine::Core;
use serde_json::Value;

/// Case kinds of this family.
pub(crate) const KINDS: &[(&str, Runner)] = &[
    ("atom.scheduler", scheduler::run),
    ("atom.sequence", sequence::run),
    ("atom.toy_engine", toy_engine::run),
    ("atom.dp_load_balance", routing::load_balance),
    ("atom.prefill_delayer", routing::prefill_delayer),
    ("atom.function", tables::function),
    ("atom.sampling_params", tables::sampling_params),
    ("atom.fanout", tables::fanout),
    ("atom.request_output", tables::request_output),
    ("minisgl.scheduler", minisgl_scheduler::run),
    ("nano.scheduler", nano_scheduler::run),
    ("minisgl.batch_indices", minisgl_tables::batch_indices),
    ("minisgl.detokenize", minisgl_tables::text),
    ("minisgl.printable", minisgl_tables::text),
    ("minisgl.div_even", minisgl_tables::ranks),
    ("minisgl.sharding", minisgl_tables::ranks),
    ("minisgl.graph_padding", minisgl_tables::graphs),
    ("minisgl.graph_sizes", minisgl_tables::graphs),
    ("minisgl.workload", minisgl_tables::workload),
    ("minisgl.is_greedy", minisgl_tables::sampling),
    ("minisgl.sampling_args", minisgl_tables::sampling),
];

/// Fields that size an allocation, and the upper bound on their values.
const SIZES: [&str; 4] = ["num_blocks", "num_pages", "max_num_seqs", "max_running_req"];
const MOST: u32 = 1 << 20;

/// A non-negative integer field, or `default` where it is absent or null.
fn number(value: &Value, key: &str, default: u32) -> Result<u32, String> {
    match value.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(found) => {
            let most = if SIZES.contains(&key) { MOST } else { u32::MAX };
            let number = found.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= most);
            number.ok_or_else(|| format!("`{key}` must be a number from 0 to {most}, not {found}"))
        }
    }
}

/// A boolean field, or `default` where it is absent.
fn switch(value: &Value, key: &str, default: bool) -> bool {
    value.get(key).and_then(Value::as_bool).unwrap_or(default)
}

/// Parses a list of token ids.
fn tokens(value: &Value) -> Result<Vec<u32>, String> {
    let items = value.as_array().ok_or_else(|| format!("a list of tokens is expected, not {value}"))?;
    let token = |item: &Value| item.as_u64().and_then(|n| u32::try_from(n).ok());
    items.iter().map(|item| token(item).ok_or_else(|| format!("{item} is no token"))).collect()
}

/// The items of a required list field.
fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    value
        .get(key)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| format!("`{key}` must be a list"))
}

/// KV slots neither owned by a sequence nor reserved for one.
fn free_slots(core: &Core) -> u32 {
    let reserved: u32 = core.running().map(|sequence| sequence.reserved()).sum();
    core.cache().usage().available().saturating_sub(reserved)
}

/// Converts a plain error message into an error about `case`.
fn about(case: &crate::case::Case) -> impl Fn(String) -> CaseError + '_ {
    move |why| case.error(why)
}
