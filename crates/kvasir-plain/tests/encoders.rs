//! Encoders: recorded vectors and scores, identical bits alone and in a batch, token types,
//! converted GGUF files, and rejection of partial sequences.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_exec::{Batch, BatchRow, Executor, PoolRow, SequenceSpec, Step};
use kvasir_formats::{Checkpoint, Rules, convert};
use kvasir_kv::{CacheConfig, CacheKind, ClaimRow, Lowering, Mask, Plan, Span, StepId, Token, build};
use kvasir_plain::{Limits, PlainExecutor, PlainModel};
use kvasir_program::{Model, Tap};
use kvasir_sample::Sampling;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const TOLERANCE: f32 = 1e-3;

/// Directories of the recorded encoders. `embed_qwen3` is left out: it is a decoder.
fn cases() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/encoders");
    let mut cases: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    cases.retain(|case| !case.ends_with("embed_qwen3"));
    cases.sort();
    assert_eq!(cases.len(), 5);
    cases
}

fn load(path: &Path) -> PlainModel {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    PlainModel::load(&model, &checkpoint).unwrap()
}

fn expected(case: &Path) -> Json {
    serde_json::from_str(&std::fs::read_to_string(case.join("embedding_expected.json")).unwrap()).unwrap()
}

fn floats(json: &Json) -> Vec<f32> {
    let list = json.as_array().cloned().unwrap_or_else(|| vec![json.clone()]);
    list.iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn tokens(json: &Json) -> Vec<Token> {
    json.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as Token).collect()
}

/// The largest absolute difference.
fn max_error(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// One sequence of an encoder.
struct Text {
    tokens: Vec<Token>,
    /// Index of the first token of type 1; 0 if there is none.
    second_text_start: u32,
}

/// A step of whole sequences, as the engine builds it for an encoder.
fn step(texts: &[Text]) -> Step {
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
    let mut lowered = Plan::default();
    Lowering::default().lower(&step.plan, &mut lowered);
    step.plan = lowered;
    step.batch = Batch { step: StepId(1), ..Batch::default() };
    for (row, (seq, Text { tokens, .. })) in sequences.iter().zip(texts).enumerate() {
        step.batch.rows.push(BatchRow {
            seq: *seq,
            tokens: Span::new(step.batch.tokens.len(), tokens.len()),
            context_len: tokens.len() as u32,
            sample_from: tokens.len() as u32 - 1,
            pool_row: PoolRow(row as u32),
            sampling: Sampling { hidden: true, ..Sampling::default() },
            ..BatchRow::default()
        });
        step.batch.tokens.extend_from_slice(tokens);
    }
    step
}

fn executor(model: &PlainModel, texts: &[Text]) -> PlainExecutor {
    let mut executor = PlainExecutor::new(model, Limits { slots: 1024, tokens: 512, rows: 8 });
    for (row, text) in texts.iter().enumerate() {
        let spec = SequenceSpec {
            prompt: text.tokens.clone(),
            second_text_start: text.second_text_start,
            ..SequenceSpec::default()
        };
        executor.bind(PoolRow(row as u32), spec);
    }
    executor
}

/// Runs the texts in one step, and returns the vector of each.
fn run(model: &PlainModel, texts: &[Text]) -> Vec<Vec<f32>> {
    let mut executor = executor(model, texts);
    let pending = executor.submit(Box::new(step(texts))).map_err(|refused| refused.error).unwrap();
    let (step, result) = executor.wait(pending);
    result.unwrap();
    assert!(step.output.tokens.is_empty() && step.output.broken.is_empty());
    assert_eq!(step.output.rows.len(), texts.len());
    let width = step.output.hidden.len() / texts.len();
    step.output.hidden.chunks(width).map(<[f32]>::to_vec).collect()
}

/// The recorded texts, and the vector or the scores of each.
fn texts(expected: &Json) -> (Vec<Text>, Vec<Vec<f32>>) {
    let outputs = if expected["pooled"].is_null() { &expected["score"] } else { &expected["pooled"] };
    let prompts = expected["prompts"].as_object().unwrap();
    prompts
        .iter()
        .map(|(name, ids)| (Text { tokens: tokens(ids), second_text_start: 0 }, floats(&outputs[name])))
        .unzip()
}

#[test]
fn vectors_and_scores_match_the_records_alone_and_in_a_batch() {
    for case in cases() {
        let (model, expected) = (load(&case), expected(&case));
        let (texts, recorded) = texts(&expected);
        let together = run(&model, &texts);
        for ((text, recorded), together) in texts.iter().zip(&recorded).zip(&together) {
            let alone = run(&model, std::slice::from_ref(text)).remove(0);
            assert_eq!(&alone, together, "{}", case.display());
            let error = max_error(&alone, recorded);
            assert!(error < TOLERANCE, "{}, {} tokens: {error}", case.display(), text.tokens.len());
        }
    }
}

#[test]
fn hidden_states_match_the_records() {
    for case in cases() {
        let Ok(file) = std::fs::read(case.join("debug_p17.safetensors")) else { continue };
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        let bytes = file.tensor("last_hidden_state").unwrap().data().to_vec();
        let recorded: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let text = [Text { tokens: tokens(&expected(&case)["prompts"]["p17"]), second_text_start: 0 }];
        let model = load(&case);
        let pass = executor(&model, &text).pass(&step(&text), None, &[Tap::FinalNorm]).unwrap();
        let error = max_error(&pass.taps[0].1, &recorded);
        assert!(error < TOLERANCE, "{}: {error}", case.display());
    }
}

#[test]
fn token_type_1_applies_to_the_second_text() {
    let case = cases().remove(0);
    let (model, expected) = (load(&case), expected(&case));
    let record = &expected["p17_with_token_types"];
    let types = tokens(&record["types"]);
    let second_text_start = types.iter().position(|kind| *kind == 1).unwrap() as u32;
    let text = Text { tokens: tokens(&expected["prompts"]["p17"]), second_text_start };
    let vector = run(&model, &[text]).remove(0);
    let error = max_error(&vector, &floats(&record["pooled"]));
    assert!(error < TOLERANCE, "{error}");
}

#[test]
fn converted_encoders_give_the_recorded_vectors() {
    let file = std::env::temp_dir().join(format!("kvasir-plain-encoder-{}.gguf", std::process::id()));
    for case in cases() {
        convert(&case, &file, &Rules::parse("f32", &[]).unwrap()).unwrap();
        let (model, (texts, recorded)) = (load(&file), texts(&expected(&case)));
        for (vector, recorded) in run(&model, &texts).iter().zip(&recorded) {
            let error = max_error(vector, recorded);
            assert!(error < TOLERANCE, "{}: {error}", case.display());
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn partial_sequences_are_rejected() {
    let model = load(&cases()[0]);
    let text = [Text { tokens: vec![2, 40, 41, 3], second_text_start: 0 }];
    let fails = |change: fn(&mut Step)| {
        let mut step = step(&text);
        change(&mut step);
        executor(&model, &text).pass(&step, None, &[]).unwrap_err().to_string()
    };
    for change in [
        |step: &mut Step| step.batch.rows[0].cached = 1,
        |step: &mut Step| step.batch.rows[0].sample_from = 0,
        |step: &mut Step| step.plan.positions.iter_mut().for_each(|position| *position += 1),
    ] {
        let error = fails(change);
        assert!(error.contains("not a whole sequence"), "{error}");
    }
}
