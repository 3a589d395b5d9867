use crate::{Error, Loaded};
use kvasir_exec::{Batch, BatchRow, Drafts, Executor, Phase, PoolRow, SequenceSpec, Step};
use kvasir_kv::{Cache, CacheError, ClaimRow, Contiguous, Span, StepId, Token};
use kvasir_sample::Sampling;

/// Tokens per step.
const CHUNK: usize = 256;

impl Loaded {
    /// Logits after the last token of a prompt, or with `all` after each of its tokens.
    pub fn logits(&self, prompt: &[Token], all: bool) -> Result<Vec<Vec<f32>>, Error> {
        self.check_prompt(prompt)?;
        if self.simulated().is_some() {
            return Err(Error::Asked("the sim backend computes no logits".into()));
        }
        let broken = |e: CacheError| Error::Failed(e.to_string());
        let mut executor = self.executor(prompt.len() as u32, CHUNK as u32, 1, None)?;
        let final_len = prompt.len() as u32;
        let spec = SequenceSpec { prompt: prompt.to_vec(), final_len, ..SequenceSpec::default() };
        executor.bind(PoolRow(0), spec);
        let mut cache = Contiguous::new(prompt.len() as u32);
        let seq = cache.open().map_err(broken)?;
        let mut rows = Vec::new();
        for (number, chunk) in (1..).zip(prompt.chunks(CHUNK)) {
            let (id, start) = (StepId(number), cache.len(seq).map_err(broken)?);
            let is_last = start as usize + chunk.len() == prompt.len();
            let sample_from = match (all, is_last) {
                (true, _) => 0,
                (false, true) => chunk.len() - 1,
                (false, false) => chunk.len(),
            };
            let tokens = chunk.len() as u32;
            cache.claim(id, &[ClaimRow { seq, redirected: 0, tokens }]).map_err(broken)?;
            let mut step = Step::default();
            cache.plan(id, &mut step.plan).map_err(broken)?;
            let row = BatchRow {
                request: 0,
                seq,
                phase: Phase::Prefill,
                tokens: Span::new(0, chunk.len()),
                cached: start,
                context_len: start + tokens,
                last_block_tokens: 1,
                sample_from: sample_from as u32,
                pool_row: PoolRow(0),
                scored: Span::default(),
                drafts: Drafts::default(),
                sampling: Sampling::default(),
            };
            step.batch =
                Batch { step: id, tokens: chunk.to_vec(), rows: vec![row], logits: true, ..Batch::default() };
            let step = run(&mut executor, step)?;
            cache.retire(id).map_err(broken)?;
            rows.extend(step.output.logits.chunks(self.program().vocab.max(1)).map(<[f32]>::to_vec));
        }
        Ok(rows)
    }
}

fn run(executor: &mut impl Executor, step: Step) -> Result<Box<Step>, Error> {
    let pending =
        executor.submit(Box::new(step)).map_err(|refused| Error::Failed(refused.error.to_string()))?;
    let (step, result) = executor.wait(pending);
    result.map(|()| step).map_err(|e| Error::Failed(e.to_string()))
}
