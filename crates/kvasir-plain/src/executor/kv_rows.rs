//! Rows of the executor's pool as bytes. Behind the target's K and V of a slot come those of the draft
//! model, whose pool mirrors the target's.

use crate::executor::PlainExecutor;
use kvasir_exec::{KvLayout, KvRows, NoKvAccess};
use kvasir_kv::Slot;

impl PlainExecutor {
    /// The layout of its rows; an error if they are spread over ranks.
    pub(super) fn layout_of_rows(&self) -> Result<KvLayout, NoKvAccess> {
        if self.ranks.is_some() {
            return Err(NoKvAccess("each rank holds a part of them"));
        }
        Ok(KvLayout { form: self.form(), slot_bytes: self.slot_bytes() })
    }

    /// Layers of the pools.
    fn form(&self) -> String {
        let own = format!("plain {:?}", self.compiled.program.layers);
        match &self.drafting {
            Some(drafting) => format!("{own}, draft model: {}", drafting.drafter.model().executor.form()),
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
