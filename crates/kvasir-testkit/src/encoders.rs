//! Encoders on any backend: the recorded vectors and scores of a checkpoint, and steps of whole
//! texts.

use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step};
use kvasir_kv::{CacheConfig, CacheKind, ClaimRow, Mask, Span, StepId, Token, build};
use serde_json::Value as Json;
use std::{fs, path::Path};

/// One sequence of an encoder.
pub struct Text {
    /// Token ids, with the special tokens of the template.
    pub tokens: Vec<Token>,
    /// Index of the first token of type 1; 0 if there is none.
    pub second_text_start: u32,
}

/// The recorded results of an encoder of [`encoders`](crate::paths::encoders).
pub fn expected(case: &Path) -> Json {
    serde_json::from_str(&fs::read_to_string(case.join("embedding_expected.json")).unwrap()).unwrap()
}

/// The recorded texts, and the vector or the scores of each.
pub fn texts(expected: &Json) -> (Vec<Text>, Vec<Vec<f32>>) {
    let outputs = if expected["pooled"].is_null() { &expected["score"] } else { &expected["pooled"] };
    let prompts = expected["prompts"].as_object().unwrap();
    prompts
        .iter()
        .map(|(name, ids)| (Text { tokens: tokens(ids), second_text_start: 0 }, floats(&outputs[name])))
        .unzip()
}

/// A number, or a list of numbers.
pub fn floats(json: &Json) -> Vec<f32> {
    let list = json.as_array().cloned().unwrap_or_else(|| vec![json.clone()]);
    list.iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

/// A list of token ids.
pub fn tokens(json: &Json) -> Vec<Token> {
    json.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as Token).collect()
}

/// The largest absolute difference.
pub fn max_error(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A step of whole sequences, as the engine builds it for an encoder.
pub fn step(texts: &[Text]) -> Step {
    let mut cache = build(CacheKind::Paged, &CacheConfig::new(1024)).unwrap();
    let sequences: Vec<_> = texts.iter().map(|_| cache.open().unwrap()).collect();
    let claims: Vec<_> = sequences
        .iter()
        .zip(texts)
        .map(|(seq, text)| ClaimRow::new(*seq, text.tokens.len() as u32))
        .collect();
    let mut step = Step::default();
    cache.claim(StepId(1), &claims).unwrap();
    cache.plan(StepId(1), &mut step.plan).unwrap();
    step.plan.rows.iter_mut().for_each(|row| row.mask = Mask::None);
    step.batch = Batch { step: StepId(1), ..Batch::default() };
    for (row, (seq, Text { tokens, .. })) in sequences.iter().zip(texts).enumerate() {
        let mut row = BatchRow {
            seq: *seq,
            tokens: Span::new(step.batch.tokens.len(), tokens.len()),
            context_len: tokens.len() as u32,
            sample_from: tokens.len() as u32 - 1,
            pool_row: PoolRow(row as u32),
            ..BatchRow::default()
        };
        row.sampling.hidden = true;
        step.batch.rows.push(row);
        step.batch.tokens.extend_from_slice(tokens);
    }
    step
}

/// Binds each text to the pool row that [`step`] gives it.
pub fn bind(executor: &mut impl Executor, texts: &[Text]) {
    for (row, text) in texts.iter().enumerate() {
        let spec = SequenceSpec {
            prompt: text.tokens.clone(),
            second_text_start: text.second_text_start,
            ..SequenceSpec::default()
        };
        executor.bind(PoolRow(row as u32), spec);
    }
}

/// Runs a step, and returns the vector of each of its texts.
pub fn run(executor: &mut impl Executor, step: Step) -> Vec<Vec<f32>> {
    let texts = step.batch.rows.len();
    let pending = executor.submit(Box::new(step)).map_err(|refused| refused.error).unwrap();
    let (step, result) = executor.wait(pending);
    result.unwrap();
    assert!(step.output.tokens.is_empty() && step.output.broken.is_empty());
    assert_eq!(step.output.rows.len(), texts);
    let width = step.output.hidden.len() / texts;
    step.output.hidden.chunks(width).map(<[f32]>::to_vec).collect()
}
