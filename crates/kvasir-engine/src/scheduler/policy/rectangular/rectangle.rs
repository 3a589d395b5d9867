//! The shape of a rectangular decode batch: rows, blocks per row (`width`), left padding, tkv and
//! volume.
//!
//! `tkv = (width - 1) * block + offset`, `volume = rows * tkv`

use kvasir_kv::blocks::BlockSize;

/// Shape of a decode batch: every row has as many blocks as the longest; shorter rows get dummy
/// blocks on the left.
///
/// A row with `computed` tokens writes its next one, so it needs `computed / block + 1` blocks. Its
/// *tkv* is the padded position behind the token being written; the tkv of every row lies in the
/// last block. The shape is rebuilt every step, so padding is minimal.
#[derive(Clone, Copy, Debug)]
pub struct Rectangle {
    block: BlockSize,
    rows: u32,
    width: u32,
    offset: u32,
}

impl Rectangle {
    /// A shape without rows.
    pub fn new(block: u32) -> Self {
        Self { block: BlockSize::new(block.max(1)), rows: 0, width: 0, offset: 0 }
    }

    /// The shape with one more row of `computed` tokens.
    pub fn with(self, computed: u32) -> Self {
        Self {
            rows: self.rows + 1,
            width: self.width.max(self.block.of(computed) + 1),
            offset: self.offset.max(self.block.within(computed) + 1),
            ..self
        }
    }

    /// The shape of rows with these `computed` lengths.
    pub fn of(block: u32, computed: impl IntoIterator<Item = u32>) -> Self {
        computed.into_iter().fold(Self::new(block), Self::with)
    }

    /// Number of rows.
    pub fn rows(self) -> u32 {
        self.rows
    }

    /// Blocks per row.
    pub fn width(self) -> u32 {
        self.width
    }

    /// Left padding of a row, in blocks.
    pub fn left_blocks(self, computed: u32) -> u32 {
        self.width.saturating_sub(self.block.of(computed) + 1)
    }

    /// The largest tkv; 0 without rows.
    pub fn tkv(self) -> u32 {
        self.width.saturating_sub(1) * self.block.rows() + self.offset
    }

    /// Rows times the largest tkv.
    pub fn volume(self) -> u64 {
        u64::from(self.rows) * u64::from(self.tkv())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row's tkv.
    fn row_tkv(shape: Rectangle, computed: u32) -> u32 {
        shape.left_blocks(computed) * shape.block.rows() + computed + 1
    }

    #[test]
    fn largest_tkv_is_the_maximum_over_rows() {
        for block in [1, 4, 64] {
            for seed in 0..500u32 {
                let rows: Vec<u32> = (0..seed % 7 + 1).map(|i| (seed * 7919 + i * 104_729) % 300).collect();
                let shape = Rectangle::of(block, rows.iter().copied());
                assert_eq!(Some(shape.tkv()), rows.iter().map(|k| row_tkv(shape, *k)).max());
                for k in rows {
                    assert_eq!(row_tkv(shape, k).div_ceil(block), shape.width(), "all in the last block");
                    assert_eq!(shape.left_blocks(k) + (k + 1).div_ceil(block), shape.width());
                }
            }
        }
        assert_eq!((Rectangle::new(64).tkv(), Rectangle::new(64).volume()), (0, 0));
    }

    #[test]
    fn row_that_gains_a_block_changes_its_padding() {
        let before = Rectangle::of(64, [63, 116]);
        assert_eq!((row_tkv(before, 63), before.tkv()), (128, 128));
        let after = Rectangle::of(64, [64, 117]);
        assert_eq!((row_tkv(after, 64), after.left_blocks(64), after.tkv()), (65, 0, 118), "back by a block");
        let longest = Rectangle::of(64, [128, 10]);
        assert_eq!((longest.left_blocks(10), row_tkv(longest, 10)), (2, 139), "forward by a block");
    }
}
