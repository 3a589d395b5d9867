//! Admission by the slots of window groups.
//!
//! A sequence of `len` tokens holds `w = min(len, W)` slots of a window group between steps. A step
//! adds at most `step` rows to all sequences. A request is admitted if, for the running sequences
//! and itself, `sum w + min(step, sum min(uncomputed, len - w)) <= capacity`.
//!
//! Growth after admission is not reserved: if a claim lacks window slots, rows are deferred and
//! sequences preempted, as in the full group.

use crate::request::sequence::Sequence;
use crate::scheduler::defer_reason::DeferReason;
use kvasir_kv::WindowConfig;
use kvasir_kv::blocks::BlockSize;

/// Maximum rows of a step, and the block size of the cache.
#[derive(Clone, Copy)]
pub(crate) struct StepSize {
    pub(crate) rows: u32,
    pub(crate) block: BlockSize,
}

/// Why a window group lacks slots for these sequences, if one does.
pub(crate) fn window_shortage<'a>(
    windows: &[WindowConfig],
    step: StepSize,
    sequences: impl Iterator<Item = &'a Sequence> + Clone,
) -> Option<DeferReason> {
    let shortage = |window: &WindowConfig| {
        let max_held = window.slots_per_sequence(step.block.rows());
        let (mut held, mut added) = (0_u64, 0_u64);
        for sequence in sequences.clone() {
            let len = step.block.whole(sequence.len() + sequence.skipped);
            let held_by_sequence = len.min(max_held);
            let uncomputed = sequence.len().saturating_sub(sequence.claimed);
            held += u64::from(held_by_sequence);
            added += u64::from(uncomputed.min(len - held_by_sequence));
        }
        let needed = (held + added.min(step.rows.into())).min(u32::MAX.into()) as u32;
        let available = window.capacity;
        (needed > available).then_some(DeferReason::Reserved { needed, available })
    };
    windows.iter().find_map(shortage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::params::Request;

    const WINDOW: WindowConfig = WindowConfig { window: 17, capacity: 100, longest_draft: 0 };

    fn sequence(len: u32, claimed: u32) -> Sequence {
        let prompt = vec![1; len as usize];
        Sequence { claimed, ..Sequence::new(Request { prompt, ..Request::default() }) }
    }

    /// The slots needed, if more than the capacity, with steps of 30 rows and blocks of 4 slots.
    fn needed(sequences: &[Sequence]) -> Option<u32> {
        let step = StepSize { rows: 30, block: BlockSize::new(4) };
        match window_shortage(&[WINDOW], step, sequences.iter()) {
            Some(DeferReason::Reserved { needed, available: 100 }) => Some(needed),
            Some(other) => panic!("{other:?}"),
            None => None,
        }
    }

    #[test]
    fn a_sequence_counts_its_window_and_the_rows_of_a_step() {
        // 16 rows before the window and three blocks.
        assert_eq!(WINDOW.slots_per_sequence(4), 28);
        let decoding = || sequence(200, 199);
        assert_eq!(needed(&[decoding(), decoding(), decoding()]), None);
        assert_eq!(needed(&[decoding(), decoding(), decoding(), decoding()]), Some(4 * 28 + 4));
        // A step computes at most 30 rows of all prompts.
        assert_eq!(needed(&[sequence(200, 0), sequence(200, 150)]), None);
        assert_eq!(needed(&[sequence(200, 0), sequence(200, 150), decoding()]), Some(3 * 28 + 30));
        // Short prompts need no more slots than they have tokens.
        let short: Vec<Sequence> = (0..12).map(|_| sequence(8, 0)).collect();
        assert_eq!(
            (needed(&short), needed(&[short.clone(), vec![sequence(5, 0)]].concat())),
            (None, Some(104))
        );
    }
}
