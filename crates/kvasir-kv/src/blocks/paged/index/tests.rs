//! Unit tests of `HashIndex`, with a constant hash where collisions matter.

use crate::blocks::paged::index::*;
use crate::shared::tail_buffered::TailBuffered;

/// A hash under which all blocks collide.
fn constant_hash(_: Option<u64>, _: &[Token], _: &mut Vec<u64>) -> u64 {
    7
}

fn index(blocks: u32, hash: HashFn) -> HashIndex {
    let config = BlockConfig { block_size: 2, blocks, ..BlockConfig::default() };
    HashIndex::with_hash(&config, hash).unwrap()
}

/// Takes blocks for `tokens`, publishes them, and returns them.
fn publish(index: &mut HashIndex, tokens: &[Token], salt: u64) -> Vec<BlockId> {
    let mut table = Vec::new();
    index.take_all(tokens.len() as u32 / 2, |run| table.extend(run));
    let offered = TailBuffered::new(table.clone());
    index.publish(Offer { table: &offered, tokens, salt, from: 0 }, &mut Vec::new());
    table
}

fn find(index: &mut HashIndex, tokens: &[Token], salt: u64) -> Vec<BlockId> {
    let mut found = Vec::new();
    index.find(tokens, salt, u32::MAX, &mut found);
    found
}

#[test]
fn a_collision_never_gives_another_prefix() {
    let mut index = index(16, constant_hash);
    let a = publish(&mut index, &[1, 1, 7, 7], 0);
    let b = publish(&mut index, &[2, 2, 7, 7, 8, 8], 0);
    let other_tenant = publish(&mut index, &[1, 1, 7, 7], 5);
    // The second blocks and all hashes are equal; the preceding tokens are not.
    assert_eq!(find(&mut index, &[1, 1, 7, 7, 8, 8], 0), a);
    assert_eq!(find(&mut index, &[2, 2, 7, 7, 8, 8], 0), b);
    assert_eq!(find(&mut index, &[1, 1, 7, 7], 5), other_tenant);
    assert_eq!(find(&mut index, &[7, 7], 0), [0; 0]);
    assert_eq!(find(&mut index, &[3, 3, 7, 7], 0), [0; 0]);
    index.check(&|block| block < 7).unwrap();
}

#[test]
fn equal_blocks_are_interchangeable() {
    let mut index = index(8, hash_with);
    let (a, b) = (publish(&mut index, &[1, 2, 3, 4], 0), publish(&mut index, &[1, 2, 3, 4], 0));
    assert_eq!(find(&mut index, &[1, 2, 3, 4], 0), a);
    // The second block of `a` is evicted; the second block of `b` follows the same content.
    index.release(a[1]);
    assert_eq!(index.evict(1), 1);
    assert_eq!(find(&mut index, &[1, 2, 3, 4], 0), [a[0], b[1]]);
    index.release(a[0]);
    assert_eq!(index.evict(1), 1);
    assert_eq!(find(&mut index, &[1, 2, 3, 4], 0), b);
    index.check(&|block| b.contains(&block)).unwrap();
}

#[test]
fn forged_collisions_are_bounded() {
    let mut index = index(100, constant_hash);
    let tables: Vec<_> = (0..100).map(|n| publish(&mut index, &[n, n], 0)).collect();
    assert_eq!(index.published() as usize, MAX_PROBES);
    let found = (0..100).filter(|&n| !find(&mut index, &[n, n], 0).is_empty()).count();
    assert_eq!(found, MAX_PROBES);
    tables.into_iter().flatten().for_each(|block| index.release(block));
    assert_eq!((index.free() + index.evictable(), index.evictable() as usize), (100, MAX_PROBES));
    index.check(&|_| false).unwrap();
}
