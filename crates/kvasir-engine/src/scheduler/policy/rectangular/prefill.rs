//! Padding of a prompt to whole prefill chunks, and which chunks a prefix-cache hit skips.
//!
//! `left + prompt + right = chunks * chunk`, with `left` in whole blocks and `right < block`

use std::ops::Range;

/// A prompt padded to whole chunks: dummy blocks on the left, free positions up to the end of the
/// last block on the right. A block therefore always holds the same tokens, and no block on the
/// right is empty.
///
/// *Token* positions count from the prompt's first token; *padded* positions count from the first
/// dummy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillShape {
    prompt: u32,
    block: u32,
    chunk: u32,
}

impl PrefillShape {
    /// Shape of a prompt of at least one token. `chunk` should be a multiple of `block`; it is
    /// rounded down.
    pub fn new(prompt: u32, block: u32, chunk: u32) -> Self {
        let block = block.max(1);
        let chunk = (chunk / block).max(1) * block;
        Self { prompt: prompt.max(1), block, chunk }
    }

    /// Prompt tokens.
    pub fn prompt(self) -> u32 {
        self.prompt
    }

    /// Padded positions per chunk.
    pub fn chunk(self) -> u32 {
        self.chunk
    }

    /// Number of chunks.
    pub fn chunks(self) -> u32 {
        self.prompt.div_ceil(self.chunk)
    }

    /// Left padding in positions: whole blocks, less than a chunk.
    pub fn left(self) -> u32 {
        self.chunks() * self.chunk - self.prompt.div_ceil(self.block) * self.block
    }

    /// Left padding in blocks.
    pub fn left_blocks(self) -> u32 {
        self.left() / self.block
    }

    /// Right padding: free positions in the last block.
    pub fn right(self) -> u32 {
        self.prompt.div_ceil(self.block) * self.block - self.prompt
    }

    /// Token range of chunk `i`.
    pub fn tokens(self, i: u32) -> Range<u32> {
        let from = (i * self.chunk).saturating_sub(self.left());
        let to = ((i + 1) * self.chunk).saturating_sub(self.left()).min(self.prompt);
        from.min(to)..to
    }

    /// The next chunk when `computed` tokens are done.
    pub fn chunk_after(self, computed: u32) -> u32 {
        (self.left() + computed) / self.chunk
    }

    /// Whether chunk `i` is the last one, which yields the first output.
    pub fn is_last(self, i: u32) -> bool {
        i + 1 == self.chunks()
    }
}

/// What a prefix-cache hit saves. Chunks whose blocks are all cached are skipped. The chunk in
/// which the hit ends is computed whole, with the writes of its cached blocks redirected to the
/// dummy block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitPlan {
    /// Number of skipped chunks, which is the number of the first chunk that runs.
    pub first_chunk: u32,
    /// Cached tokens in skipped chunks, reported to the client as cached tokens.
    pub usable: u32,
}

impl HitPlan {
    /// Plan for a hit of `hit` tokens in whole blocks. The prompt's last token is never a hit, and
    /// the last chunk always runs, because it yields the first output.
    pub fn new(shape: PrefillShape, hit: u32) -> Self {
        let hit = hit.min(shape.prompt().saturating_sub(1));
        let first_chunk = shape.chunk_after(hit).min(shape.chunks() - 1);
        let usable = shape.tokens(first_chunk).start.min(hit);
        Self { first_chunk, usable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_the_document_are_padded_as_published() {
        let short = PrefillShape::new(15, 64, 128);
        assert_eq!((short.chunks(), short.left(), short.right()), (1, 64, 49));
        assert_eq!(short.tokens(0), 0..15);
        let long = PrefillShape::new(302, 64, 128);
        assert_eq!((long.chunks(), long.left(), long.right()), (3, 64, 18));
        assert_eq!((0..3).map(|i| long.tokens(i)).collect::<Vec<_>>(), [0..64, 64..192, 192..302]);
    }

    #[test]
    fn chunks_partition_prompts_with_less_padding_than_a_chunk() {
        for (block, blocks_per_chunk) in [(1, 1), (1, 5), (4, 1), (4, 3), (16, 4), (64, 2)] {
            let chunk = block * blocks_per_chunk;
            for prompt in 1..=5 * chunk + 1 {
                let shape = PrefillShape::new(prompt, block, chunk);
                let mut done = 0;
                for i in 0..shape.chunks() {
                    let tokens = shape.tokens(i);
                    assert_eq!(tokens.start, done, "{shape:?} chunk {i}");
                    assert!(!tokens.is_empty() && tokens.len() as u32 <= chunk);
                    assert_eq!(shape.chunk_after(done), i);
                    assert_eq!(tokens.start % block, 0);
                    done = tokens.end;
                }
                assert_eq!(done, prompt);
                assert!(shape.left() < chunk && shape.left().is_multiple_of(block) && shape.right() < block);
                assert_eq!(shape.left() + prompt + shape.right(), shape.chunks() * chunk);
                assert!(shape.is_last(shape.chunks() - 1));
            }
        }
    }

    fn plan(prompt: u32, chunk: u32, hit: u32) -> (u32, u32, u32) {
        let plan = HitPlan::new(PrefillShape::new(prompt, 64, chunk), hit);
        (plan.first_chunk, plan.usable, hit.min(prompt - 1) - plan.usable)
    }

    #[test]
    fn hit_ending_inside_a_chunk_recomputes_the_chunk() {
        assert_eq!(plan(384, 128, 192), (1, 128, 64));
        assert_eq!(plan(384, 128, 320), (2, 256, 64));
        assert_eq!(plan(640, 256, 512), (2, 384, 128), "128 of left padding move the border to 384");
        assert_eq!(plan(192, 128, 128), (1, 64, 64));
        assert_eq!(plan(192, 128, 0), (0, 0, 0));
        assert_eq!(plan(384, 128, 64), (0, 0, 64));
    }

    #[test]
    fn last_chunk_is_never_skipped() {
        for chunk in [64, 128, 256, 512] {
            for prompt in 1..1100 {
                let shape = PrefillShape::new(prompt, 64, chunk);
                for hit in (0..=prompt).step_by(64) {
                    let plan = HitPlan::new(shape, hit);
                    assert!(plan.first_chunk < shape.chunks());
                    // A hit of the whole prompt leaves its last token.
                    let computed = hit.min(prompt - 1);
                    assert!(plan.usable <= computed);
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
