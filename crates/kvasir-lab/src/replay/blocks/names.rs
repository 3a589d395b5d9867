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
    /// Takes a sequence's table in both languages: its first `followed` blocks must be those that the case's ids stand for
    /// already, the others may be bound anew where no other live table has them. Returns our table in the case's ids;
    /// a block that stands for nothing is written as text.
    pub(super) fn bind(&mut self, seq: &str, named: &[u32], table: &[u32], followed: usize) -> Value {
        let others: Vec<_> =
            self.live.iter().filter(|(other, _)| *other != seq).map(|(_, tables)| tables).collect();
        let is_bound = |name: u32, block: u32| {
            others.iter().any(|(names, blocks)| names.contains(&name) || blocks.contains(&block))
        };
        for (&name, &block) in named.iter().zip(table).skip(followed) {
            if self.ours.get(&name) != Some(&block) && !is_bound(name, block) {
                self.ours.retain(|_, ours| *ours != block);
                self.ours.insert(name, block);
            }
        }
        self.live.insert(seq.to_owned(), (named.to_vec(), table.to_vec()));
        table.iter().map(|&block| self.name(Some(block))).collect()
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
