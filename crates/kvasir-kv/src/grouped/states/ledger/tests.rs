//! Eviction order and reference counts of the ledger.

use crate::grouped::states::ledger::*;

/// A ledger with linked checkpoints at these positions, without owners.
fn filled(positions: &[Position], max: u32) -> (StateLedger, Vec<Checkpoint>) {
    let mut ledger = StateLedger::new(max + 1, max);
    let mut stored: Vec<Checkpoint> = Vec::new();
    for &position in positions {
        let checkpoint = ledger.store(position, stored.last()).unwrap();
        ledger.link(checkpoint.slot, Anchor(u64::from(position)), || None);
        ledger.remove_owner(checkpoint.slot);
        stored.push(checkpoint);
    }
    (ledger, stored)
}

#[test]
fn the_checkpoint_cheapest_to_recompute_is_evicted() {
    let (mut ledger, stored) = filled(&[100, 110, 300], 3);
    let new = ledger.store(500, stored.last()).unwrap();
    assert_eq!(ledger.find(Anchor(110)), None);
    assert!(ledger.was_evicted(Anchor(110)) && !ledger.was_evicted(Anchor(100)));
    assert!(ledger.find(Anchor(100)).is_some() && ledger.find(Anchor(300)).is_some());
    assert!(ledger.is_current(&new) && !ledger.is_current(&stored[1]));
    // Recomputing 300 starts at 100 now, since 110 was evicted: 200 positions, over 1 + age 1.
    let value = ledger.evictable.get(stored[2].slot).unwrap();
    assert_eq!((value.recompute, ledger.stored - value.last_use), (200, 1));
}

#[test]
fn a_checkpoint_of_the_lowest_value_is_not_stored() {
    let (mut ledger, stored) = filled(&[100, 200], 2);
    assert_eq!(ledger.store(201, stored.last()), None);
    assert_eq!(ledger.checkpoints, 2);
    stored.iter().for_each(|checkpoint| ledger.lease(checkpoint.slot));
    assert_eq!(ledger.store(9000, stored.last()), None, "leased checkpoints are not evicted");
}

#[test]
fn a_use_resets_the_age() {
    let (mut ledger, stored) = filled(&[100, 200, 300], 3);
    ledger.touch(stored[0].slot);
    ledger.store(400, stored.last()).unwrap();
    assert_eq!(ledger.find(Anchor(200)), None);
}

#[test]
fn unlinking_a_checkpoint_without_owners_frees_it() {
    let (mut ledger, stored) = filled(&[100, 200], 2);
    ledger.add_owner(stored[1].slot);
    ledger.unlink(Anchor(100));
    ledger.unlink(Anchor(200));
    assert_eq!((ledger.checkpoints, ledger.free.len()), (1, 2));
    ledger.remove_owner(stored[1].slot);
    assert_eq!((ledger.checkpoints, ledger.free.len()), (0, 3));
    ledger.check(&[StateUses::default(); 3]).unwrap();
}
