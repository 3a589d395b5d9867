//! Padding of a prompt to whole prefill chunks, and the mapping between chunk numbers and token
//! ranges.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_two_prompts() {
        let short = PrefillShape::new(15, 64, 128);
        assert_eq!((short.chunks(), short.left(), short.right()), (1, 64, 49));
        assert_eq!(short.tokens(0), 0..15);
        let long = PrefillShape::new(302, 64, 128);
        assert_eq!((long.chunks(), long.left(), long.right()), (3, 64, 18));
        assert_eq!((0..3).map(|i| long.tokens(i)).collect::<Vec<_>>(), [0..64, 64..192, 192..302]);
    }

    #[test]
    fn chunks_partition_every_prompt_and_padding_is_less_than_a_chunk() {
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
}
