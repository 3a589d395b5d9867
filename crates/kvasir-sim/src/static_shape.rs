use crate::Padding;
use kvasir_exec::{Phase, Step};

/// Limits of a device that runs fixed shapes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaticShape {
    /// What steps are padded to.
    pub padding: Padding,
    /// Rows of a decode step at most.
    pub max_batch: u32,
    /// Rows times the largest tkv at most.
    pub max_volume: u64,
}

impl StaticShape {
    /// Refuses a step that such a device could not run: a prefill is one row of at most a chunk, a decode is a rectangle of
    /// rows with one token and equally many blocks, and nothing else exists.
    pub fn check(&self, step: &Step) -> Result<(), String> {
        let rows = step.batch.rows.len();
        let prefills = step.batch.count(Phase::Prefill).0;
        match (rows, prefills) {
            (1, 1) => self.check_chunk(step),
            (_, 0) => self.check_rectangle(step),
            _ => Err(format!("{prefills} prefill rows among {rows}")),
        }
    }

    fn check_chunk(&self, step: &Step) -> Result<(), String> {
        let Some(row) = step.plan.rows.first() else { return Err("a step without rows".into()) };
        let Padding { block, chunk } = self.padding;
        let end = row.left_pad_blocks * block + row.read_len.next_multiple_of(block);
        match row.queries.len {
            tokens if tokens > chunk => Err(format!("a chunk of {tokens} tokens, the shape has {chunk}")),
            // The chunk ends where a chunk of the padded prompt ends.
            tokens if !end.is_multiple_of(chunk) => {
                Err(format!("{tokens} tokens that end at padded position {end}, chunks are {chunk}"))
            }
            _ => Ok(()),
        }
    }

    fn check_rectangle(&self, step: &Step) -> Result<(), String> {
        let block = self.padding.block;
        let rows = step.batch.rows.len();
        if rows > self.max_batch as usize {
            return Err(format!("{rows} rows, at most {}", self.max_batch));
        }
        let mut width = None;
        let mut widest = 0;
        for row in &step.plan.rows {
            let blocks = row.left_pad_blocks + row.read_len.div_ceil(block);
            if row.queries.len != 1 || row.redirected > 0 {
                return Err(format!("a decode row of {} tokens", row.queries.len));
            }
            if *width.get_or_insert(blocks) != blocks {
                return Err(format!("rows of {} and of {blocks} blocks", width.unwrap_or(0)));
            }
            widest = widest.max(u64::from(row.left_pad_blocks * block + row.read_len));
        }
        let volume = widest * rows as u64;
        match volume > self.max_volume {
            true => Err(format!("a volume of {volume}, at most {}", self.max_volume)),
            false => Ok(()),
        }
    }
}
