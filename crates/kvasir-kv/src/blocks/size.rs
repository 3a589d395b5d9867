//! `BlockSize`: row-to-block arithmetic; a shift and a mask where the block size is a power of two.

/// Rows per block. Mostly a power of two, for which a shift does what a division would.
#[derive(Clone, Copy, Debug)]
pub struct BlockSize {
    rows: u32,
    shift: Option<u32>,
}

impl BlockSize {
    /// Of `rows`, at least one.
    pub fn new(rows: u32) -> Self {
        Self { rows, shift: rows.is_power_of_two().then(|| rows.trailing_zeros()) }
    }

    /// How many they are.
    #[inline]
    pub fn rows(self) -> u32 {
        self.rows
    }

    /// The block that holds row `row`.
    #[inline]
    pub fn of(self, row: u32) -> u32 {
        match self.shift {
            Some(shift) => row >> shift,
            None => row / self.rows,
        }
    }

    /// Where in its block row `row` lies.
    #[inline]
    pub fn within(self, row: u32) -> u32 {
        match self.shift {
            Some(_) => row & (self.rows - 1),
            None => row % self.rows,
        }
    }

    /// Blocks that hold `rows` rows.
    #[inline]
    pub fn holding(self, rows: u32) -> u32 {
        self.of(rows) + u32::from(self.within(rows) > 0)
    }

    /// Rows of the blocks that hold `rows` rows.
    #[inline]
    pub fn whole(self, rows: u32) -> u32 {
        let over = self.within(rows);
        if over == 0 { rows } else { rows.saturating_add(self.rows - over) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
