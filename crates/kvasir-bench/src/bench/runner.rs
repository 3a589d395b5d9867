//! Executes one benchmark workload on an engine: adds its requests, and times the steps that count.
//!
//! - A prompt alone is timed from its submission to the first output.
//! - Decoding is timed from the step after which every prompt has been read.
//! - Behind a shared prefix, which a request of its own has read, prompts and decoding are timed.
//!
//! Prompts differ between repetitions, so that a prefix cache finds nothing of earlier ones.

use crate::bench::Work;
use crate::bench::segments::Segments;
use kvasir_cpu::MachineLimits;
use kvasir_engine::{DraftStats, Engine, Finish, Params, Request, Turn};
use kvasir_exec::Executor;
use kvasir_kv::Token;

/// An engine with the state of its repetitions.
pub(crate) struct Runner<E: Executor> {
    engine: Engine<E>,
    vocab: u32,
    repetition: u32,
}

impl<E: Executor> Runner<E> {
    pub(super) fn new(engine: Engine<E>, vocab: u32) -> Self {
        Self { engine, vocab, repetition: 0 }
    }

    pub(super) fn draft_stats(&self) -> DraftStats {
        self.engine.core().draft_stats().clone()
    }

    /// Runs one repetition; the timed parts are recorded in `segments`. Returns the tokens that count.
    pub(super) fn once(
        &mut self,
        work: Work,
        segments: &mut Segments<impl Fn() -> Option<MachineLimits>>,
    ) -> Result<f64, String> {
        let (streams, shared, prompt, tokens) = work.sizes();
        self.repetition += 1;
        if shared > 0 {
            self.add(self.text(streams, 0..shared), 1)?;
            while self.step()?.1 == 0 {}
        }
        let prefix = self.text(streams, 0..shared);
        // Prefill is timed after a shared prefix (branches) or if nothing is decoded.
        let mut is_timed = shared > 0 || tokens == 0;
        if is_timed {
            segments.begin();
        }
        for stream in 0..streams {
            let own = self.text(stream, shared..shared + prompt);
            self.add([&prefix[..], &own].concat(), tokens + 1)?;
        }
        // The first output of a stream follows from its prompt.
        let (mut outputs, mut before, mut ended, mut steps) = (0, u64::from(streams), 0, 0);
        loop {
            let (new, done) = self.step()?;
            (outputs, ended, steps) = (outputs + new, ended + done, steps + 1);
            if ended == u64::from(streams) {
                break;
            }
            let core = self.engine.core();
            if !is_timed && core.counts().0 == 0 && core.running().all(|sequence| !sequence.is_prefilling()) {
                (is_timed, before, steps) = (true, outputs, 0);
                segments.begin();
            } else if is_timed && segments.is_long() && !self.engine.overlaps() {
                segments.end(steps);
                segments.begin();
                steps = 0;
            }
        }
        if !is_timed {
            return Err(
                "no decode step was timed: every sequence ended at its first output; generate more tokens"
                    .into(),
            );
        }
        segments.end(steps);
        while self.engine.step().map_err(|exit| exit.to_string())? != Turn::Idle {}
        Ok(if tokens == 0 { f64::from(prompt) } else { (outputs - before) as f64 })
    }

    /// Tokens of a stream's text in this repetition.
    fn text(&self, stream: u32, range: std::ops::Range<u32>) -> Vec<Token> {
        let token = |i: u32| i.wrapping_mul(7919).wrapping_add(stream * 31 + self.repetition * 577 + 11);
        range.map(|i| token(i) % self.vocab).collect()
    }

    fn add(&mut self, prompt: Vec<Token>, max_tokens: u32) -> Result<(), String> {
        let params = Params { max_tokens, ignore_eos: true, ..Params::default() };
        let request = Request { tag: 0, prompt, params };
        self.engine.add_request(request).map(drop).map_err(|refusal| refusal.to_string())
    }

    /// Runs one turn; returns the numbers of new outputs and of ended requests. A request that fails
    /// ends the benchmark.
    fn step(&mut self) -> Result<(u64, u64), String> {
        self.engine.step().map_err(|exit| exit.to_string())?;
        let outbox = self.engine.core_mut().outbox();
        let counts = (outbox.tokens.len() as u64, outbox.ended.len() as u64);
        let is_complete = |finish| matches!(finish, Finish::MaxTokens | Finish::ModelLength);
        let failed = outbox.ended.iter().find(|summary| !is_complete(summary.finish));
        let failed =
            failed.map(|summary| format!("a sequence ended early with finish reason `{}`", summary.finish));
        outbox.clear();
        failed.map_or(Ok(counts), Err)
    }
}
