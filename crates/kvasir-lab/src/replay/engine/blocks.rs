use kvasir_kv::{Plan, PlanRow};
use std::collections::BTreeMap;

/// The block tables of a case beside ours. Which fresh block is handed out is free; what is shared and what stays is not.
#[derive(Debug, Default)]
pub(super) struct BlockMap {
    /// Per sequence, the blocks that the case and we have at each position.
    tables: BTreeMap<String, Vec<(u64, u32)>>,
    /// The newest pairing of a block of the case with one of ours.
    pairs: BTreeMap<u64, u32>,
}

/// The blocks that a row reads, in order.
pub(super) fn blocks_of(plan: &Plan, row: &PlanRow, block: u32) -> Vec<u32> {
    let entries = plan.entries(row).enumerate();
    entries.filter(|(i, _)| (*i as u32).is_multiple_of(block)).map(|(_, (_, slot, _))| slot / block).collect()
}

impl BlockMap {
    /// Forgets a sequence that owns nothing any more.
    pub(super) fn release(&mut self, name: &str) {
        self.tables.remove(name);
    }

    /// Compares the table of `name` with ours, of which the first `hit` blocks were found in the cache. Ours may be shorter:
    /// blocks that are promised and not handed out have no number. Says what differs.
    pub(super) fn meet(
        &mut self,
        name: &str,
        expected: &[u64],
        ours: &[u32],
        hit: usize,
    ) -> Result<(), String> {
        let before = self.tables.remove(name).unwrap_or_default();
        let mut table = Vec::new();
        for (at, (theirs, own)) in expected.iter().zip(ours).enumerate() {
            let paired = self.pairs.get(theirs) == Some(own);
            let kept = before.get(at);
            if kept.is_some_and(|pair| *pair != (*theirs, *own)) {
                return Err(format!("block {at} of {name} has changed"));
            }
            let in_use = |table: &Vec<(u64, u32)>| table.iter().any(|(t, o)| t == theirs || o == own);
            if at < hit && kept.is_none() && !paired {
                return Err(format!("block {at} of {name} should be the one of an earlier hit"));
            }
            if !paired && kept.is_none() && (self.tables.values().any(in_use) || in_use(&table)) {
                return Err(format!("block {at} of {name} is in another table, or should be"));
            }
            self.pairs.retain(|_, paired| paired != own);
            self.pairs.insert(*theirs, *own);
            table.push((*theirs, *own));
        }
        self.tables.insert(name.to_owned(), table);
        Ok(())
    }
}
