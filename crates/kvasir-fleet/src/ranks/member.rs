//! [`Member`]: one rank of a group; implements [`Ranks`] over shared memory.
//!
//! It also maps ring errors to step errors, and propagates a failed step to the group.

use crate::ranks::contributions::Contributions;
use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::Layout;
use crate::ranks::memory::SharedMemory;
use crate::ranks::ring_error::RingError;
use kvasir_exec::{Ranks, StepError};
use std::{fs::File, io};

/// One rank of a tensor-parallel group.
pub struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) contributions: Contributions,
}

impl Member {
    /// Creates the shared memory of a group. Returns rank 0, and the memory file for the other
    /// ranks.
    pub(crate) fn create(ranks: usize) -> io::Result<(Self, File)> {
        let layout = Layout::of(ranks);
        let (memory, file) = SharedMemory::create(layout.words(), layout.lines(), ranks)?;
        Ok((Self::new(memory, layout, 0), file))
    }

    /// Opens the shared memory that rank 0 has created, as another rank.
    pub(crate) fn open(file: &File, ranks: usize, rank: usize) -> io::Result<Self> {
        let layout = Layout::of(ranks);
        let memory = SharedMemory::open(file, layout.words(), layout.lines(), ranks)?;
        Ok(Self::new(memory, layout, rank))
    }

    fn new(memory: SharedMemory, layout: Layout, rank: usize) -> Self {
        Self { endpoint: Endpoint::new(memory, layout, rank), contributions: Contributions::new() }
    }

    /// Index of this rank.
    pub fn rank(&self) -> usize {
        self.endpoint.rank
    }

    /// Converts a ring error. An abort by rank 0 fails only the step; an abort by another rank is
    /// [`StepError::Lost`], since rank 0 has already begun the step.
    pub(crate) fn step_error(&self, error: &RingError) -> StepError {
        match error {
            RingError::Aborted(0) => StepError::Failed(error.to_string()),
            RingError::Aborted(_) | RingError::Lost(_) | RingError::OutOfStep { .. } => {
                StepError::Lost(error.to_string())
            }
        }
    }

    /// Propagates the result of a step to the group. A failure before the first collective aborts
    /// the step on all ranks; a later one is [`StepError::Lost`], which ends the group.
    pub(crate) fn finish_step(&self, result: Result<(), StepError>) -> Result<(), StepError> {
        match result {
            Err(StepError::Failed(_)) if self.contributions.is_aborted() => result,
            Err(StepError::Failed(why) | StepError::OutOfMemory(why))
                if self.contributions.has_called_collective() =>
            {
                let rank = self.rank();
                Err(StepError::Lost(format!(
                    "rank {rank} failed after the first collective of a step: {why}"
                )))
            }
            Err(error @ (StepError::Failed(_) | StepError::OutOfMemory(_))) => {
                self.contributions.abort(&self.endpoint).map_err(|error| self.step_error(&error))?;
                Err(error)
            }
            result => result,
        }
    }
}

impl Ranks for Member {
    fn count(&self) -> usize {
        self.endpoint.layout.ranks
    }

    fn all_reduce(&self, rows: &mut [f32]) -> Result<(), StepError> {
        self.contributions.all_reduce(&self.endpoint, rows).map_err(|error| self.step_error(&error))
    }

    fn all_gather(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError> {
        let gathered = self.contributions.all_gather(&self.endpoint, rows, width, all);
        gathered.map_err(|error| self.step_error(&error))
    }

    fn samples(&self) -> bool {
        self.rank() == 0
    }
}
