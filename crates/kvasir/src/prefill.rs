//! Runs tokens through an executor without an engine, chunk by chunk (chunked prefill): for logits
//! and shared prefixes.

use crate::backend::AnyExecutor;
use crate::error::Error;
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, RowKind, SequenceSpec, Step};
use kvasir_kv::{Cache, CacheError, ClaimRow, Lowering, Span, StepId, Token};

/// Chunk size in tokens.
pub(crate) const CHUNK: usize = 256;

/// Positions whose logits are returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    Nothing,
    Last,
    All,
}

impl Wanted {
    /// Index of a chunk's first token with logits.
    fn from(self, tokens: usize, is_last: bool) -> usize {
        match self {
            Self::All => 0,
            Self::Last if is_last => tokens - 1,
            Self::Last | Self::Nothing => tokens,
        }
    }
}

/// Prefills `tokens` in a new sequence of `cache`, which must have no open sequence. They follow
/// the cache's shared prefix, if any. `final_len` bounds the sequence's length (it selects RoPE
/// scaling). Returns the wanted logits, a row per position.
pub(crate) fn feed(
    executor: &mut AnyExecutor,
    cache: &mut dyn Cache,
    tokens: &[Token],
    final_len: u32,
    wanted: Wanted,
) -> Result<Vec<f32>, Error> {
    let broken = |e: CacheError| Error::Failed(e.to_string());
    executor.bind(PoolRow(0), SequenceSpec { final_len, ..SequenceSpec::default() });
    let seq = cache.open().map_err(broken)?;
    let (mut logits, mut left) = (Vec::new(), tokens.len());
    for (number, chunk) in (1..).zip(tokens.chunks(CHUNK)) {
        left -= chunk.len();
        let (id, start, count) = (StepId(number), cache.len(seq).map_err(broken)?, chunk.len() as u32);
        cache.claim(id, &[ClaimRow { seq, redirected: 0, tokens: count }]).map_err(broken)?;
        let mut step = Step::default();
        cache.plan(id, &mut step.plan).map_err(broken)?;
        let row = BatchRow {
            seq,
            kind: RowKind::Prefill,
            tokens: Span::new(0, chunk.len()),
            cached: start,
            context_len: start + count,
            last_block_tokens: 1,
            sample_from: wanted.from(chunk.len(), left == 0) as u32,
            ..BatchRow::default()
        };
        let (tokens, rows, with_logits) = (chunk.to_vec(), vec![row], wanted != Wanted::Nothing);
        step.batch = Batch { step: id, tokens, rows, logits: with_logits, ..Batch::default() };
        let step = run(executor, step)?;
        cache.retire(id).map_err(broken)?;
        logits.extend_from_slice(&step.output.logits);
    }
    Ok(logits)
}

fn run(executor: &mut AnyExecutor, mut step: Step) -> Result<Box<Step>, Error> {
    step.lower(&executor.abilities(), &mut Lowering::default()).map_err(|e| Error::Failed(e.to_string()))?;
    let pending =
        executor.submit(Box::new(step)).map_err(|refused| Error::Failed(refused.error.to_string()))?;
    let (step, result) = executor.wait(pending);
    result.map(|()| step).map_err(|e| Error::Failed(e.to_string()))
}
