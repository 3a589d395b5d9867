//! Logits of a prompt, computed by an engine that runs the prompt as its only request.

use crate::backend::{AnyExecutor, AnyPending};
use crate::engine::clock;
use crate::error::Error;
use crate::load::LoadedModel;
use kvasir_engine::{Core, Engine, EngineConfig, Fault, Finish, Params};
use kvasir_exec::{Abilities, Executor, PoolRow, Refused, SequenceSpec, Step, StepError};
use kvasir_kv::{CacheKind, Span, Token};
use std::collections::VecDeque;

impl LoadedModel {
    /// Next-token logits after the last token of a prompt, or with `all` after each token.
    pub fn logits(&self, prompt: &[Token], all: bool) -> Result<Vec<Vec<f32>>, Error> {
        let config = EngineConfig { cache: Some(CacheKind::Contiguous), ..EngineConfig::default() };
        let mut resolved = config.resolve(&self.facts(Some(prompt.len() as u32 + 1)))?;
        resolved.limits.max_prompt = Some(resolved.limits.max_model_len);
        self.logits_with(resolved.core()?, resolved.overlap, prompt, all)
    }

    /// [`logits`](Self::logits) under the policy, cache and limits of a core.
    pub fn logits_with(
        &self,
        core: Core,
        overlap: bool,
        prompt: &[Token],
        all: bool,
    ) -> Result<Vec<Vec<f32>>, Error> {
        if self.simulated().is_some() {
            return Err(Error::invalid("backend", "the sim backend computes no logits"));
        }
        let params = Params { max_tokens: 1, ignore_eos: true, ..Params::default() };
        let request = self.request(prompt.to_vec(), params)?;
        let inner = self.executor_on_thread(&core, overlap, None)?;
        let executor = LogitsExecutor { inner, all, sampled_from: VecDeque::new(), logits: Vec::new() };
        let mut engine = Engine::new(core, executor, clock()).overlap(overlap);
        engine.add_request(request).map_err(Error::Refused)?;
        let finish = loop {
            engine.step().map_err(|exit| Error::Failed(exit.to_string()))?;
            if let Some(summary) = engine.core_mut().outbox().ended.first() {
                break summary.finish;
            }
        };
        let logits = std::mem::take(&mut engine.executor_mut().logits);
        match finish {
            Finish::Failed(fault) => Err(Error::Failed(fault.to_string())),
            _ if !kvasir_sample::can_be_drawn_from(&logits) => {
                Err(Error::Failed(Fault::NotFinite.to_string()))
            }
            _ => Ok(logits.chunks(self.program().vocab.max(1)).map(<[f32]>::to_vec).collect()),
        }
    }
}

/// Collects the logits of steps of one sequence. With `all` it samples at every position of a step
/// and hides the tokens that the engine did not request.
struct LogitsExecutor {
    inner: AnyExecutor,
    all: bool,
    /// `sample_from` of the steps in flight, as the engine wrote it.
    sampled_from: VecDeque<u32>,
    logits: Vec<f32>,
}

impl Executor for LogitsExecutor {
    type Pending = AnyPending;

    fn abilities(&self) -> Abilities {
        self.inner.abilities()
    }

    fn bind(&mut self, row: PoolRow, spec: SequenceSpec) {
        self.inner.bind(row, spec);
    }

    fn submit(&mut self, mut step: Box<Step>) -> Result<AnyPending, Refused> {
        step.batch.logits = true;
        for row in &mut step.batch.rows {
            self.sampled_from.push_back(row.sample_from);
            row.sample_from = if self.all { 0 } else { row.sample_from };
        }
        self.inner.submit(step)
    }

    fn wait(&mut self, pending: AnyPending) -> (Box<Step>, Result<(), StepError>) {
        let (mut step, result) = self.inner.wait(pending);
        self.logits.extend_from_slice(&step.output.logits);
        let Step { batch, output, .. } = &mut *step;
        for (row, out) in batch.rows.iter_mut().zip(&mut output.rows) {
            row.sample_from = self.sampled_from.pop_front().unwrap_or(row.sample_from);
            let wanted = (row.tokens.len - row.sample_from).min(out.tokens.len);
            let start = out.tokens.start + out.tokens.len - wanted;
            out.tokens = Span { start, len: wanted };
        }
        (step, result)
    }
}
