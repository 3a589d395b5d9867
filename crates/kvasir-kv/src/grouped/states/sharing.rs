//! Sharing of checkpoints in `StateGroup`: with forks, and with later prompts through the anchors of
//! published blocks.

use crate::contract::group::Anchor;
use crate::contract::ids::{Position, SeqId};
use crate::grouped::states::checkpoint::Checkpoint;
use crate::grouped::states::group::StateGroup;
use crate::grouped::states::sequence::StateSequence;

impl StateGroup {
    /// Shares the states of `src` up to `upto`, a retired length, with `dst`, which has none. The live
    /// state becomes a checkpoint if it is among them. Returns the length of `dst`.
    pub(crate) fn share(&mut self, src: SeqId, dst: SeqId, upto: Position) -> Position {
        let live = self.get(src).ok().and_then(|sequence| sequence.live);
        if live.is_some_and(|live| live.at <= upto) {
            self.seal(src);
        }
        let Ok(source) = self.get(src) else { return 0 };
        let last = source.last_checkpoint(upto, |checkpoint| self.ledger.is_current(checkpoint));
        let at = last.map_or(0, |last| last.at);
        let is_shared = |checkpoint: &&Checkpoint| checkpoint.at <= at && self.ledger.is_current(checkpoint);
        let shared: Vec<Checkpoint> = source.checkpoints.iter().filter(is_shared).copied().collect();
        let sequence = StateSequence::from_checkpoints(shared, Some(source));
        self.put(dst, sequence);
        at
    }

    /// Replaces the states of an empty sequence by shared checkpoints.
    fn put(&mut self, seq: SeqId, sequence: StateSequence) {
        for checkpoint in &sequence.checkpoints {
            self.ledger.own(checkpoint.slot);
            self.ledger.touch(checkpoint.slot);
        }
        sequence.live.iter().for_each(|live| self.ledger.add_end(live.slot));
        if let Some(target) = self.get_mut(seq) {
            *target = sequence;
        }
    }

    /// The longest prefix, in blocks, whose last block has a checkpoint. `anchors` are those of a
    /// prompt's blocks in order.
    pub(crate) fn servable(&self, anchors: &[Anchor]) -> u32 {
        let last = anchors.iter().rposition(|&anchor| self.ledger.anchored(anchor).is_some());
        last.map_or(0, |last| last as u32 + 1)
    }

    /// Attaches the checkpoints of a prompt's leading blocks to an empty sequence.
    pub(crate) fn attach(&mut self, seq: SeqId, anchors: &[Anchor]) {
        let shared = anchors.iter().filter_map(|&anchor| self.ledger.anchored(anchor)).collect();
        self.put(seq, StateSequence::from_checkpoints(shared, None));
    }

    /// Makes the checkpoints of a sequence up to `published` findable. `anchor` names the content of
    /// its block by number.
    pub(crate) fn link(&mut self, seq: SeqId, published: Position, anchor: impl Fn(u32) -> Option<Anchor>) {
        let block = self.grid.block;
        let Self { ledger, seqs, .. } = self;
        let Some((_, sequence)) = seqs.get_mut(seq.index()).and_then(Option::as_mut) else { return };
        let end = sequence.live.map(|live| live.slot);
        for checkpoint in &mut sequence.checkpoints {
            // A fork may have left one inside a block.
            let ends_block = checkpoint.at.is_multiple_of(block) && checkpoint.at <= published;
            if !ends_block || !ledger.is_current(checkpoint) {
                continue;
            }
            let Some(anchor) = anchor(checkpoint.at / block - 1) else { continue };
            match ledger.anchored(anchor) {
                None => ledger.link(checkpoint.slot, anchor),
                // The same state is there already: this one is superfluous.
                Some(there) if there.slot != checkpoint.slot && end != Some(checkpoint.slot) => {
                    ledger.own(there.slot);
                    ledger.touch(there.slot);
                    ledger.disown(checkpoint.slot);
                    *checkpoint = there;
                }
                Some(_) => {}
            }
        }
    }

    /// The content of these anchors cannot be found any more.
    pub(crate) fn unlink(&mut self, anchors: &[Anchor]) {
        anchors.iter().for_each(|&anchor| self.ledger.unlink(anchor));
    }
}
