//! [`DraftLog`]: a log line for every thousand drafts of speculative decoding, and one for the first
//! step whose draft model failed.

use crate::report::{Level, Reports};
use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::sync::Arc;

/// Drafts between two lines.
const EVERY: u64 = 1000;

/// Reports acceptance while drafts are verified, and the first error of a draft model.
pub(crate) struct DraftLog {
    reports: Arc<Reports>,
    reported: u64,
    has_failed: bool,
}

impl DraftLog {
    pub(crate) fn new(reports: Arc<Reports>) -> Self {
        Self { reports, reported: 0, has_failed: false }
    }
}

impl Observer for DraftLog {
    fn scheduled(&mut self, _: &Core, _: &Step) {}

    fn completed(&mut self, core: &Core, step: &Step, _: &Result<(), StepError>, _: Nanos) {
        if let Some(error) = step.output.draft_error.as_ref().filter(|_| !self.has_failed) {
            self.has_failed = true;
            let fields = vec![("error", error.as_str().into())];
            self.reports.send_server(Level::Warn, "draft model failed: the step has no drafts", fields);
        }
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
