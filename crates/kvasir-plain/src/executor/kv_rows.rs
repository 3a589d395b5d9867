//! Rows of the executor's pool as bytes. K and V of the draft model, whose pool mirrors the
//! target's, follow those of the target.

use crate::executor::PlainExecutor;
use kvasir_exec::{KvLayout, KvRows, NoKvAccess};
use kvasir_kv::Slot;

impl PlainExecutor {
    /// The layout of its rows; an error if layers have different slots, or if the rows are sharded
    /// over ranks.
    pub(super) fn layout_of_rows(&self) -> Result<KvLayout, NoKvAccess> {
        if self.own.group_count() > 1 {
            return Err(NoKvAccess("sliding-window layers have KV pools of their own"));
        }
        if self.ranks.is_some() {
            return Err(NoKvAccess("each rank holds only its shard of K and V"));
        }
        Ok(KvLayout { format: self.kv_format(), slot_bytes: self.slot_bytes() })
    }

    /// Layers of the pools.
    fn kv_format(&self) -> String {
        let own = format!("plain {:?}", self.compiled.program.layers);
        match &self.drafting {
            Some(drafting) => {
                format!("{own}, draft model: {}", drafting.drafter.model().executor.kv_format())
            }
            None => own,
        }
    }
}

impl KvRows for PlainExecutor {
    fn slot_bytes(&self) -> usize {
        self.own.slot_bytes() + self.drafting.as_ref().map_or(0, |drafting| drafting.drafter.slot_bytes())
    }

    fn read(&self, slot: Slot, into: &mut [u8]) {
        let rest = self.own.copy_out(slot, into);
        if let Some(drafting) = &self.drafting {
            drafting.drafter.read(slot, rest);
        }
    }

    fn write(&mut self, slot: Slot, from: &[u8]) {
        let rest = self.own.copy_in(slot, from);
        if let Some(drafting) = &mut self.drafting {
            drafting.drafter.write(slot, rest);
        }
    }
}
