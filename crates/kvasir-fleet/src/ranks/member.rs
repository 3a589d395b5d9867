//! [`Member`]: one rank of a group, with its collectives.

use crate::ranks::contributions::Contributions;
use crate::ranks::endpoint::Endpoint;
use crate::ranks::layout::Layout;
use crate::ranks::memory::SharedMemory;
use crate::ranks::ring_error::RingError;
use kvasir_exec::{Ranks, StepError};
use std::{fs::File, io};

/// One rank of a group whose memory is shared.
pub struct Member {
    pub(crate) endpoint: Endpoint,
    pub(crate) contributions: Contributions,
}

impl Member {
    /// Creates the memory of a group. Returns rank 0, and the file for the other ranks.
    pub(crate) fn create(ranks: usize) -> io::Result<(Self, File)> {
        let layout = Layout::of(ranks);
        let (memory, file) = SharedMemory::create(layout.words(), layout.lines(), ranks)?;
        Ok((Self::new(memory, layout, 0), file))
    }

    /// Another rank, over the memory that rank 0 has created.
    pub(crate) fn open(file: &File, ranks: usize, rank: usize) -> io::Result<Self> {
        let layout = Layout::of(ranks);
        let memory = SharedMemory::open(file, layout.words(), layout.lines(), ranks)?;
        Ok(Self::new(memory, layout, rank))
    }

    fn new(memory: SharedMemory, layout: Layout, rank: usize) -> Self {
        Self { endpoint: Endpoint::new(memory, layout, rank), contributions: Contributions::new() }
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.endpoint.rank
    }

    /// What an error of the ring means for the step of this rank. Rank 0 runs only steps that the others
    /// can run; another rank aborts those that rank 0 aborts.
    pub(crate) fn step_error(&self, error: &RingError) -> StepError {
        match error {
            RingError::Aborted(0) => StepError::Failed(error.to_string()),
            RingError::Aborted(_) | RingError::Lost(_) | RingError::Garbled { .. } => {
                StepError::Lost(error.to_string())
            }
        }
    }

    /// The result of a step for the other ranks: one that has failed before its first collective is given
    /// up, any other failure ends the group.
    pub(crate) fn settle(&self, result: Result<(), StepError>) -> Result<(), StepError> {
        match result {
            Err(StepError::Failed(_)) if self.contributions.is_aborted() => result,
            Err(StepError::Failed(why) | StepError::OutOfMemory(why)) if self.contributions.has_begun() => {
                let rank = self.rank();
                Err(StepError::Lost(format!("rank {rank} has failed within a step: {why}")))
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

    fn sum(&self, rows: &mut [f32]) -> Result<(), StepError> {
        self.contributions.sum(&self.endpoint, rows).map_err(|error| self.step_error(&error))
    }

    fn join(&self, rows: &[f32], width: usize, all: &mut [f32]) -> Result<(), StepError> {
        let joined = self.contributions.join(&self.endpoint, rows, width, all);
        joined.map_err(|error| self.step_error(&error))
    }

    fn samples(&self) -> bool {
        self.rank() == 0
    }
}
