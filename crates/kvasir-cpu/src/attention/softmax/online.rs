//! The steps of the online softmax: portable functions, and the choice of their AVX-512 versions.

#[cfg(target_arch = "x86_64")]
use crate::attention::softmax::avx512;
use crate::attention::softmax::state::{
    ChunkEntries, ChunkMask, MaskBounds, OnlineSoftmax, PackedWeights, RunningState, ScoreScaling, Scores,
    exp2,
};
use crate::isa::dispatch::per_isa;
use crate::isa::features::Isa;
use crate::isa::tile::LANES;
use crate::memory::kv_pool::rows::CHUNK;

/// Masks: scores of invisible positions become negative infinity.
#[inline(always)]
fn mask_body(scores: &mut Scores, entries: &ChunkEntries, bounds: &MaskBounds) {
    for (scores, (&entry, &position)) in scores.iter_mut().zip(entries.entry.iter().zip(&entries.position)) {
        for row in 0..LANES {
            let seen = entry < bounds.visible[row] && position >= bounds.from[row];
            scores[row] = if seen { scores[row] } else { f32::NEG_INFINITY };
        }
    }
}

per_isa! { mask_by_compiler(scores: &mut Scores, entries: &ChunkEntries, bounds: &MaskBounds) => mask_body }

/// Soft cap: `cap * tanh(s * scale / cap)`, in base-2 units.
#[inline(always)]
fn cap_body(scores: &mut [f32], scale: f32, cap: f32) {
    let capped = |s: f32| ScoreScaling::to_base2(cap * (s * scale / cap).tanh());
    scores.iter_mut().for_each(|s| *s = capped(*s));
}

per_isa! { cap_scores(scores: &mut [f32], scale: f32, cap: f32) => cap_body }

/// Largest dot product of each query row.
#[inline(always)]
fn max_body(scores: &Scores, max: &mut [f32; LANES]) {
    *max = scores[0];
    for scores in &scores[1..] {
        for row in 0..LANES {
            max[row] = if scores[row] > max[row] { scores[row] } else { max[row] };
        }
    }
}

per_isa! { max_by_compiler(scores: &Scores, max: &mut [f32; LANES]) => max_body }

/// Attention weights P of some positions, rounded to bf16 and packed; adds them to the chunk sums.
#[inline(always)]
fn weights_body(softmax: &mut OnlineSoftmax, scores: &[[f32; LANES]], packed: &mut [[u32; LANES]]) {
    let [even, odd] = &mut softmax.sums;
    for (pair, packed) in scores.as_chunks::<2>().0.iter().zip(packed) {
        for row in 0..LANES {
            let weight = |s: f32| exp2(s.mul_add(softmax.scale, -softmax.base[row]));
            let (a, b) = (weight(pair[0][row]), weight(pair[1][row]));
            even[row] += a;
            odd[row] += b;
            // Rounds to the nearest bf16, ties up.
            let (a, b) = (a.to_bits() + 0x8000, b.to_bits() + 0x8000);
            packed[row] = a >> 16 | b & 0xffff_0000;
        }
    }
}

per_isa! { weights_by_compiler(softmax: &mut OnlineSoftmax, scores: &[[f32; LANES]], packed: &mut [[u32; LANES]]) => weights_body }

#[inline(always)]
fn raise_max_body(largest: &[f32; LANES], scale: f32, run: &mut RunningState, base: &mut [f32; LANES]) {
    let before = run.max;
    for row in 0..LANES {
        let score = largest[row] * scale;
        run.max[row] = if score > before[row] { score } else { before[row] };
    }
    for row in 0..LANES {
        base[row] = if run.max[row] == f32::NEG_INFINITY { 0.0 } else { run.max[row] };
    }
    for row in 0..LANES {
        run.rescale[row] = exp2(before[row] - base[row]);
    }
}

per_isa! {
    /// Raises the running maxima by a chunk's largest dot products, and computes the rescale
    /// factors.
    raise_max_by_compiler(largest: &[f32; LANES], scale: f32, run: &mut RunningState, base: &mut [f32; LANES]) => raise_max_body
}

/// `l = l * rescale + sum(P)`.
#[inline(always)]
fn add_sums_body([even, odd]: &[[f32; LANES]; 2], run: &mut RunningState) {
    for row in 0..LANES {
        run.sum[row] = run.sum[row].mul_add(run.rescale[row], even[row] + odd[row]);
    }
}

per_isa! { add_sums(sums: &[[f32; LANES]; 2], run: &mut RunningState) => add_sums_body }

impl OnlineSoftmax {
    /// Scales and masks a chunk's dot products and updates the running maxima. Without `mask`
    /// every row sees the whole chunk.
    pub(crate) fn begin(
        &mut self,
        isa: Isa,
        scores: &mut Scores,
        mask: Option<ChunkMask<'_>>,
        scaling: ScoreScaling,
    ) {
        self.scale(isa, scores.as_flattened_mut(), scaling);
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() {
            // SAFETY: the instruction set was detected on this machine.
            return unsafe { avx512::raise_max(self, scores, mask) };
        }
        if let Some(ChunkMask { entries, bounds }) = mask {
            mask_by_compiler(isa, scores, entries, bounds);
        }
        let mut largest = [0.0; LANES];
        max_by_compiler(isa, scores, &mut largest);
        raise_max_by_compiler(isa, &largest, self.scale, &mut self.run, &mut self.base);
    }

    /// Sets the factor of the dot products; a soft cap (`cap * tanh(s / cap)`) is applied at once,
    /// with factor 1.
    pub(crate) fn scale(&mut self, isa: Isa, scores: &mut [f32], scaling: ScoreScaling) {
        self.scale = match scaling.soft_cap {
            None => ScoreScaling::to_base2(scaling.scale),
            Some(cap) => {
                cap_scores(isa, scores, scaling.scale, cap);
                1.0
            }
        };
        // Required: then the largest score is that of the largest dot product.
        debug_assert!(self.scale >= 0.0);
        (self.sums, self.done) = ([[0.0; LANES]; 2], 0);
    }

    /// Makes the remaining attention weights, as bf16 with two positions per word of `packed`.
    pub(crate) fn finish_weights(&mut self, isa: Isa, scores: &Scores, packed: &mut PackedWeights) {
        #[cfg(target_arch = "x86_64")]
        if isa.has_avx512() {
            // SAFETY: the instruction set was detected on this machine.
            return unsafe { avx512::finish_weights(self, scores, packed) };
        }
        weights_by_compiler(isa, self, &scores[2 * self.done..], &mut packed[self.done..]);
        self.done = CHUNK / 2;
    }

    /// `l = l * rescale + sum(P)`.
    pub(crate) fn finish(&mut self, isa: Isa) {
        add_sums(isa, &self.sums, &mut self.run);
    }
}

#[inline(always)]
fn rescale_outputs_body(sums: &mut [f32], width: usize, rescale: &[f32]) {
    for (sums, &rescale) in sums.chunks_exact_mut(width).zip(rescale) {
        // Running maxima seldom move, so the factor is mostly 1.
        if rescale != 1.0 {
            sums.iter_mut().for_each(|s| *s *= rescale);
        }
    }
}

per_isa! {
    /// Rescale: `sums[row] *= rescale[row]`; accumulators lie `width` apart.
    rescale_outputs(sums: &mut [f32], width: usize, rescale: &[f32]) => rescale_outputs_body
}
