//! Rotary position embeddings (RoPE) of a row.

use crate::isa::dispatch::per_isa;
use kvasir_program::Pairs;

/// Which elements of a row RoPE rotates: in each head of `group` numbers, from `start` on, paired
/// as `pairs` says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RotaryPart {
    pub(crate) group: usize,
    pub(crate) start: usize,
    pub(crate) pairs: Pairs,
}

#[inline(always)]
fn rotate_body(y: &mut [f32], rotary: RotaryPart, cos: &[f32], sin: &[f32]) {
    let half = cos.len();
    for head in y.chunks_exact_mut(rotary.group) {
        let part = &mut head[rotary.start..rotary.start + 2 * half];
        match rotary.pairs {
            Pairs::Half => {
                let (first, second) = part.split_at_mut(half);
                for ((a, b), (c, s)) in first.iter_mut().zip(second).zip(cos.iter().zip(sin)) {
                    (*a, *b) = (*a * c - *b * s, *b * c + *a * s);
                }
            }
            Pairs::Interleaved => {
                for (pair, (c, s)) in part.as_chunks_mut::<2>().0.iter_mut().zip(cos.iter().zip(sin)) {
                    *pair = [pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s];
                }
            }
        }
    }
}

per_isa! {
    /// Applies RoPE to every head of a row: `(a, b) = (a cos - b sin, b cos + a sin)`.
    rotate(y: &mut [f32], rotary: RotaryPart, cos: &[f32], sin: &[f32]) => rotate_body
}
