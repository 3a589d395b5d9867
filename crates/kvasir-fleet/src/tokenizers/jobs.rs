//! [`Jobs`]: the open jobs of callers, and the process that each is assigned to.
//!
//! Pure state machine. Inputs: jobs, cancellations, results, and starts and losses of processes.
//! Outputs: jobs to send to a process, and results for callers.
//!
//! Invariants: each job gets exactly one result, unless it is canceled. A job is assigned to at
//! most one process. Results of a process that the job is not assigned to are ignored.

#[cfg(test)]
mod tests;

use crate::tokenizers::job::{Outcome, Work};
use kvasir_chat::RemoteTokenizerError;
use std::collections::BTreeMap;

/// Number of processes lost while they ran a job at which the job fails, because it may be the
/// cause.
const MAX_LOSSES: u32 = 5;

/// Receives the result of a job.
pub(super) type Reply = Box<dyn FnOnce(Result<Outcome, RemoteTokenizerError>) + Send>;

struct OpenJob {
    work: Work,
    reply: Reply,
    /// The process that it is assigned to; `None` while it waits for one.
    process: Option<usize>,
    /// Processes that were lost while they ran it.
    losses: u32,
}

/// Jobs of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) is_ready: bool,
    /// Number of assigned jobs.
    pub(super) jobs: u64,
    /// Sum of their weights.
    weight: u64,
    /// Jobs that it has completed.
    pub(super) completed: u64,
}

/// The open jobs.
pub(super) struct Jobs {
    /// By id.
    open: BTreeMap<u64, OpenJob>,
    loads: Vec<Load>,
    /// Whether any job may wait for a process.
    has_waiting: bool,
}

/// A result that a process may not return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongOutcome;

impl Jobs {
    /// No jobs, over `processes` processes, none of which is ready.
    pub(super) fn new(processes: usize) -> Self {
        Self { open: BTreeMap::new(), loads: vec![Load::default(); processes], has_waiting: false }
    }

    pub(super) fn load(&self, process: usize) -> Load {
        self.loads.get(process).copied().unwrap_or_default()
    }

    /// Adds a job under a new id.
    pub(super) fn add(&mut self, id: u64, work: Work, reply: Reply) {
        self.open.insert(id, OpenJob { work, reply, process: None, losses: 0 });
        self.has_waiting = true;
    }

    /// Drops a job without a result. Returns the process that runs it.
    pub(super) fn cancel(&mut self, id: u64) -> Option<usize> {
        let job = self.open.remove(&id)?;
        let process = job.process?;
        self.loads[process].remove(&job.work);
        Some(process)
    }

    /// Assigns each waiting job to the ready process with the least load. Returns the ids of the
    /// jobs that each process gets, in ascending order.
    pub(super) fn assign(&mut self) -> Vec<Vec<u64>> {
        let mut assigned = vec![Vec::new(); self.loads.len()];
        if !std::mem::take(&mut self.has_waiting) {
            return assigned;
        }
        for (id, job) in self.open.iter_mut().filter(|(_, job)| job.process.is_none()) {
            let ready = self.loads.iter_mut().enumerate().filter(|(_, load)| load.is_ready);
            let Some((process, load)) = ready.min_by_key(|(_, load)| (load.weight, load.completed)) else {
                self.has_waiting = true;
                break;
            };
            job.process = Some(process);
            load.jobs += 1;
            load.weight += job.work.weight();
            assigned[process].push(*id);
        }
        assigned
    }

    /// The work of an open job.
    pub(super) fn work(&self, id: u64) -> Option<&Work> {
        self.open.get(&id).map(|job| &job.work)
    }

    /// Handles a result of a process. Fails, without a change, if it cannot be that of the job.
    pub(super) fn complete(&mut self, process: usize, id: u64, outcome: Outcome) -> Result<(), WrongOutcome> {
        // The job was canceled.
        let Some(job) = self.open.get(&id).filter(|job| job.process == Some(process)) else { return Ok(()) };
        if !job.work.matches(&outcome) {
            return Err(WrongOutcome);
        }
        if let Some(job) = self.open.remove(&id) {
            self.loads[process].remove(&job.work);
            self.loads[process].completed += 1;
            (job.reply)(Ok(outcome));
        }
        Ok(())
    }

    /// Fails a job.
    pub(super) fn fail(&mut self, id: u64, why: &str) {
        if let Some(job) = self.open.remove(&id) {
            job.process.into_iter().for_each(|process| self.loads[process].remove(&job.work));
            (job.reply)(Err(RemoteTokenizerError::Unavailable(why.into())));
        }
    }

    /// A process accepts jobs from now on.
    pub(super) fn process_ready(&mut self, process: usize) {
        self.loads[process].is_ready = true;
    }

    /// A process gets no further jobs.
    pub(super) fn stop_using(&mut self, process: usize) {
        self.loads[process].is_ready = false;
    }

    /// A process was lost: its jobs wait for another. A tokenization that has lost too many
    /// processes fails.
    pub(super) fn process_lost(&mut self, process: usize) {
        self.stop_using(process);
        let load = &mut self.loads[process];
        (load.jobs, load.weight) = (0, 0);
        let mut failed = Vec::new();
        for (id, job) in self.open.iter_mut().filter(|(_, job)| job.process == Some(process)) {
            job.process = None;
            self.has_waiting = true;
            job.losses += u32::from(!job.work.is_short());
            if job.losses >= MAX_LOSSES {
                failed.push(*id);
            }
        }
        let why = format!("{MAX_LOSSES} processes have ended while they ran this job");
        failed.into_iter().for_each(|id| self.fail(id, &why));
    }

    /// Fails all jobs.
    pub(super) fn fail_all(&mut self, why: &str) {
        let ids: Vec<u64> = self.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.fail(id, why));
    }
}

impl Load {
    fn remove(&mut self, work: &Work) {
        self.jobs = self.jobs.saturating_sub(1);
        self.weight = self.weight.saturating_sub(work.weight());
    }
}
