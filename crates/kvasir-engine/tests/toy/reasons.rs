//! Observer that checks that every sequence left out of a step has a defer reason.

use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::sync::{Arc, Mutex, PoisonError};

/// Queries the reason of every sequence that is not in a step. Stores the first that has none.
#[derive(Clone, Default)]
pub(crate) struct Reasons(Arc<Mutex<Option<String>>>);

impl Reasons {
    pub(crate) fn missing(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks every sequence that has no row in the latest step.
    pub(crate) fn ask(&self, core: &Core, step: Option<&Step>) {
        let rows = step.map_or(&[][..], |step| &step.batch.rows);
        for sequence in core.running().chain(core.waiting()) {
            let id = sequence.id();
            if rows.iter().all(|row| row.request != id.0) && core.reason(id).is_none() {
                let why = format!("request {} is left out for no reason", sequence.tag());
                self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
            }
        }
    }
}

impl Observer for Reasons {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        self.ask(core, Some(step));
    }

    fn completed(&mut self, _: &Core, _: &Step, _: &Result<(), StepError>, _: Nanos) {}
}
