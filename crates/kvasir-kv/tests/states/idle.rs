//! Truncation of idle sequences, such as those retained for a session: they hold no live state.

use crate::Simulation;
use kvasir_kv::{PoolUsage, Position, SeqId};

impl Simulation {
    /// Position of the last checkpoint up to `to` that must exist and that no step in flight
    /// writes.
    pub(crate) fn last_written(&self, seq: SeqId, to: Position) -> Option<Position> {
        let mut in_flight = self.claimed.iter().flat_map(|step| &step.rows).filter(|row| row.seq == seq);
        let retired = in_flight.next().map_or(Position::MAX, |row| row.before.committed);
        let model = &self.seqs[&seq];
        let end = to.min(model.committed).min(retired);
        model.due.iter().rev().find(|at| **at <= end).copied()
    }

    /// Rewinds every sequence to a checkpoint at or below a random length.
    pub(crate) fn rewind_to_checkpoints(&mut self) {
        for seq in self.seqs.keys().copied().collect::<Vec<SeqId>>() {
            let to = self.random.between(0, self.seqs[&seq].end());
            let due = self.last_written(seq, to);
            let len = self.cache.rewind().unwrap().rewind_to_checkpoint(seq, to).unwrap();
            assert!(len <= to && len.is_multiple_of(self.block), "{len} for {to}");
            assert!(!self.is_ample || due.is_none_or(|due| len >= due), "{due:?} is due, {len} for {to}");
            assert_eq!(self.cache.rewind().unwrap().rewind_floor(seq, len), Ok(len));
            self.seqs.get_mut(&seq).unwrap().truncate(len);
        }
        let group = self.cache.shape().groups.states().unwrap();
        let PoolUsage { free, held, leased, .. } = self.cache.usage_of(group);
        assert_eq!((held, free + leased), (0, self.config.live));
    }
}
