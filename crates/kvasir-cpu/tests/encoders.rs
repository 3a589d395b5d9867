//! Encoders: recorded vectors and scores, and identical bits alone, in a batch and on any number of
//! threads, with f32 and with quantized weights.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_cpu::{CpuExecutor, CpuModel, KvType, Limits, Precision, ThreadPool};
use kvasir_formats::{Checkpoint, Rules, convert};
use kvasir_program::Model;
use kvasir_testkit::encoders::{self, Text, expected, floats, max_error, texts, tokens};
use kvasir_testkit::paths::encoders as cases;
use std::path::Path;
use std::sync::Arc;

const TOLERANCE: f32 = 1e-3;

fn load(path: &Path, threads: usize) -> Arc<CpuModel> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    let threads = Arc::new(ThreadPool::new(threads));
    Arc::new(CpuModel::load(&model.target, Arc::new(checkpoint), Precision::Auto, threads).unwrap())
}

/// Runs the texts in one step, and returns the vector of each.
fn run(model: &Arc<CpuModel>, texts: &[Text]) -> Vec<Vec<f32>> {
    let kv: KvType = model.natural_kv();
    let limits = Limits { slots: 2048, tokens: 512, rows: 8, kv, ring: None };
    let mut executor = CpuExecutor::new(Arc::clone(model), limits).unwrap();
    encoders::bind(&mut executor, texts);
    encoders::run(&mut executor, encoders::step(texts))
}

/// Cosine similarity.
fn cosine(a: &[f32], b: &[f32]) -> f32 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

#[test]
fn vectors_and_scores_match_the_records_alone_and_in_a_batch() {
    for case in cases() {
        let (model, expected) = (load(&case, 2), expected(&case));
        assert_eq!(model.precision(), Precision::F32, "weights stored as f32");
        let (texts, recorded) = texts(&expected);
        let together = run(&model, &texts);
        assert_eq!(run(&load(&case, 1), &texts), together, "{}", case.display());
        for ((text, recorded), together) in texts.iter().zip(&recorded).zip(&together) {
            let alone = run(&model, std::slice::from_ref(text)).remove(0);
            assert_eq!(&alone, together, "{}", case.display());
            let error = max_error(&alone, recorded);
            assert!(error < TOLERANCE, "{}, {} tokens: {error}", case.display(), text.tokens.len());
        }
    }
}

#[test]
fn quantized_encoders_are_close_and_batch_invariant() {
    let file = std::env::temp_dir().join(format!("kvasir-cpu-encoder-{}.gguf", std::process::id()));
    for case in cases() {
        convert(&case, &file, &Rules::parse("q8_0", &[]).unwrap()).unwrap();
        let (model, (texts, recorded)) = (load(&file, 2), texts(&expected(&case)));
        let together = run(&model, &texts);
        for ((text, recorded), together) in texts.iter().zip(&recorded).zip(&together) {
            assert_eq!(&run(&model, std::slice::from_ref(text))[0], together, "{}", case.display());
            let is_close = match recorded.len() {
                1 => max_error(together, recorded) < 0.1,
                _ => cosine(together, recorded) > 0.999,
            };
            assert!(is_close, "{}: {together:?}, recorded {recorded:?}", case.display());
        }
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn token_type_1_applies_to_the_second_text() {
    let case = cases().remove(0);
    let (model, expected) = (load(&case, 1), expected(&case));
    let record = &expected["p17_with_token_types"];
    let types = tokens(&record["types"]);
    let second_text_start = types.iter().position(|kind| *kind == 1).unwrap() as u32;
    let text = Text { tokens: tokens(&expected["prompts"]["p17"]), second_text_start };
    let error = max_error(&run(&model, &[text])[0], &floats(&record["pooled"]));
    assert!(error < TOLERANCE, "{error}");
}
