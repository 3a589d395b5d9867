//! Maps recorded block ids to our block ids, so that block tables compare up to renaming.

use crate::compare::{Mismatch, compare};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A partial bijection from a case's block ids to ours.
///
/// The allocation order of fresh blocks is not compared. Shared and retained blocks must keep their
/// identity.
#[derive(Debug, Default)]
pub(crate) struct BlockNames {
    ours: BTreeMap<u32, u32>,
    /// Block tables of live sequences: the case's ids and ours.
    live: BTreeMap<String, (Vec<u32>, Vec<u32>)>,
}

impl BlockNames {
    /// Binds a sequence's block table and returns our table in the case's ids.
    ///
    /// The first `hit` blocks and all earlier table entries must map to the blocks already bound to
    /// their ids. Other entries may be rebound unless another live table contains the id or the
    /// block. `table` may be shorter than `named`: reserved blocks have no id yet. A block bound to
    /// no id is returned as text.
    pub(super) fn bind(&mut self, seq: &str, named: &[u32], table: &[u32], hit: usize) -> Value {
        let before = self.live.get(seq).map_or(0, |(_, table)| table.len());
        let others: Vec<_> =
            self.live.iter().filter(|(other, _)| *other != seq).map(|(_, tables)| tables).collect();
        let is_bound = |name: u32, block: u32| {
            others.iter().any(|(names, blocks)| names.contains(&name) || blocks.contains(&block))
        };
        for (i, (&name, &block)) in named.iter().zip(table).enumerate() {
            let is_new = !self.ours.contains_key(&name) && self.ours.values().all(|ours| *ours != block);
            let may_change = i >= before.max(hit) && !is_bound(name, block);
            if is_new || self.ours.get(&name) != Some(&block) && may_change {
                self.ours.retain(|_, ours| *ours != block);
                self.ours.insert(name, block);
            }
        }
        self.live.insert(seq.to_owned(), (named.to_vec(), table.to_vec()));
        table.iter().map(|&block| self.name(Some(block))).collect()
    }

    /// Binds like [`BlockNames::bind`] and compares the known part of our table with `wanted`.
    pub(super) fn meet(
        &mut self,
        at: &str,
        seq: &str,
        wanted: &Value,
        table: &[u32],
        hit: usize,
    ) -> Result<(), Box<Mismatch>> {
        let ids =
            wanted.as_array().into_iter().flatten().map(|id| id.as_u64().map_or(u32::MAX, |id| id as u32));
        let named: Vec<u32> = ids.collect();
        let ours = self.bind(seq, &named, table, hit);
        compare(at, &json!(named.get(..table.len()).unwrap_or(&named)), &ours)
    }

    /// Removes a sequence's table after its blocks were released.
    pub(super) fn release(&mut self, seq: &str) {
        self.live.remove(seq);
    }

    /// The case's id of one of our blocks; text if it has none.
    pub(super) fn name(&self, block: Option<u32>) -> Value {
        let name = self.ours.iter().find(|(_, ours)| Some(**ours) == block);
        match (name, block) {
            (Some((name, _)), _) => json!(name),
            (None, Some(block)) => json!(format!("our block {block}")),
            (None, None) => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_blocks_may_be_renamed_and_others_may_not() {
        let mut names = BlockNames::default();
        let mut is_met = |seq: &str, named: &[u32], table: &[u32], hit| {
            names.meet("", seq, &json!(named), table, hit).is_ok()
        };
        assert!(is_met("a", &[0, 1], &[5, 4], 0));
        assert!(is_met("b", &[0, 2], &[5, 9], 1), "a hit is the block that it was");
        assert!(!is_met("c", &[0, 3], &[4, 7], 1));
        assert!(!is_met("a", &[0, 1, 6], &[5, 8, 4], 0), "what was in a table stays there");
        assert!(!is_met("d", &[2], &[3], 0), "b has that one");
        assert!(is_met("e", &[7, 8], &[6], 0), "one is reserved");
        names.release("b");
        assert!(names.meet("", "f", &json!([2]), &[9], 1).is_ok());
        assert!(names.meet("", "g", &json!([9]), &[9], 0).is_err(), "f has it");
        assert!(names.meet("", "h", &json!([11]), &[11], 1).is_ok(), "a hit on what was never named");
        assert!(names.meet("", "i", &json!([11]), &[12], 1).is_err());
    }
}
