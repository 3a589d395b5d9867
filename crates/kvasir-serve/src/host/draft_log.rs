//! [`DraftLog`]: a log line for every thousand drafts of speculative decoding.

use crate::report::{Level, Reports};
use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::sync::Arc;

/// Drafts between two lines.
const EVERY: u64 = 1000;

/// Reports acceptance while drafts are verified.
pub(crate) struct DraftLog {
    reports: Arc<Reports>,
    reported: u64,
}

impl DraftLog {
    pub(crate) fn new(reports: Arc<Reports>) -> Self {
        Self { reports, reported: 0 }
    }
}

impl Observer for DraftLog {
    fn scheduled(&mut self, _: &Core, _: &Step) {}

    fn completed(&mut self, core: &Core, _: &Step, _: &Result<(), StepError>, _: Nanos) {
        let stats = core.draft_stats();
        if stats.tokens / EVERY > self.reported {
            self.reported = stats.tokens / EVERY;
            let (accepted, _) = stats.totals();
            let per_step = 1.0 + accepted as f64 / stats.verified.max(1) as f64;
            self.reports.send_server(
                Level::Info,
                "drafts verified",
                vec![
                    ("drafted", stats.tokens.into()),
                    ("accepted", accepted.into()),
                    ("tokens_per_step", ((per_step * 100.0).round() / 100.0).into()),
                ],
            );
        }
    }
}
