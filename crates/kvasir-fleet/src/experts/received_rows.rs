//! [`ReceivedRows`]: the rows of one chunk of an exchange that chose a local expert.

/// Rows that chose a local expert. Keeps its memory between exchanges.
#[derive(Default)]
pub(crate) struct ReceivedRows {
    pub(crate) rows: Vec<f32>,
    /// Local experts of each row; `NO_EXPERT` in place of the others.
    pub(crate) experts: Vec<u32>,
    /// Replica of each row, and its index in the replica's chunk.
    pub(crate) from: Vec<(usize, usize)>,
    /// All experts of one row. Scratch.
    pub(crate) row_experts: Vec<u32>,
}

impl ReceivedRows {
    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.experts.clear();
        self.from.clear();
    }
}
