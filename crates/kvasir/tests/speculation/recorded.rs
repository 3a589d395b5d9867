//! Drafts of EAGLE-3 heads and prediction layers, as recorded from other engines.

use crate::{Setup, cases, spec};
use kvasir::{BackendKind, CacheKind, DraftRound, DraftTrace, OpenedModel, Params, Token};
use kvasir_testkit::paths;
use serde_json::{Value as Json, json};
use std::path::Path;

fn json_of(path: &Path) -> Option<Json> {
    Some(serde_json::from_str(&std::fs::read_to_string(path).ok()?).unwrap())
}

fn ids(list: &Json) -> Vec<Token> {
    list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as Token).collect()
}

fn rounds_of(trace: &DraftTrace) -> Json {
    let one = |round: &DraftRound| {
        let candidates: Vec<_> =
            round.candidates.iter().map(|c| json!([c.token, c.parent, c.level])).collect();
        json!({"context_len": round.context_len, "root": round.root, "candidates": candidates, "kept": round.kept,
            "accepted_tokens": round.accepted, "bonus": round.bonus})
    };
    trace.take().iter().map(one).collect()
}

/// The recorded rounds, without log-probabilities.
fn recorded(rounds: &Json) -> Json {
    let one = |round: &Json| {
        let candidates: Vec<_> =
            round["candidates"].as_array().unwrap().iter().map(|c| json!([c[0], c[1], c[2]])).collect();
        json!({"context_len": round["context_len"], "root": round["root"], "candidates": candidates,
            "kept": round["kept"], "accepted_tokens": round["accepted_tokens"], "bonus": round["bonus"]})
    };
    rounds.as_array().unwrap().iter().map(one).collect()
}

#[test]
fn eagle3_rounds_are_the_recorded_ones() {
    let mut seen = 0;
    for case in cases() {
        let Some(expected) = json_of(&case.join("eagle_expected.json")) else { continue };
        let prompts = json_of(&case.join("expected.json")).unwrap()["prompts"].clone();
        let number = |key: &str| expected[key].as_u64().unwrap();
        let (depth, top_k, nodes) = (number("depth"), number("top_k"), number("total_draft_tokens"));
        let draft = case.join("draft");
        let spec = spec(&format!("eagle3:{},depth={depth},topk={top_k},nodes={nodes}", draft.display()));
        for backend in [BackendKind::Plain, BackendKind::Cpu] {
            for (prompt, record) in expected["prompts"].as_object().unwrap() {
                let output = ids(&record["output"]);
                for kind in [CacheKind::Tree, CacheKind::Radix, CacheKind::Cells] {
                    let setup = Setup { backend: backend.clone(), ..Setup::cpu(kind) };
                    let mut kvasir = setup.engine(OpenedModel::open(&case).unwrap(), Some(&spec));
                    let trace = kvasir.trace_drafts();
                    let max_tokens = output.len() as u32;
                    let params = Params { max_tokens, ignore_eos: true, ..Params::default() };
                    let answer = kvasir.generate(ids(&prompts[prompt]).as_slice(), &params).unwrap();
                    assert_eq!(answer.ids, output, "{} {prompt} {kind}", case.display());
                    assert_eq!(rounds_of(&trace), recorded(&record["rounds"]), "{prompt} {backend:?} {kind}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 36, "only {seen}");
}

#[test]
fn mtp_layers_draft_as_recorded_and_chain_their_own_states() {
    let mut seen = 0;
    for (case, backend) in
        cases().iter().flat_map(|case| [(case, BackendKind::Cpu), (case, BackendKind::Plain)])
    {
        let Some(expected) = json_of(&case.join("expected.json")) else { continue };
        let Some(prompts) = expected["mtp"]["prompts"].as_object() else { continue };
        for (prompt, record) in prompts {
            let (prompt_ids, greedy) =
                (ids(&expected["prompts"][prompt]), ids(&expected["greedy"][prompt]["tokens"]));
            let setup = Setup { backend: backend.clone(), ..Setup::cpu(CacheKind::Paged) };
            let mut kvasir = setup.engine(OpenedModel::open(case).unwrap(), Some(&spec("mtp:3")));
            let trace = kvasir.trace_drafts();
            let params = Params { max_tokens: greedy.len() as u32, ignore_eos: true, ..Params::default() };
            assert_eq!(kvasir.generate(prompt_ids.as_slice(), &params).unwrap().ids, greedy);
            let rounds = trace.take();
            let drafts = ids(&record["drafts"]);
            for round in &rounds {
                let at = round.context_len as usize - prompt_ids.len();
                assert!(
                    drafts.get(at).is_none_or(|draft| *draft == round.candidates[0].token),
                    "{prompt} {at}"
                );
            }
            let chain: Vec<Token> = rounds[0].candidates.iter().map(|candidate| candidate.token).collect();
            assert_eq!(
                chain,
                ids(&record["chain3_feeding_back"]["shared_head_normed"]),
                "{}",
                case.display()
            );
            seen += 1;
        }
    }
    assert!(seen >= 24, "only {seen}");
}

#[test]
fn of_several_prediction_layers_only_the_first_drafts() {
    let open = || {
        let mut opened = OpenedModel::open(&paths::model("glm4_moe")).unwrap();
        opened.model.predictions.push(opened.model.predictions[0].clone());
        opened
    };
    let speculate = |text: &str| open().speculate(&text.parse().unwrap());
    for text in ["mtp", "mtp:2"] {
        let error = speculate(text).err().unwrap().to_string();
        assert!(error.contains("2 prediction layers") && error.contains("mtp:1"), "{error}");
    }
    assert!(speculate("mtp:1").is_ok());
}
