//! Test helper: steps of several sequences that compute the logits of every token.

use super::{Stream, limits, lower};
use kvasir_exec::Step;
use kvasir_kv::{Cache, StepId, Token};
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_testkit::steps::{self, RowInput};

/// Claims and plans a step that computes the logits of every token, with explicit masks.
pub(crate) fn step(cache: &mut dyn Cache, id: u64, inputs: &[RowInput]) -> Step {
    let mut step = steps::step(cache, id, inputs);
    lower(&mut step);
    step
}

/// Runs a step and returns each token's logits.
pub(crate) fn run(
    executor: &mut PlainExecutor,
    cache: &mut dyn Cache,
    id: u64,
    inputs: &[RowInput],
) -> Vec<Vec<f32>> {
    let step = step(cache, id, inputs);
    let logits = executor.pass(&step, None, &[]).unwrap().logits;
    cache.retire(StepId(id)).unwrap();
    logits.chunks(executor.program().vocab).map(<[f32]>::to_vec).collect()
}

/// Logits of the tokens as the only sequence of a contiguous cache, in one step.
pub(crate) fn reference_logits(model: &PlainModel, tokens: &[Token]) -> Vec<Vec<f32>> {
    let mut stream = Stream::new(PlainExecutor::new(model, limits()), tokens, tokens.len());
    let logits = stream.pass(tokens, 0, None, &[]).logits;
    logits.chunks(model.program().vocab).map(<[f32]>::to_vec).collect()
}
