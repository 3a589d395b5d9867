//! The logits of each sampled position of each request, from the steps that an executor returns.

use kvasir_exec::Step;
use std::collections::BTreeMap;

/// Bits of the logits, by request and position.
pub(crate) struct RecordedLogits {
    vocab: usize,
    bits: BTreeMap<(u64, u32), Vec<u32>>,
}

impl RecordedLogits {
    pub(crate) fn new(vocab: usize) -> Self {
        Self { vocab, bits: BTreeMap::new() }
    }

    /// Records the logits of a step, without those of rejected drafts. A position that is computed
    /// again, as after a preemption, must have the same bits.
    pub(crate) fn record(&mut self, step: &Step) {
        let mut logits = step.output.logits.chunks_exact(self.vocab);
        let mut accepted = Vec::new();
        for (index, row) in step.batch.rows.iter().enumerate() {
            accepted.clear();
            step.accepted(index, &mut accepted);
            let end = row.tokens.range().end - row.drafts.count as usize + accepted.len();
            for token in row.tokens.range().skip(row.logits_from() as usize) {
                let bits: Vec<u32> = logits.next().unwrap().iter().map(|x| x.to_bits()).collect();
                if token >= end {
                    continue;
                }
                let before = self.bits.insert((row.request, step.plan.positions[token]), bits.clone());
                assert!(before.is_none_or(|before| before == bits), "recomputed logits differ");
            }
        }
    }

    /// The logits of a request, by position.
    pub(crate) fn of(&self, request: u64) -> BTreeMap<u32, Vec<u32>> {
        let range = self.bits.range((request, 0)..=(request, u32::MAX));
        range.map(|((_, position), bits)| (*position, bits.clone())).collect()
    }
}
