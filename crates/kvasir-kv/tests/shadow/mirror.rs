//! A mirror of a cache's prefixes, built from its KV events as a router does.

use crate::*;
use kvasir_kv::{KvEvent, Prefix, prefix_hashes};

/// Tenants of the simulation.
const SALTS: [u64; 2] = [0, 1];

#[derive(Default)]
pub(super) struct Mirror {
    /// Parent and tokens of each block by hash.
    blocks: HashMap<u64, (Option<u64>, Vec<Token>)>,
    pub(super) removed: u32,
}

impl Mirror {
    fn apply(&mut self, event: KvEvent) {
        match event {
            KvEvent::BlockStored { hashes, parent, tokens, block_size, salt } => {
                assert!(salt == 0 || parent.is_none() && SALTS.contains(&salt), "{salt}");
                assert_eq!(hashes.len() * block_size as usize, tokens.len());
                let parents = std::iter::once(parent).chain(hashes.iter().copied().map(Some));
                let blocks = tokens.chunks(block_size as usize).map(<[_]>::to_vec);
                for ((&hash, parent), tokens) in hashes.iter().zip(parents).zip(blocks) {
                    assert!(
                        parent.is_none_or(|parent| self.blocks.contains_key(&parent)),
                        "stored too early"
                    );
                    let block = (parent, tokens);
                    // Another block may have the same content.
                    let before = self.blocks.insert(hash, block.clone());
                    assert!(before.is_none_or(|before| before == block), "another block has the hash");
                }
            }
            KvEvent::BlockRemoved { hashes } => {
                for hash in hashes {
                    assert!(self.blocks.remove(&hash).is_some(), "removed without being stored");
                    self.removed += 1;
                }
            }
            KvEvent::CheckpointStored { .. } | KvEvent::CheckpointRemoved { .. } => {
                panic!("no recurrent states")
            }
            KvEvent::AllBlocksCleared => self.blocks.clear(),
        }
    }

    /// Tokens from position 0 to the end of a block.
    fn tokens(&self, hash: u64) -> Vec<Token> {
        let mut chain = vec![];
        let mut at = Some(hash);
        while let Some((parent, tokens)) = at.map(|hash| &self.blocks[&hash]) {
            chain.push(tokens);
            at = *parent;
        }
        chain.into_iter().rev().flatten().copied().collect()
    }
}

impl<I: Index> Simulation<I> {
    /// Takes the events and compares the mirror with what lookups find.
    pub(super) fn compare_mirror(&mut self) {
        let mut events = Vec::new();
        self.cache.take_events(&mut events);
        events.into_iter().for_each(|event| self.mirror.apply(event));
        if !self.config.sharing {
            return assert!(self.mirror.blocks.is_empty());
        }
        let block = self.config.block_size;
        let of = |mirror: &Mirror, tokens: &[Token], salt| {
            let hashes = prefix_hashes(&tokens[..tokens.len() - 1], salt, block);
            block * hashes.take_while(|hash| mirror.blocks.contains_key(hash)).count() as u32
        };
        // Lookups find each prefix of the mirror.
        let hashes: Vec<u64> = self.mirror.blocks.keys().copied().collect();
        for hash in hashes {
            let mut tokens = self.mirror.tokens(hash);
            let is_of_salt = |salt: &u64| prefix_hashes(&tokens, *salt, block).last() == Some(hash);
            let salt = SALTS.into_iter().find(is_of_salt).expect("a hash is that of its tokens");
            tokens.push(0);
            assert_eq!(self.cache.lookup(&tokens, salt).tokens as usize, tokens.len() - 1);
        }
        // The mirror has each prefix that lookups find.
        let sequences = self.seqs.values().filter(|seq| !seq.rows.is_empty());
        let mut prompts: Vec<(Vec<Token>, u64)> =
            sequences.map(|seq| (seq.rows.values().map(|row| row.0).collect(), seq.salt)).collect();
        prompts.push((self.prompt(), 0));
        for (tokens, salt) in prompts {
            assert_eq!(self.cache.lookup(&tokens, salt).tokens, of(&self.mirror, &tokens, salt));
        }
    }
}
