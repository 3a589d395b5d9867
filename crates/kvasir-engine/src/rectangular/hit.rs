//! Prefix-cache hits under fixed chunk shapes: which prefill chunks are skipped, and which cached
//! tokens are recomputed.

use super::PrefillShape;

/// What a prefix-cache hit saves. Chunks whose blocks are all cached are skipped. The chunk in
/// which the hit ends is computed whole, with the writes of its cached blocks redirected to the
/// dummy block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitPlan {
    /// Number of skipped chunks, which is the number of the first chunk that runs.
    pub first_chunk: u32,
    /// Cached tokens in skipped chunks, reported to the client as cached tokens.
    pub usable: u32,
    /// Cached tokens that the first chunk recomputes.
    pub redirected: u32,
}

impl HitPlan {
    /// Plan for a hit of `hit` tokens in whole blocks. The prompt's last token is never a hit, and
    /// the last chunk always runs, because it yields the first output.
    pub fn new(shape: PrefillShape, hit: u32) -> Self {
        let hit = hit.min(shape.prompt().saturating_sub(1));
        let first_chunk = shape.chunk_after(hit).min(shape.chunks() - 1);
        let usable = shape.tokens(first_chunk).start.min(hit);
        Self { first_chunk, usable, redirected: hit - usable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(prompt: u32, chunk: u32, hit: u32) -> (u32, u32, u32) {
        let plan = HitPlan::new(PrefillShape::new(prompt, 64, chunk), hit);
        (plan.first_chunk, plan.usable, plan.redirected)
    }

    #[test]
    fn a_hit_that_ends_inside_a_chunk_recomputes_the_chunk() {
        assert_eq!(plan(384, 128, 192), (1, 128, 64));
        assert_eq!(plan(384, 128, 320), (2, 256, 64));
        assert_eq!(plan(640, 256, 512), (2, 384, 128), "128 of left padding move the border to 384");
        assert_eq!(plan(192, 128, 128), (1, 64, 64));
        assert_eq!(plan(192, 128, 0), (0, 0, 0));
        assert_eq!(plan(384, 128, 64), (0, 0, 64));
    }

    #[test]
    fn the_last_chunk_is_never_skipped() {
        for chunk in [64, 128, 256, 512] {
            for prompt in 1..1100 {
                let shape = PrefillShape::new(prompt, 64, chunk);
                for hit in (0..=prompt).step_by(64) {
                    let plan = HitPlan::new(shape, hit);
                    assert!(plan.first_chunk < shape.chunks());
                    // A hit of the whole prompt leaves its last token.
                    let computed = hit.min(prompt - 1);
                    assert_eq!(plan.usable + plan.redirected, computed);
                    assert!(
                        shape.tokens(plan.first_chunk).contains(&computed),
                        "the chunk computes the first new token"
                    );
                    // The same rule in blocks, as the reference document states it.
                    let (lb, c) = (shape.left_blocks(), chunk / 64);
                    let full = ((lb + hit / 64) / c).min(shape.chunks() - 1);
                    assert_eq!(plan.usable / 64, (full * c).saturating_sub(lb));
                }
            }
        }
    }
}
