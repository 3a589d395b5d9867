//! Counts the work of a step for the roofline model: tokens, sampled rows, KV entries read and
//! written, query-key pairs.
//!
//! With static shapes the padded sizes count instead.

use crate::rectangle::StaticShape;
use kvasir_exec::{BatchRow, Step};
use kvasir_kv::PlanRow;

/// The work of one step.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// Rows, tokens that they feed, and tokens at which they sample.
    pub(crate) rows: f64,
    pub(crate) tokens: f64,
    pub(crate) sampled: f64,
    /// KV entries read and written, and visible pairs of query and key (`seen`).
    pub(crate) read: f64,
    pub(crate) written: f64,
    pub(crate) seen: f64,
}

impl Load {
    /// Counts the work of a step; with `shape`, of the step padded to it.
    pub(crate) fn of(step: &Step, shape: Option<StaticShape>) -> Self {
        let mut load = Self::default();
        for (row, planned) in step.batch.rows.iter().zip(&step.plan.rows) {
            load.add_row(row, planned, shape);
        }
        load
    }

    /// Adds a row of a step; with `shape`, padded to it.
    pub(crate) fn add_row(&mut self, row: &BatchRow, planned: &PlanRow, shape: Option<StaticShape>) {
        let (mut fed, mut read) = (row.tokens.len, planned.read_len);
        if let Some(StaticShape { block, chunk, .. }) = shape {
            read = (read.div_ceil(block.max(1)) + planned.left_pad_blocks) * block;
            fed = if fed > 1 { chunk } else { fed };
        }
        let sampled = row.tokens.len.saturating_sub(row.sample_from);
        self.add(f64::from(fed), f64::from(sampled), f64::from(read));
    }

    /// Adds a row that feeds `fed` tokens, samples at `sampled` of them and reads `read` KV entries.
    pub(crate) fn add(&mut self, fed: f64, sampled: f64, read: f64) {
        self.rows += 1.0;
        self.tokens += fed;
        self.sampled += sampled;
        self.read += read;
        self.written += fed;
        self.seen += fed * (read - (fed - 1.0) / 2.0).max(1.0);
    }
}
