//! Rows of the toy device as bytes: the value of a slot and the prefix that it was computed from.

use crate::toy::Toy;
use crate::toy::shadow::Cell;
use kvasir_exec::KvRows;
use kvasir_kv::Slot;

/// Bytes of a cell: value, token, tag, tag before, and whether it is spoiled.
const BYTES: usize = 8 + 4 + 8 + 8 + 1;

impl KvRows for Toy {
    fn slot_bytes(&self) -> usize {
        BYTES
    }

    fn read(&self, slot: Slot, into: &mut [u8]) {
        let cell = self.slot(0, slot);
        let bytes = (cell.value.to_le_bytes().into_iter())
            .chain(cell.token.to_le_bytes())
            .chain(cell.tag.to_le_bytes())
            .chain(cell.before.to_le_bytes())
            .chain([u8::from(cell.spoiled)]);
        into.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }

    fn write(&mut self, slot: Slot, from: &[u8]) {
        let number = |at: usize, bytes: usize| {
            let part = from.iter().skip(at).take(bytes).rev();
            part.fold(0u64, |number, byte| number << 8 | u64::from(*byte))
        };
        *self.slot_mut(0, slot) = Cell {
            value: number(0, 8),
            token: number(8, 4) as u32,
            tag: number(12, 8),
            before: number(20, 8),
            spoiled: number(28, 1) != 0,
        };
    }
}
