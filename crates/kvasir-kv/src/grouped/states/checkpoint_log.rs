//! `CheckpointLog`: the KV events of checkpoints, by the hash of the block at whose end they are.
//!
//! Records which hashes have changed. `take` compares these with what was announced, so a
//! checkpoint that was stored and removed in between has no event. If more than `MAX_CHANGED`
//! hashes change, `take` compares all. So memory is bounded even if `take` is never called again:
//! there is an entry per linked checkpoint and per checkpoint announced by the last `take`.
//!
//! Independent of the log of blocks: a mirror keeps blocks and checkpoints in two sets, and a hit
//! ends at a block that is in both. Guarded by `tests/states/mirror.rs`.

use crate::blocks::hash::BlockHashMap;
use crate::contract::group::Anchor;
use crate::contract::kv_event::KvEvent;
use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::BuildHasherDefault;

/// Maximum number of changed hashes.
const MAX_CHANGED: usize = 1 << 16;

/// The checkpoints of one block hash.
#[derive(Clone, Copy, Debug, Default)]
struct CheckpointEntry {
    /// Number of anchors with this hash that have a checkpoint. Above 1 only if a block was
    /// published again after the eviction of its parent.
    linked: u32,
    is_announced: bool,
}

/// The linked checkpoints by hash, and the hashes that have changed since `take`.
#[derive(Clone, Debug, Default)]
pub(crate) struct CheckpointLog {
    by_hash: BlockHashMap<CheckpointEntry>,
    /// Block hash of each anchor with a checkpoint.
    hash_by_anchor: HashMap<Anchor, u64, BuildHasherDefault<DefaultHasher>>,
    changed: Vec<u64>,
    /// Whether `changed` lacks hashes.
    has_overflowed: bool,
}

impl CheckpointLog {
    /// A checkpoint was linked to an anchor, whose block has this hash.
    pub(crate) fn on_link(&mut self, anchor: Anchor, hash: u64) {
        self.hash_by_anchor.insert(anchor, hash);
        self.by_hash.entry(hash).or_default().linked += 1;
        self.record(hash);
    }

    /// The checkpoint of an anchor was evicted, or its block left the prefix cache.
    pub(crate) fn on_unlink(&mut self, anchor: Anchor) {
        let Some(hash) = self.hash_by_anchor.remove(&anchor) else { return };
        if let Some(checkpoints) = self.by_hash.get_mut(&hash) {
            checkpoints.linked -= 1;
            self.remove_if_unused(hash);
            self.record(hash);
        }
    }

    fn record(&mut self, hash: u64) {
        if self.changed.len() < MAX_CHANGED {
            self.changed.push(hash);
        } else {
            self.has_overflowed = true;
        }
    }

    /// Removes the entry of a hash that has no checkpoint and is not announced.
    fn remove_if_unused(&mut self, hash: u64) {
        if self.by_hash.get(&hash).is_some_and(|entry| entry.linked == 0 && !entry.is_announced) {
            self.by_hash.remove(&hash);
        }
    }

    /// Appends the events since the last call. With `is_cleared`, which means that the events of
    /// blocks include `AllBlocksCleared`, announces all checkpoints again. Linear in the changes,
    /// or in all checkpoints.
    pub(crate) fn take(&mut self, is_cleared: bool, into: &mut Vec<KvEvent>) {
        let mut changed = std::mem::take(&mut self.changed);
        if is_cleared {
            self.by_hash.values_mut().for_each(|entry| entry.is_announced = false);
        }
        if is_cleared || std::mem::take(&mut self.has_overflowed) {
            changed.clear();
            changed.extend(self.by_hash.keys());
            // Simulations need events in an order that does not depend on the map's.
            changed.sort_unstable();
        }
        for hash in changed.drain(..) {
            let Some(entry) = self.by_hash.get_mut(&hash) else { continue };
            let is_linked = entry.linked > 0;
            if is_linked != entry.is_announced {
                entry.is_announced = is_linked;
                into.push(if is_linked {
                    KvEvent::CheckpointStored { hash }
                } else {
                    KvEvent::CheckpointRemoved { hash }
                });
            }
            self.remove_if_unused(hash);
        }
        self.changed = changed;
    }
}

#[cfg(test)]
mod tests {
    use crate::grouped::states::checkpoint_log::*;

    fn take(log: &mut CheckpointLog, is_cleared: bool) -> Vec<KvEvent> {
        let mut events = Vec::new();
        log.take(is_cleared, &mut events);
        events
    }

    #[test]
    fn events_report_the_net_change() {
        let (mut log, hash) = (CheckpointLog::default(), 7);
        log.on_link(Anchor(1), hash);
        log.on_link(Anchor(2), hash);
        log.on_link(Anchor(3), 8);
        log.on_unlink(Anchor(3));
        assert_eq!(take(&mut log, false), [KvEvent::CheckpointStored { hash }]);
        log.on_unlink(Anchor(1));
        assert_eq!(take(&mut log, false), []);
        assert_eq!(take(&mut log, true), [KvEvent::CheckpointStored { hash }]);
        log.on_unlink(Anchor(2));
        assert_eq!(take(&mut log, false), [KvEvent::CheckpointRemoved { hash }]);
        assert!(log.by_hash.is_empty() && log.hash_by_anchor.is_empty());
    }

    #[test]
    fn a_log_that_is_never_taken_is_bounded() {
        let mut log = CheckpointLog::default();
        for n in 0..200_000 {
            log.on_link(Anchor(n), n);
            log.on_unlink(Anchor(n));
        }
        assert!(log.changed.len() <= MAX_CHANGED && log.by_hash.is_empty());
        log.on_link(Anchor(1), 1);
        assert_eq!(take(&mut log, false), [KvEvent::CheckpointStored { hash: 1 }]);
    }
}
