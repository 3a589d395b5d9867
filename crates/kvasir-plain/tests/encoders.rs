//! Encoders: recorded vectors and scores, the same bits alone and in a batch, token types, GGUF.
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

/// The recorded encoders. A decoder among them is left out: its rows are causal.
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

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// A sequence's tokens, and where its second text starts.
type Text = (Vec<Token>, u32);

/// A step of whole sequences, as the engine builds it for an encoder.
fn step(texts: &[Text]) -> Step {
    let mut cache = build(CacheKind::Paged, &CacheConfig::new(1024)).unwrap();
    let sequences: Vec<_> = texts.iter().map(|_| cache.open().unwrap()).collect();
    let claims: Vec<_> =
        sequences.iter().zip(texts).map(|(seq, (ids, _))| ClaimRow::new(*seq, ids.len() as u32)).collect();
    let mut step = Step::default();
    cache.claim(StepId(1), &claims).unwrap();
    cache.plan(StepId(1), &mut step.plan).unwrap();
    step.plan.rows.iter_mut().for_each(|row| row.mask = Mask::None);
    let mut lowered = Plan::default();
    Lowering::default().lower(&step.plan, &mut lowered);
    step.plan = lowered;
    step.batch = Batch { step: StepId(1), ..Batch::default() };
    for (row, (seq, (ids, _))) in sequences.iter().zip(texts).enumerate() {
        step.batch.rows.push(BatchRow {
            seq: *seq,
            tokens: Span::new(step.batch.tokens.len(), ids.len()),
            context_len: ids.len() as u32,
            sample_from: ids.len() as u32 - 1,
            pool_row: PoolRow(row as u32),
            sampling: Sampling { hidden: true, ..Sampling::default() },
            ..BatchRow::default()
        });
        step.batch.tokens.extend_from_slice(ids);
    }
    step
}

fn executor(model: &PlainModel, texts: &[Text]) -> PlainExecutor {
    let mut executor = PlainExecutor::new(model, Limits { slots: 1024, tokens: 512, rows: 8 });
    for (row, (prompt, second_text)) in texts.iter().enumerate() {
        let spec =
            SequenceSpec { prompt: prompt.clone(), second_text: *second_text, ..SequenceSpec::default() };
        executor.bind(PoolRow(row as u32), spec);
    }
    executor
}

/// The vectors of texts that run in one step.
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

fn texts(expected: &Json) -> (Vec<Text>, Vec<Vec<f32>>) {
    let outputs = if expected["pooled"].is_null() { &expected["score"] } else { &expected["pooled"] };
    let prompts = expected["prompts"].as_object().unwrap();
    prompts.iter().map(|(name, ids)| ((tokens(ids), 0), floats(&outputs[name]))).unzip()
}

#[test]
fn vectors_and_scores_are_as_recorded_alone_and_in_a_batch() {
    for case in cases() {
        let (model, expected) = (load(&case), expected(&case));
        let (texts, recorded) = texts(&expected);
        let together = run(&model, &texts);
        for ((text, recorded), together) in texts.iter().zip(&recorded).zip(&together) {
            let alone = run(&model, std::slice::from_ref(text)).remove(0);
            assert_eq!(&alone, together, "{}", case.display());
            let error = worst(&alone, recorded);
            assert!(error < TOLERANCE, "{}, {} tokens: {error}", case.display(), text.0.len());
        }
    }
}

#[test]
fn hidden_states_are_as_recorded() {
    for case in cases() {
        let Ok(file) = std::fs::read(case.join("debug_p17.safetensors")) else { continue };
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        let bytes = file.tensor("last_hidden_state").unwrap().data().to_vec();
        let recorded: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        let text = [(tokens(&expected(&case)["prompts"]["p17"]), 0)];
        let model = load(&case);
        let pass = executor(&model, &text).pass(&step(&text), None, &[Tap::FinalNorm]).unwrap();
        let error = worst(&pass.taps[0].1, &recorded);
        assert!(error < TOLERANCE, "{}: {error}", case.display());
    }
}

#[test]
fn the_second_text_has_another_token_type() {
    let case = cases().remove(0);
    let (model, expected) = (load(&case), expected(&case));
    let record = &expected["p17_with_token_types"];
    let types = tokens(&record["types"]);
    let second_text = types.iter().position(|kind| *kind == 1).unwrap() as u32;
    let text = (tokens(&expected["prompts"]["p17"]), second_text);
    let vector = run(&model, &[text]).remove(0);
    let error = worst(&vector, &floats(&record["pooled"]));
    assert!(error < TOLERANCE, "{error}");
}

#[test]
fn converted_encoders_give_the_recorded_vectors() {
    let file = std::env::temp_dir().join(format!("kvasir-plain-encoder-{}.gguf", std::process::id()));
    for case in cases() {
        convert(&case, &file, &Rules::parse("f32", &[]).unwrap()).unwrap();
        let (model, (texts, recorded)) = (load(&file), texts(&expected(&case)));
        for (vector, recorded) in run(&model, &texts).iter().zip(&recorded) {
            let error = worst(vector, recorded);
            assert!(error < TOLERANCE, "{}: {error}", case.display());
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn rows_that_are_no_whole_sequences_are_refused() {
    let model = load(&cases()[0]);
    let text = [(vec![2, 40, 41, 3], 0)];
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
        assert!(error.contains("no whole sequence"), "{error}");
    }
}
