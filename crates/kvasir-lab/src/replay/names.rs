use super::{Mismatch, compare};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Which of our blocks a case's block ids stand for. Which block is handed out next is free; that a shared or kept block
/// is the same block is not.
#[derive(Debug, Default)]
pub(super) struct BlockNames {
    ours: BTreeMap<u32, u32>,
    /// Tables of the live sequences, in the case's ids and in ours.
    live: BTreeMap<String, (Vec<u32>, Vec<u32>)>,
}

impl BlockNames {
    /// Takes a sequence's table in both languages: its first `hit` blocks, and those that were in it before, must be those that the
    /// case's ids stand for already, if they stand for any; the others may be bound anew where no other live table has them. Ours may be shorter: blocks
    /// that are promised and not handed out have no number. Returns our table in the case's ids; a block that stands for nothing
    /// is written as text.
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

    /// Binds as [`BlockNames::bind`] does; the table as far as we have it must be what the case says.
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

    /// A sequence has let go of its blocks.
    pub(super) fn release(&mut self, seq: &str) {
        self.live.remove(seq);
    }

    /// The case's id for one of our blocks.
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
        assert!(is_met("e", &[7, 8], &[6], 0), "one is promised");
        names.release("b");
        assert!(names.meet("", "f", &json!([2]), &[9], 1).is_ok());
        assert!(names.meet("", "g", &json!([9]), &[9], 0).is_err(), "f has it");
        assert!(names.meet("", "h", &json!([11]), &[11], 1).is_ok(), "a hit on what was never named");
        assert!(names.meet("", "i", &json!([11]), &[12], 1).is_err());
    }
}
