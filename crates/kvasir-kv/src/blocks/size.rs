/// Rows per block. Mostly a power of two, for which a shift does what a division would.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockSize {
    rows: u32,
    shift: Option<u32>,
}

impl BlockSize {
    pub(crate) fn new(rows: u32) -> Self {
        Self { rows, shift: rows.is_power_of_two().then(|| rows.trailing_zeros()) }
    }

    pub(crate) fn rows(self) -> u32 {
        self.rows
    }

    /// The block that holds row `row`.
    pub(crate) fn of(self, row: u32) -> u32 {
        match self.shift {
            Some(shift) => row >> shift,
            None => row / self.rows,
        }
    }

    /// Where in its block row `row` lies.
    pub(crate) fn within(self, row: u32) -> u32 {
        row - self.of(row) * self.rows
    }

    /// Blocks that hold `rows` rows.
    pub(crate) fn holding(self, rows: u32) -> u32 {
        let whole = self.of(rows);
        whole + u32::from(whole * self.rows < rows)
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
            }
        }
    }
}
