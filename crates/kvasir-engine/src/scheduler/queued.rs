//! `Queued`: a waiting request, as the queue and its orders see it.

/// A queued request: its table entry and the copies of what its order needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queued {
    pub(crate) entry: u32,
    /// Its priority; the largest value for the first arrival when its turn has come.
    pub(crate) priority: i64,
    /// Arrival number.
    pub(crate) number: u64,
    /// Prompt tokens plus the maximum of output tokens.
    pub(crate) cost: i64,
    /// Prompt tokens to feed, and after a preemption the outputs to recompute.
    pub(crate) tokens: u64,
    /// KV slots at its maximum length, in whole blocks.
    pub(crate) slots: u64,
}
