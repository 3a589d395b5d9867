//! [`Jobs`]: assigns the open jobs of callers to tokenizer processes, by least load.
//!
//! A state machine without I/O. Inputs: jobs, cancellations, results, and starts and losses of
//! processes. Outputs: jobs to send to a process, and results for callers.
//!
//! Invariants: each job gets exactly one result, unless it is canceled. A job is assigned to at
//! most one process. Results of a process that the job is not assigned to are ignored.

#[cfg(test)]
mod tests;

use crate::tokenizers::job::{Outcome, Work};
use kvasir_chat::RemoteTokenizerError;
use std::collections::BTreeMap;

/// Number of lost processes at which a job that was assigned to all of them fails, because it may
/// have caused the losses.
const MAX_LOSSES: u32 = 5;

/// Receives the result of a job.
pub(super) type Reply = Box<dyn FnOnce(Result<Outcome, RemoteTokenizerError>) + Send>;

struct OpenJob {
    work: Work,
    reply: Reply,
    /// The process that the job is assigned to; `None` while it waits for one.
    process: Option<usize>,
    /// Number of processes that were lost while the job was assigned to them.
    losses: u32,
}

/// Load and job counters of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    /// Whether the process accepts jobs.
    pub(super) is_ready: bool,
    /// Number of assigned jobs.
    pub(super) jobs: u64,
    /// Sum of the costs of the assigned jobs.
    cost: u64,
    /// Number of jobs that the process has completed.
    pub(super) completed: u64,
}

/// The open jobs, and the load of each process.
pub(super) struct Jobs {
    /// By id.
    open: BTreeMap<u64, OpenJob>,
    loads: Vec<Load>,
    /// False only if no job waits for a process.
    has_waiting: bool,
}

/// The result does not match the work of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongOutcome;

impl Jobs {
    /// No jobs and `processes` processes, none of which is ready.
    pub(super) fn new(processes: usize) -> Self {
        Self { open: BTreeMap::new(), loads: vec![Load::default(); processes], has_waiting: false }
    }

    pub(super) fn load(&self, process: usize) -> Load {
        self.loads.get(process).copied().unwrap_or_default()
    }

    /// Whether a process is ready and has jobs.
    pub(super) fn has_work(&self, process: usize) -> bool {
        let load = self.load(process);
        load.is_ready && load.jobs > 0
    }

    /// Adds a job under a new id.
    pub(super) fn add(&mut self, id: u64, work: Work, reply: Reply) {
        self.open.insert(id, OpenJob { work, reply, process: None, losses: 0 });
        self.has_waiting = true;
    }

    /// Removes a job without a result. Returns the process that it was assigned to.
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
            let Some((process, load)) = ready.min_by_key(|(_, load)| (load.cost, load.completed)) else {
                self.has_waiting = true;
                break;
            };
            job.process = Some(process);
            load.jobs += 1;
            load.cost += job.work.cost();
            assigned[process].push(*id);
        }
        assigned
    }

    /// The work of an open job.
    pub(super) fn work(&self, id: u64) -> Option<&Work> {
        self.open.get(&id).map(|job| &job.work)
    }

    /// Delivers the result of a job to its caller. Fails, without a change, if the result does not
    /// match the work.
    pub(super) fn complete(&mut self, process: usize, id: u64, outcome: Outcome) -> Result<(), WrongOutcome> {
        // The job was canceled, or assigned to another process.
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

    /// Assigns jobs to a process from now on.
    pub(super) fn process_ready(&mut self, process: usize) {
        self.loads[process].is_ready = true;
    }

    /// Assigns no further jobs to a process.
    pub(super) fn stop_using(&mut self, process: usize) {
        self.loads[process].is_ready = false;
    }

    /// Returns the jobs of a lost process to the queue. A job that is not short fails once
    /// [`MAX_LOSSES`] processes were lost while it was assigned to them.
    pub(super) fn process_lost(&mut self, process: usize) {
        self.stop_using(process);
        let load = &mut self.loads[process];
        (load.jobs, load.cost) = (0, 0);
        let mut failed = Vec::new();
        for (id, job) in self.open.iter_mut().filter(|(_, job)| job.process == Some(process)) {
            job.process = None;
            self.has_waiting = true;
            job.losses += u32::from(!job.work.is_short());
            if job.losses >= MAX_LOSSES {
                failed.push(*id);
            }
        }
        let why = format!("{MAX_LOSSES} tokenizer processes have ended while they ran this job");
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
        self.cost = self.cost.saturating_sub(work.cost());
    }
}
