//! Shared checkpoints of `StateGroup`: forks share those of their source, and later prompts find
//! them through the anchors of published blocks.
//!
//! A checkpoint is shared only if no step in flight writes it. After accepted drafts, a step in
//! flight may store a checkpoint at or below the retired length, and that step may fail.

use crate::contract::cache_end::CacheEnd;
use crate::contract::group::Anchor;
use crate::contract::ids::{Position, SeqId};
use crate::contract::kv_event::KvEvent;
use crate::grouped::states::checkpoint::Checkpoint;
use crate::grouped::states::group::StateGroup;
use crate::grouped::states::sequence::StateSequence;

impl StateGroup {
    /// Shares the checkpoints of `src` up to `upto`, a retired length, with `dst`, which has none.
    /// First seals the live state if it covers at most `upto`. Returns the resulting length of
    /// `dst`.
    pub(crate) fn share_checkpoints(&mut self, src: SeqId, dst: SeqId, upto: Position) -> Position {
        let live = self.seqs.get(src).ok().and_then(|sequence| sequence.live);
        if live.is_some_and(|live| live.position <= upto) {
            self.seal(src);
        }
        let Ok(source) = self.seqs.get(src) else { return 0 };
        let pending_writes = self.in_flight.pending_writes(src);
        let is_written = |checkpoint: &Checkpoint| self.ledger.is_written(checkpoint, &pending_writes);
        let len = source.last_checkpoint(upto, is_written).map_or(0, |last| last.position);
        let is_shared = |checkpoint: &&Checkpoint| checkpoint.position <= len && is_written(checkpoint);
        let shared: Vec<Checkpoint> = source.checkpoints.iter().filter(is_shared).copied().collect();
        let sequence = StateSequence::from_checkpoints(shared, Some(source));
        self.set_states(dst, sequence);
        len
    }

    /// Sets the states of an empty sequence, and adds it as an owner of their checkpoints.
    fn set_states(&mut self, seq: SeqId, sequence: StateSequence) {
        for checkpoint in &sequence.checkpoints {
            self.ledger.add_owner(checkpoint.slot);
            self.ledger.touch(checkpoint.slot);
        }
        sequence.live.iter().for_each(|live| self.ledger.pin(live.slot));
        if let Some(target) = self.seqs.get_mut(seq) {
            *target = sequence;
        }
    }

    /// Whether there is a checkpoint at the end of the published block with this anchor.
    pub(crate) fn has_checkpoint(&self, anchor: Anchor) -> bool {
        self.ledger.find(anchor).is_some()
    }

    /// Why none of the blocks with these anchors has a checkpoint.
    pub(crate) fn miss_reason(&self, anchors: &[Anchor]) -> CacheEnd {
        if anchors.iter().any(|&anchor| self.ledger.was_evicted(anchor)) {
            CacheEnd::Evicted
        } else {
            CacheEnd::NoCheckpoint
        }
    }

    /// Gives an empty sequence the checkpoints at the ends of a prompt's leading blocks.
    pub(crate) fn attach(&mut self, seq: SeqId, anchors: &[Anchor]) {
        let shared = anchors.iter().filter_map(|&anchor| self.ledger.find(anchor)).collect();
        self.set_states(seq, StateSequence::from_checkpoints(shared, None));
    }

    /// Links the checkpoints of a sequence up to `published` to the anchors of their blocks. Linear
    /// in those that were not linked before. `anchor` and `hash` return the anchor and hash of the
    /// sequence's block with an index.
    pub(crate) fn link(
        &mut self,
        seq: SeqId,
        published: Position,
        anchor: impl Fn(u32) -> Option<Anchor>,
        hash: impl Fn(u32) -> Option<u64>,
    ) {
        let Self { ledger, seqs, in_flight, spacing, .. } = self;
        let Some(sequence) = seqs.get_mut(seq) else { return };
        let pending_writes = in_flight.pending_writes(seq);
        let live_slot = sequence.live.map(|live| live.slot);
        // Returns false if the checkpoint must be tried again later.
        let mut link = |checkpoint: &mut Checkpoint| {
            // A fork may have sealed a live state inside a block.
            if !spacing.is_boundary(checkpoint.position) || !ledger.is_current(checkpoint) {
                return true;
            }
            let block = checkpoint.position / spacing.block_size - 1;
            let is_written = ledger.is_written(checkpoint, &pending_writes);
            let Some(anchor) = is_written.then(|| anchor(block)).flatten() else { return false };
            match ledger.find(anchor) {
                None => ledger.link(checkpoint.slot, anchor, || hash(block)),
                Some(linked) if linked.slot == checkpoint.slot => {}
                // Another checkpoint of the same prefix is linked: use it instead of this
                // duplicate.
                Some(linked) if live_slot != Some(checkpoint.slot) => {
                    ledger.add_owner(linked.slot);
                    ledger.touch(linked.slot);
                    ledger.remove_owner(checkpoint.slot);
                    *checkpoint = linked;
                }
                Some(_) => return false,
            }
            true
        };
        let (unlinked, linked_to) = sequence.unlinked();
        let mut are_all_linked = true;
        for checkpoint in unlinked.iter_mut().take_while(|checkpoint| checkpoint.position <= published) {
            are_all_linked &= link(checkpoint);
            if are_all_linked {
                *linked_to = checkpoint.position;
            }
        }
    }

    /// Starts recording KV events.
    pub(crate) fn record_events(&mut self) {
        self.seqs.iter_mut().for_each(StateSequence::forget_links);
        self.ledger.record_events();
    }

    /// Appends the recorded KV events to `into`. With `is_cleared`, stores all checkpoints again.
    pub(crate) fn take_events(&mut self, is_cleared: bool, into: &mut Vec<KvEvent>) {
        self.ledger.take_events(is_cleared, into);
    }

    /// Removes the links of anchors whose blocks left the prefix cache.
    pub(crate) fn unlink(&mut self, anchors: &[Anchor]) {
        anchors.iter().for_each(|&anchor| self.ledger.unlink(anchor));
    }
}
