//! `Queued`: the entry of a waiting request in the queue.

/// A queued request: its index in the request table, and copies of the fields that it is sorted by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) entry: u32,
    /// Its priority; the maximum for the first arrival once ageing has promoted it.
    pub(crate) priority: i64,
    /// Arrival number.
    pub(crate) number: u64,
    /// Prompt tokens plus the maximum number of output tokens.
    pub(crate) cost: i64,
    /// Prompt tokens to feed, and after a preemption the outputs to recompute.
    pub(crate) tokens: u64,
    /// KV slots at its maximum length, in whole blocks.
    pub(crate) slots: u64,
}
