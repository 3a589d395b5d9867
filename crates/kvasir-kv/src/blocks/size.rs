//! `BlockSize`: row-to-block arithmetic; a shift and a mask where the block size is a power of two.

/// Rows per block; shift and mask if a power of two, else division.
#[derive(Clone, Copy, Debug)]
pub struct BlockSize {
    rows: u32,
    shift: Option<u32>,
}

impl BlockSize {
    /// A block size of `rows`, at least 1.
    pub fn new(rows: u32) -> Self {
        Self { rows, shift: rows.is_power_of_two().then(|| rows.trailing_zeros()) }
    }

    /// Rows per block.
    #[inline]
    pub fn rows(self) -> u32 {
        self.rows
    }

    /// The table entry of row `row`: `row / rows`.
    #[inline]
    pub fn of(self, row: u32) -> u32 {
        match self.shift {
            Some(shift) => row >> shift,
            None => row / self.rows,
        }
    }

    /// Offset of row `row` in its block: `row % rows`.
    #[inline]
    pub fn within(self, row: u32) -> u32 {
        match self.shift {
            Some(_) => row & (self.rows - 1),
            None => row % self.rows,
        }
    }

    /// Number of blocks that hold `rows` rows: rounded up.
    #[inline]
    pub fn holding(self, rows: u32) -> u32 {
        self.of(rows) + u32::from(self.within(rows) > 0)
    }

    /// `rows` rounded up to whole blocks.
    #[inline]
    pub fn whole(self, rows: u32) -> u32 {
        let over = self.within(rows);
        if over == 0 { rows } else { rows.saturating_add(self.rows - over) }
    }
}

#[cfg(test)]
mod tests {
    use crate::blocks::size::*;

    #[test]
    fn shifts_and_divisions_agree() {
        for size in [1, 2, 3, 16, 24, 256] {
            let blocks = BlockSize::new(size);
            for row in (0..600).chain(u32::MAX - 300..u32::MAX - 256) {
                assert_eq!((blocks.of(row), blocks.within(row)), (row / size, row % size));
                assert_eq!(blocks.holding(row), row.div_ceil(size));
                assert_eq!(blocks.whole(row), row.next_multiple_of(size));
            }
        }
    }
}
