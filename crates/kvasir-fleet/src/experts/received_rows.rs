//! [`ReceivedRows`]: the rows of one exchanged chunk that have a local expert.

/// Where a received row comes from.
#[derive(Clone, Copy)]
pub(crate) struct RowSource {
    pub(crate) replica: usize,
    /// Index of the row in the replica's chunk.
    pub(crate) row: usize,
}

/// Buffers of received rows, reused between exchanges.
#[derive(Default)]
pub(crate) struct ReceivedRows {
    /// Values of all rows, concatenated.
    pub(crate) rows: Vec<f32>,
    /// Expert ids of each row; `NO_EXPERT` replaces those of other replicas.
    pub(crate) experts: Vec<u32>,
    /// Source of each row.
    pub(crate) sources: Vec<RowSource>,
    /// Scratch: all expert ids of one row.
    pub(crate) row_experts: Vec<u32>,
}

impl ReceivedRows {
    /// Removes all rows.
    pub(crate) fn clear(&mut self) {
        self.rows.clear();
        self.experts.clear();
        self.sources.clear();
    }
}
