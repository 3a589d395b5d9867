//! Encoders: recorded vectors and scores, identical bits alone and in a batch, token types,
//! converted GGUF files, and rejection of partial sequences.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

use kvasir_exec::Step;
use kvasir_formats::{Checkpoint, Rules, convert};
use kvasir_kv::{Lowering, Plan};
use kvasir_plain::{Limits, PlainExecutor, PlainModel};
use kvasir_program::{Model, Tap};
use kvasir_testkit::encoders::{self, Text, expected, floats, max_error, texts, tokens};
use kvasir_testkit::paths::encoders as cases;
use std::path::Path;

const TOLERANCE: f32 = 1e-3;

fn load(path: &Path) -> PlainModel {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = Model::build(&checkpoint.source()).unwrap();
    PlainModel::load(&model, &checkpoint).unwrap()
}

/// A step of whole sequences, lowered to explicit masks.
fn step(texts: &[Text]) -> Step {
    let mut step = encoders::step(texts);
    let mut lowered = Plan::default();
    Lowering::default().lower(&step.plan, &mut lowered);
    step.plan = lowered;
    step
}

fn executor(model: &PlainModel, texts: &[Text]) -> PlainExecutor {
    let mut executor = PlainExecutor::new(model, Limits { slots: 1024, tokens: 512, rows: 8, states: None });
    encoders::bind(&mut executor, texts);
    executor
}

/// Runs the texts in one step, and returns the vector of each.
fn run(model: &PlainModel, texts: &[Text]) -> Vec<Vec<f32>> {
    encoders::run(&mut executor(model, texts), step(texts))
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
