//! Every test checkpoint gives the recorded logits, hidden states, top tokens, greedy continuations
//! and MTP drafts.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod common;

use common::{Stream, cases, limits, load};
use kvasir_exec::IN_FLIGHT;
use kvasir_formats::{Rules, convert};
use kvasir_kv::Token;
use kvasir_plain::{PlainExecutor, PlainModel};
use kvasir_program::Tap;
use serde_json::Value as Json;
use std::path::Path;

const TOLERANCE: f32 = 1e-3;

fn tokens(json: &Json) -> Vec<Token> {
    json.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as Token).collect()
}

fn floats(json: &Json) -> Vec<f32> {
    json.as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as f32).collect()
}

fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn largest(row: &[f32]) -> Token {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as Token
}

#[test]
fn logits_and_greedy_continuations_are_as_recorded() {
    for case in cases() {
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        let expected: Json =
            serde_json::from_str(&std::fs::read_to_string(case.join("expected.json")).unwrap()).unwrap();
        let model = load(&case);
        hidden_states(&case, &name, &model, &expected);
        let mut error: f32 = 0.0;
        for (prompt, ids) in expected["prompts"].as_object().unwrap() {
            let ids = tokens(ids);
            error = error.max(last_logits(&model, &ids, &floats(&expected["final_logits"][prompt])));
            greedy(&name, &model, &ids, &tokens(&expected["greedy"][prompt]["tokens"]));
        }
        assert!(error < TOLERANCE, "{name}: logits differ by {error}");
        likeliest(&name, &model, &expected);
        println!("{name}: {error:.1e}");
    }
}

#[test]
fn converted_checkpoints_give_the_recorded_logits() {
    let file = std::env::temp_dir().join(format!("kvasir-plain-converted-{}.gguf", std::process::id()));
    for case in cases() {
        let text = std::fs::read_to_string(case.join("expected.json")).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        convert(&case, &file, &Rules::parse("f32", &[]).unwrap()).unwrap();
        let model = load(&file);
        for prompt in ["p17", "p64"] {
            let ids = tokens(&expected["prompts"][prompt]);
            let error = last_logits(&model, &ids, &floats(&expected["final_logits"][prompt]));
            assert!(error < TOLERANCE, "{} {prompt}: logits differ by {error}", case.display());
        }
    }
    std::fs::remove_file(&file).unwrap();
}

/// `KVASIR_GGUF_CASES` is a folder of cases with a `model.gguf` and an `expected.json` each.
#[test]
#[ignore = "needs KVASIR_GGUF_CASES, GGUF files that another converter wrote"]
fn files_of_other_converters_give_the_recorded_logits() {
    let folder = std::env::var_os("KVASIR_GGUF_CASES").unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let case = entry.unwrap().path();
        let file = case.join("model.gguf");
        let Ok(text) = std::fs::read_to_string(case.join("expected.json")) else { continue };
        if !file.exists() {
            continue;
        }
        let (expected, model): (Json, _) = (serde_json::from_str(&text).unwrap(), load(&file));
        let name = case.file_name().unwrap().to_string_lossy().into_owned();
        for (prompt, ids) in expected["prompts"].as_object().unwrap() {
            let ids = tokens(ids);
            let error = last_logits(&model, &ids, &floats(&expected["final_logits"][prompt]));
            assert!(error < TOLERANCE, "{name} {prompt}: logits differ by {error}");
            greedy(&name, &model, &ids, &tokens(&expected["greedy"][prompt]["tokens"]));
        }
        println!("{name}");
        seen += 1;
    }
    assert!(seen > 0, "no case has a model.gguf");
}

fn last_logits(model: &PlainModel, prompt: &[Token], expected: &[f32]) -> f32 {
    let executor = PlainExecutor::new(model, limits());
    let mut stream = Stream::new(executor, prompt, prompt.len());
    worst(&stream.pass(prompt, prompt.len() - 1, None, &[]).logits, expected)
}

/// Prefill in two chunks, then decode with tokens in flight, so that the host never feeds a sampled
/// token.
fn greedy(name: &str, model: &PlainModel, prompt: &[Token], expected: &[Token]) {
    let executor = PlainExecutor::new(model, limits());
    let mut stream = Stream::new(executor, prompt, prompt.len() + expected.len());
    let (head, tail) = prompt.split_at(prompt.len() / 2);
    if !head.is_empty() {
        stream.pass(head, head.len(), None, &[]);
    }
    let mut sampled = vec![stream.submit(tail).0];
    while sampled.len() < expected.len() {
        sampled.push(stream.submit(&[IN_FLIGHT]).0);
    }
    assert_eq!(sampled, expected, "{name}, prompt of {}", prompt.len());
}

fn likeliest(name: &str, model: &PlainModel, expected: &Json) {
    let top = &expected["top20"];
    let prompt = tokens(&expected["prompts"][top["prompt"].as_str().unwrap()]);
    let mut stream = Stream::new(PlainExecutor::new(model, limits()), &prompt, prompt.len());
    let logits = stream.pass(&prompt, 0, None, &[]).logits;
    for (at, row) in logits.chunks(model.program().vocab).enumerate() {
        let ours = kvasir_sample::top_log_probabilities(row, 20);
        let (ids, log_probs) = (tokens(&top["ids"][at]), floats(&top["logprobs"][at]));
        let (our_ids, our_log_probs): (Vec<Token>, Vec<f32>) = ours.into_iter().unzip();
        assert!(worst(&our_log_probs, &log_probs) < TOLERANCE, "{name} at {at}");
        assert_eq!(our_ids[0], ids[0], "{name} at {at}");
    }
}

fn hidden_states(case: &Path, name: &str, model: &PlainModel, expected: &Json) {
    let file = std::fs::read(case.join("debug_p17.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&file).unwrap();
    let prompt = tokens(&expected["prompts"]["p17"]);
    let taps: Vec<Tap> = model.program().taps.iter().map(|(tap, _)| *tap).collect();
    let mut stream = Stream::new(PlainExecutor::new(model, limits()), &prompt, prompt.len());
    for (tap, ours) in stream.pass(&prompt, prompt.len(), None, &taps).taps {
        let tensor = match tap {
            Tap::IntoLayer(i) => format!("residual_into_layer.{i}"),
            Tap::OutOfLastLayer => "residual_out_of_last_layer".into(),
            Tap::FinalNorm => "after_final_norm".into(),
            // Of draft heads only; the recorded states have none.
            Tap::Features => continue,
        };
        let bytes = file.tensor(&tensor).unwrap().data().to_vec();
        let theirs: Vec<f32> =
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let error = worst(&ours, &theirs);
        assert!(error < TOLERANCE, "{name}: {tensor} differs by {error}");
    }
}

#[test]
fn mtp_layers_propose_the_recorded_drafts() {
    let mut seen = 0;
    for case in cases() {
        let text = std::fs::read_to_string(case.join("expected.json")).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        let Some(mtp) = expected["mtp"].as_object() else { continue };
        let model = load(&case);
        for (prompt, record) in mtp["prompts"].as_object().unwrap() {
            let ids = tokens(&expected["prompts"][prompt]);
            let greedy = tokens(&expected["greedy"][prompt]["tokens"]);
            let drafts = tokens(&record["drafts"]);
            let mut target = Stream::new(PlainExecutor::new(&model, limits()), &ids, 512);
            let draft = PlainExecutor::prediction(&model, 0, limits()).unwrap();
            let mut draft = Stream::new(draft, &ids, 512);
            // MTP: row i pairs the hidden state of token i with token i + 1, so the layer lags one
            // token behind.
            let state = target.pass(&ids, ids.len(), None, &[Tap::FinalNorm]).taps.remove(0).1;
            let mut next: Vec<Token> = ids[1..].to_vec();
            next.push(greedy[0]);
            let pass = draft.pass(&next, next.len() - 1, Some(&state), &[]);
            let error = worst(&pass.logits, &floats(&record["first_logits"]));
            assert!(error < TOLERANCE, "{}: {error}", case.display());
            let mut ours = vec![largest(&pass.logits)];
            for pair in greedy.windows(2).take(drafts.len() - 1) {
                let state = target.pass(&pair[..1], 1, None, &[Tap::FinalNorm]).taps.remove(0).1;
                ours.push(largest(&draft.pass(&pair[1..], 0, Some(&state), &[]).logits));
            }
            assert_eq!(ours, drafts, "{} {prompt}", case.display());
            seen += 1;
        }
    }
    assert!(seen >= 12, "only {seen}");
}
