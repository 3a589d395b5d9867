//! Reconstructs a row's block table from its plan entries.

use kvasir_kv::{Plan, PlanRow};

/// The blocks that a row reads, in position order. `block` is the block size in slots.
pub(crate) fn blocks_of(plan: &Plan, row: &PlanRow, block: u32) -> Vec<u32> {
    let entries = plan.entries(row).enumerate();
    entries.filter(|(i, _)| (*i as u32).is_multiple_of(block)).map(|(_, (_, slot, _))| slot / block).collect()
}
