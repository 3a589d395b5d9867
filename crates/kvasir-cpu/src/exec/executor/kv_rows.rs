//! Rows of the executor's pool in their stored form. K and V of the draft model, whose pool mirrors
//! the target's, follow those of the target.

use crate::exec::executor::CpuExecutor;
use kvasir_exec::{KvLayout, KvRows, NoKvAccess};
use kvasir_kv::Slot;

impl CpuExecutor {
    /// The layout of its rows; an error if layers have different slots, or if the rows are sharded
    /// over ranks.
    pub(super) fn layout_of_rows(&self) -> Result<KvLayout, NoKvAccess> {
        if self.own.has_rings() {
            return Err(NoKvAccess("sliding-window layers store K and V in ring buffers"));
        }
        if self.window_groups > 0 {
            return Err(NoKvAccess("sliding-window layers have KV pools of their own"));
        }
        if self.ranks.is_some() {
            return Err(NoKvAccess("each rank holds only its shard of K and V"));
        }
        Ok(KvLayout { format: self.kv_format(), slot_bytes: self.slot_bytes() })
    }

    /// Storage type and layers of the pools.
    pub(super) fn kv_format(&self) -> String {
        let own = format!("cpu {} {:?}", self.own.kind(), self.own.facts());
        match &self.drafting {
            Some(drafting) => format!("{own}, draft model: {}", drafting.kv_format()),
            None => own,
        }
    }
}

impl KvRows for CpuExecutor {
    fn slot_bytes(&self) -> usize {
        self.own.token_bytes() + self.drafting.as_ref().map_or(0, |drafting| drafting.drafter.slot_bytes())
    }

    fn read(&self, slot: Slot, into: &mut [u8]) {
        // SAFETY: only this executor writes its pool, and it runs nothing now.
        let rest = unsafe { self.own.copy_out(slot, into) };
        if let Some(drafting) = &self.drafting {
            drafting.drafter.read(slot, rest);
        }
    }

    fn write(&mut self, slot: Slot, from: &[u8]) {
        // SAFETY: as above, and it is borrowed exclusively.
        let rest = unsafe { self.own.copy_in(slot, from) };
        if let Some(drafting) = &mut self.drafting {
            drafting.drafter.write(slot, rest);
        }
    }
}
