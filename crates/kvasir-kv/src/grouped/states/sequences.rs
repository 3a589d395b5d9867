//! `StateSequences`: the states of all sequences, by the primary cache's ids.

use crate::contract::error::CacheError;
use crate::contract::ids::SeqId;
use crate::grouped::states::sequence::StateSequence;

/// The open sequences, by index of their ids.
#[derive(Clone, Debug, Default)]
pub(crate) struct StateSequences(Vec<Option<(SeqId, StateSequence)>>);

impl StateSequences {
    pub(crate) fn open(&mut self, seq: SeqId) {
        if self.0.len() <= seq.index() {
            self.0.resize_with(seq.index() + 1, || None);
        }
        self.0[seq.index()] = Some((seq, StateSequence::default()));
    }

    /// Removes and returns a sequence.
    pub(crate) fn close(&mut self, seq: SeqId) -> Option<StateSequence> {
        let entry = self.0.get_mut(seq.index())?;
        entry.take_if(|(id, _)| *id == seq).map(|(_, sequence)| sequence)
    }

    pub(crate) fn get(&self, seq: SeqId) -> Result<&StateSequence, CacheError> {
        let found = self.0.get(seq.index()).and_then(Option::as_ref).filter(|(id, _)| *id == seq);
        found.map(|(_, sequence)| sequence).ok_or(CacheError::UnknownSequence(seq))
    }

    pub(crate) fn get_mut(&mut self, seq: SeqId) -> Option<&mut StateSequence> {
        let found = self.0.get_mut(seq.index()).and_then(Option::as_mut).filter(|(id, _)| *id == seq);
        found.map(|(_, sequence)| sequence)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut StateSequence> {
        self.0.iter_mut().flatten().map(|(_, sequence)| sequence)
    }

    /// The open sequences with their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &(SeqId, StateSequence)> {
        self.0.iter().flatten()
    }
}
