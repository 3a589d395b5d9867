//! Runs tokens through an executor without an engine, chunk by chunk (chunked prefill): for shared
//! prefixes.

use crate::backend::AnyExecutor;
use crate::error::Error;
use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, RowKind, SequenceSpec, Step};
use kvasir_kv::{Cache, CacheError, ClaimRow, Lowering, Position, Span, StepId, Token};

/// Chunk size in tokens.
pub(crate) const CHUNK: usize = 256;

/// Prefills `tokens` in a new sequence of `cache`, which must have no open sequence. They follow
/// the cache's shared prefix, if any. `final_len` bounds the sequence's length (it selects RoPE
/// scaling). With recurrent states, stores checkpoints at `marks`.
pub(crate) fn feed(
    executor: &mut AnyExecutor,
    cache: &mut dyn Cache,
    tokens: &[Token],
    final_len: u32,
    marks: &[Position],
) -> Result<(), Error> {
    let broken = |e: CacheError| Error::Failed(e.to_string());
    executor.bind(PoolRow(0), SequenceSpec { final_len, ..SequenceSpec::default() });
    let seq = cache.open().map_err(broken)?;
    cache.mark_checkpoints(seq, marks).map_err(broken)?;
    for (number, chunk) in (1..).zip(tokens.chunks(CHUNK)) {
        let (id, start, count) = (StepId(number), cache.len(seq).map_err(broken)?, chunk.len() as u32);
        cache.claim(id, &[ClaimRow::new(seq, count)]).map_err(broken)?;
        let mut step = Step::default();
        cache.plan(id, &mut step.plan).map_err(broken)?;
        let row = BatchRow {
            seq,
            kind: RowKind::Prefill,
            tokens: Span::new(0, chunk.len()),
            cached: start,
            context_len: start + count,
            last_block_tokens: 1,
            sample_from: count,
            ..BatchRow::default()
        };
        step.batch = Batch { step: id, tokens: chunk.to_vec(), rows: vec![row], ..Batch::default() };
        run(executor, step)?;
        cache.retire(id).map_err(broken)?;
    }
    Ok(())
}

fn run(executor: &mut AnyExecutor, mut step: Step) -> Result<(), Error> {
    step.lower(&executor.abilities(), &mut Lowering::default()).map_err(|e| Error::Failed(e.to_string()))?;
    let pending =
        executor.submit(Box::new(step)).map_err(|refused| Error::Failed(refused.error.to_string()))?;
    executor.wait(pending).1.map_err(|e| Error::Failed(e.to_string()))
}
