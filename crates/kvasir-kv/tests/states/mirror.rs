//! A mirror of the prefix hits of a cache with recurrent states, built from its KV events as a
//! router does: a hit ends at the last block of the chain that has a checkpoint.

use crate::Simulation;
use kvasir_kv::{KvEvent, Token, prefix_hashes};
use std::collections::HashSet;

#[derive(Default)]
pub(crate) struct Mirror {
    blocks: HashSet<u64>,
    checkpoints: HashSet<u64>,
}

impl Mirror {
    fn apply(&mut self, event: KvEvent) {
        match event {
            KvEvent::BlockStored { hashes, .. } => self.blocks.extend(hashes),
            KvEvent::BlockRemoved { hashes } => hashes.iter().for_each(|hash| _ = self.blocks.remove(hash)),
            KvEvent::CheckpointStored { hash } => {
                assert!(self.checkpoints.insert(hash), "stored twice");
            }
            KvEvent::CheckpointRemoved { hash } => {
                assert!(self.checkpoints.remove(&hash), "removed without being stored");
            }
            KvEvent::AllBlocksCleared => *self = Self::default(),
        }
    }

    /// Length of the hit of a prompt that begins with these tokens.
    fn hit(&self, tokens: &[Token], salt: u64, block: u32) -> u32 {
        let chain = prefix_hashes(tokens, salt, block).take_while(|hash| self.blocks.contains(hash));
        let ends = (1..).zip(chain).filter(|(_, hash)| self.checkpoints.contains(hash));
        ends.last().map_or(0, |(count, _)| count * block)
    }
}

impl Simulation {
    /// Takes the events and compares the mirror with what lookups find.
    pub(crate) fn compare_mirror(&mut self) {
        let Some(mirror) = &mut self.mirror else { return };
        let mut events = Vec::new();
        let prefix = self.cache.prefix().unwrap();
        prefix.take_events(&mut events);
        events.into_iter().for_each(|event| mirror.apply(event));
        for model in self.seqs.values() {
            let mut tokens = model.tokens.clone();
            let expected = mirror.hit(&tokens, model.salt, self.block);
            tokens.push(0);
            assert_eq!(prefix.lookup(&tokens, model.salt).tokens, expected);
            self.mirrored_hits += expected;
        }
    }
}
