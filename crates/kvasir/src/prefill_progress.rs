//! [`PrefillProgress`]: how much of its prompt an engine has read, for a progress display.
//!
//! An observer notes each prefill chunk when it is scheduled and when it has completed. Inside a chunk, the CPU backend
//! tells the share of its forward pass that has run; other backends count whole chunks.
//!
//! The newest request counts: an engine that serves several at once has several prompts to read.

use crate::load::LoadedModel;
use kvasir_cpu::CpuModel;
use kvasir_engine::{Core, Nanos, Observer};
use kvasir_exec::{Step, StepError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A prompt that is being read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PrefillState {
    /// Tokens to read: those whose K/V was not cached.
    pub tokens: u32,
    /// Share of them that has been read, from 0 to 1.
    pub share: f64,
}

/// The newest request's prompt, in tokens.
#[derive(Default)]
struct Reading {
    request: u64,
    /// Tokens of the prompt; 0 once it has been read.
    prompt: u32,
    /// Tokens with K/V before its first step.
    cached: Option<u32>,
    /// Tokens with K/V.
    read: u32,
    /// Tokens of the chunk that is being read.
    chunk: u32,
}

impl Reading {
    /// The progress when a fraction `chunk_share` of the current chunk has been read.
    fn state(&self, chunk_share: f64) -> Option<PrefillState> {
        let cached = self.cached.filter(|cached| *cached < self.prompt)?;
        let read = f64::from(self.read.saturating_sub(cached)) + f64::from(self.chunk) * chunk_share;
        let tokens = self.prompt - cached;
        Some(PrefillState { tokens, share: (read / f64::from(tokens)).min(1.0) })
    }
}

/// How much of the newest request's prompt has been read; clones share it.
#[derive(Clone)]
pub struct PrefillProgress {
    reading: Arc<Mutex<Reading>>,
    cpu: Option<Arc<CpuModel>>,
}

impl PrefillProgress {
    /// The progress of an engine over `model`, and the observer to add to that engine.
    pub fn of(model: &LoadedModel) -> (Self, Box<dyn Observer>) {
        let progress = Self { reading: Arc::default(), cpu: model.cpu_model() };
        (progress.clone(), Box::new(PrefillObserver { progress, watch: None }))
    }

    /// An observer that calls `watch` whenever a chunk has been read.
    pub(crate) fn watched(
        model: &LoadedModel,
        watch: impl FnMut(PrefillState) + Send + 'static,
    ) -> Box<dyn Observer> {
        let progress = Self { reading: Arc::default(), cpu: model.cpu_model() };
        Box::new(PrefillObserver { progress, watch: Some(Box::new(watch)) })
    }

    /// The prompt that is being read; `None` before its first step and behind its last.
    pub fn state(&self) -> Option<PrefillState> {
        let share = self.cpu.as_ref().map_or(0.0, |model| model.forward_share().min(1.0));
        lock(&self.reading).state(share)
    }
}

fn lock(reading: &Mutex<Reading>) -> MutexGuard<'_, Reading> {
    reading.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives the progress after each chunk.
type PrefillWatch = Box<dyn FnMut(PrefillState) + Send>;

/// Notes prefill chunks.
struct PrefillObserver {
    progress: PrefillProgress,
    watch: Option<PrefillWatch>,
}

impl Observer for PrefillObserver {
    fn scheduled(&mut self, core: &Core, step: &Step) {
        let mut reading = lock(&self.progress.reading);
        if let Some(newest) = core.record().arrived.last() {
            *reading = Reading { request: newest.request.0, prompt: newest.prompt, ..Reading::default() };
        }
        if reading.prompt == 0 {
            return;
        }
        if let Some(row) = step.batch.rows.iter().find(|row| row.request == reading.request) {
            reading.cached.get_or_insert(row.cached);
            (reading.read, reading.chunk) = (row.cached, row.tokens.len);
        }
    }

    fn completed(&mut self, _: &Core, step: &Step, _: &Result<(), StepError>, _: Nanos) {
        let mut reading = lock(&self.progress.reading);
        if reading.prompt == 0 {
            return;
        }
        if let Some(row) = step.batch.rows.iter().find(|row| row.request == reading.request) {
            (reading.read, reading.chunk) = (row.cached + row.tokens.len, 0);
        }
        let state = reading.state(0.0);
        if reading.read >= reading.prompt {
            reading.prompt = 0;
        }
        drop(reading);
        if let (Some(watch), Some(state)) = (&mut self.watch, state) {
            watch(state);
        }
    }

    fn idle(&mut self, _: &Core) {
        lock(&self.progress.reading).prompt = 0;
    }
}
