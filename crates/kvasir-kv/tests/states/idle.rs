//! Truncation of idle sequences, such as those retained for a session: they hold no live state.

use crate::Simulation;
use kvasir_kv::{PoolUsage, SeqId};

impl Simulation {
    /// Rewinds every sequence to a checkpoint at or below a random length.
    pub(crate) fn rewind_to_checkpoints(&mut self) {
        for seq in self.seqs.keys().copied().collect::<Vec<SeqId>>() {
            let model = &self.seqs[&seq];
            let to = self.random.between(0, model.end());
            let due = model.due.iter().rev().find(|at| **at <= to.min(model.committed)).copied();
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
