//! `generate`, `logits`, `inspect` and `bench` as command line tools: JSON output and usage errors.
#![allow(clippy::unwrap_used)] // helpers outside of test functions

mod command;

use command::{json, model, recorded, run};
use serde_json::{Value as Json, json};

#[test]
fn every_cache_and_policy_gives_the_recorded_tokens() {
    for case in ["qwen3_yarn_swa", "deepseek_v32", "phi3_longrope"] {
        let (ids, tokens) = recorded(case, "p64");
        for cache in ["contiguous", "cells", "tree", "paged", "radix"] {
            for policy in ["chunked", "prefill-first", "rectangular"] {
                if policy == "rectangular" && !["paged", "radix"].contains(&cache) {
                    continue;
                }
                let path = model(case);
                let mut args = vec!["generate", &path, "--prompt-ids", &ids, "--max-tokens", "32", "--json"];
                args.extend(["--cache", cache, "--policy", policy]);
                if policy == "rectangular" {
                    args.extend(["--chunk-size", "64"]);
                } else {
                    args.extend(["--max-num-batched-tokens", "48"]);
                }
                let answer = json(&args);
                assert_eq!(answer["token_ids"], tokens, "{case} {cache} {policy}");
                assert_eq!(answer["finish_reason"], "length");
            }
        }
    }
}

#[test]
fn padded_steps_of_the_plain_backend_give_the_recorded_tokens() {
    for case in ["qwen3_yarn_swa", "gpt_oss"] {
        let (ids, tokens) = recorded(case, "p64");
        let path = model(case);
        let args = ["generate", &path, "--prompt-ids", &ids, "--max-tokens", "32", "--json"];
        let shapes: [&[&str]; 3] = [
            &["--policy", "rectangular", "--block-size", "8", "--chunk-size", "48"],
            &["--batch-sizes", "4,2", "--graph-max-batch", "2"],
            &["--batch-sizes", "3", "--policy", "rectangular", "--cache", "radix"],
        ];
        for shape in shapes {
            let answer = json(&[&args[..], &["--backend", "plain"], shape].concat());
            assert_eq!(answer["token_ids"], tokens, "{case} {shape:?}");
        }
    }
}

/// What `generate` prints as `speculation` for a recorded prompt, on a backend, with its tokens.
fn drafted(case: &str, prompt: &str, spec: &str, backend: &str, max_tokens: usize) -> (Json, Json) {
    let (ids, _) = recorded(case, prompt);
    let (path, max_tokens) = (model(case), max_tokens.to_string());
    let mut answer = json(
        &[
            &["generate", &path, "--prompt-ids", &ids, "--max-tokens", &max_tokens, "--ignore-eos"][..],
            &["--temperature", "0", "--precision", "exact", "--backend", backend],
            &["--spec", spec, "--spec-trace", "--json"],
        ]
        .concat(),
    );
    (answer["speculation"].take(), answer["token_ids"].take())
}

/// Number of tokens in this field of all rounds.
fn count(rounds: &Json, field: &str) -> usize {
    rounds.as_array().unwrap().iter().map(|round| round[field].as_array().unwrap().len()).sum()
}

#[test]
fn traced_rounds_of_eagle3_are_the_recorded_ones() {
    for case in ["eagle3_llama", "eagle3_qwen3"] {
        let text = std::fs::read_to_string(format!("{}/eagle_expected.json", model(case))).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        let [depth, top_k, nodes] = ["depth", "top_k", "total_draft_tokens"].map(|key| &expected[key]);
        let spec = format!("eagle3:{}/draft,depth={depth},topk={top_k},nodes={nodes}", model(case));
        for (prompt, record) in expected["prompts"].as_object().unwrap() {
            // The recorded rounds, without log-probabilities and indices of candidates.
            let mut rounds = record["rounds"].clone();
            for round in rounds.as_array_mut().unwrap() {
                round.as_object_mut().unwrap().remove("accepted_candidates");
                for candidate in round["candidates"].as_array_mut().unwrap() {
                    candidate.as_array_mut().unwrap().truncate(3);
                }
            }
            let output = record["output"].as_array().unwrap();
            for backend in ["plain", "cpu"] {
                let (told, tokens) = drafted(case, prompt, &spec, backend, output.len());
                let (drafts, accepted) = (count(&rounds, "kept"), count(&rounds, "accepted_tokens"));
                let all = json!({"drafted": drafts, "accepted": accepted, "rounds": rounds});
                assert_eq!(told, all, "{case} {prompt} {backend}");
                assert_eq!(tokens, record["output"]);
            }
        }
    }
}

#[test]
fn traced_rounds_of_mtp_hold_the_recorded_drafts() {
    for case in ["deepseek_v3", "glm4_moe", "qwen3_mtp"] {
        let text = std::fs::read_to_string(format!("{}/expected.json", model(case))).unwrap();
        let expected: Json = serde_json::from_str(&text).unwrap();
        for (prompt, record) in expected["mtp"]["prompts"].as_object().unwrap() {
            let greedy = expected["greedy"][prompt]["tokens"].as_array().unwrap();
            let prompt_len = expected["prompts"][prompt].as_array().unwrap().len();
            for backend in ["plain", "cpu"] {
                let (told, tokens) = drafted(case, prompt, "mtp:2", backend, greedy.len());
                assert_eq!(tokens, json!(greedy), "{case} {prompt} {backend}");
                let rounds = told["rounds"].as_array().unwrap();
                let chain = &record["chain3_feeding_back"]["shared_head_normed"];
                assert_eq!(rounds[0]["candidates"], json!([[chain[0], -1, 1], [chain[1], 0, 2]]));
                for round in rounds {
                    let at = round["context_len"].as_u64().unwrap() as usize - prompt_len;
                    let drafts = round["candidates"].as_array().unwrap();
                    let right = greedy[at + 1..].iter().zip(drafts).take_while(|(a, b)| **a == b[0]).count();
                    let end = at + 1 + right;
                    // Of what a round accepts behind the output there is no record.
                    let (accepted, bonus) = match greedy.get(end) {
                        Some(bonus) => (json!(greedy[at + 1..end]), bonus),
                        None => (round["accepted_tokens"].clone(), &round["bonus"]),
                    };
                    let all = json!({"context_len": prompt_len + at, "root": greedy[at], "candidates": drafts,
                        "kept": [0, 1], "accepted_tokens": accepted, "bonus": bonus});
                    assert_eq!(*round, all, "{case} {prompt} {backend}");
                    assert_eq!(drafts[0][0], record["drafts"][at], "{case} {prompt} {backend}");
                }
                let (drafts, right) =
                    (count(&told["rounds"], "kept"), count(&told["rounds"], "accepted_tokens"));
                // The prefill outputs a token, each round its accepted drafts and a bonus.
                let behind = (1 + right + rounds.len()).saturating_sub(greedy.len());
                let all = json!({"drafted": drafts, "accepted": right - behind.saturating_sub(1), "rounds": rounds});
                assert_eq!(told, all, "{case} {prompt} {backend}");
            }
        }
    }
}

#[test]
fn rings_give_the_recorded_tokens() {
    for case in ["gemma3", "gemma4_dense", "gemma4_ple", "gpt_oss", "mistral", "qwen2_swa"] {
        let (ids, tokens) = recorded(case, "p64");
        let (path, step) = (model(case), "--max-num-batched-tokens");
        let args = ["generate", &path, "--prompt-ids", &ids, "--max-tokens", "32", "--json"];
        let answer = json(&[&args[..], &["--rings", "on", step, "24"]].concat());
        assert_eq!(answer["token_ids"], tokens, "{case}");
    }
}

#[test]
fn bench_offline_prints_a_report_and_a_page() {
    let page = std::env::temp_dir().join(format!("kvasir-offline-{}.html", std::process::id()));
    let path = model("qwen3");
    let args = ["bench", "offline", &path, "--requests", "2", "--kv-capacity", "4096"];
    let told = json(&[&args[..], &["--json", "--html", page.to_str().unwrap()]].concat());
    // The first requests of the published workload, independent of the model.
    assert_eq!((&told["prompt_tokens"], &told["output_tokens"]), (&1688.into(), &671.into()));
    let drawn = std::fs::read_to_string(&page).unwrap();
    std::fs::remove_file(&page).unwrap();
    for what in ["output tokens per second", "requests running", "time to first token", "slots in use"] {
        assert!(drawn.contains(&format!("\"{what}\"")), "{what}");
    }
    let printed = String::from_utf8(run(&args).stdout).unwrap();
    assert!(printed.lines().any(|line| line.starts_with("first token p50 / p99 ")), "{printed}");
}

#[test]
fn noise_depends_on_seed_and_position_alone() {
    let (ids, _) = recorded("qwen3", "p17");
    let path = model("qwen3");
    let draw = |more: &[&str]| {
        let mut args = vec![
            "generate",
            &path,
            "--prompt-ids",
            &ids,
            "--max-tokens",
            "24",
            "--temperature",
            "1.2",
            "--json",
        ];
        args.extend(more);
        json(&args)["token_ids"].clone()
    };
    let one = draw(&["--seed", "5"]);
    assert_eq!(one, draw(&["--seed", "5", "--cache", "paged", "--max-num-batched-tokens", "7"]));
    assert_eq!(one, draw(&["--seed", "5", "--overlap", "on"]));
    assert_ne!(one, draw(&["--seed", "6"]));
}

#[test]
fn logits_are_of_the_last_position_or_of_all() {
    let path = model("gpt_oss_mxfp4");
    let (ids, _) = recorded("gpt_oss_mxfp4", "p5");
    let args = ["logits", &path, "--prompt-ids", &ids, "--json", "--precision", "exact"];
    let last = json(&args)["logits"].clone();
    let all = json(&[&args[..], &["--all"]].concat())["logits"].clone();
    assert_eq!(all.as_array().unwrap().len(), 5);
    assert_eq!(all[4], last);
}

#[test]
fn log_probabilities_come_with_the_tokens() {
    let path = model("qwen3");
    let answer =
        json(&["generate", &path, "--prompt-ids", "5,6,7", "--max-tokens", "4", "--logprobs", "3", "--json"]);
    let list = answer["logprobs"].as_array().unwrap();
    assert_eq!(list.len(), 4);
    for (one, id) in list.iter().zip(answer["token_ids"].as_array().unwrap()) {
        assert_eq!(one["top"].as_array().unwrap().len(), 3);
        assert_eq!((&one["id"], &one["logprob"]), (id, &one["top"][0]["logprob"]));
    }
    let usage = &answer["usage"];
    assert_eq!((usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()), (Some(3), Some(4)));
}

#[test]
fn inspect_shows_program_and_sizes() {
    let path = model("deepseek_v3");
    let all = json(&["inspect", &path, "--json"]);
    assert_eq!(all["architecture"], "DeepseekV3ForCausalLM");
    assert_eq!(all["kv"]["n_layers"], 3);
    assert_eq!(all["memory"]["kv_numbers_per_token"], 3 * (32 + 16));
    assert_eq!(all["programs"]["predictions"].as_array().unwrap().len(), 1);
    let text = String::from_utf8(run(&["inspect", &path]).stdout).unwrap();
    assert!(text.contains("context           ") && text.contains("mostly F32"), "{text}");
    assert!(text.contains("  layers 0-2: 1 heads, key"), "equal layers are one line: {text}");
    assert!(text.contains("update_and_attend") && text.contains("prediction 0"), "{text}");
    assert!(text.contains("kv_b_proj.weight [24, 32] from 512 1280 apart"), "{text}");
    assert!(text.contains("  rope 0 [16] frequencies 1 to "), "{text}");
}

#[test]
fn logits_that_are_no_numbers_end_a_request_by_name() {
    let folder = std::env::temp_dir().join(format!("kvasir-broken-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::copy(format!("{}/config.json", model("qwen3")), folder.join("config.json")).unwrap();
    let mut weights = std::fs::read(format!("{}/model.safetensors", model("qwen3"))).unwrap();
    // The last tensor is the final norm; all one bits are NaN in any float type.
    let end = weights.len();
    weights[end - 64..].fill(0xff);
    std::fs::write(folder.join("model.safetensors"), weights).unwrap();
    let path = folder.to_str().unwrap();
    let plain = ["--backend", "plain"];
    for args in [vec!["generate", path, "--prompt-ids", "1,2"], vec!["logits", path, "--prompt-ids", "1,2"]] {
        for args in [args.clone(), [&args[..], &plain[..]].concat()] {
            let output = run(&args);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
            assert!(stderr.contains("logits are not finite numbers"), "{args:?}: {stderr}");
            assert!(output.stdout.is_empty());
        }
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn usage_errors_are_one_line_and_name_the_option() {
    let path = model("qwen3");
    let printed = |args: &[&str], code: i32, what: &str| {
        let output = run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(what), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty());
    };
    printed(&["generate", &path, "--prompt-ids", "1,512"], 2, "id `512`");
    printed(&["generate", &path, "--prompt", "hello"], 2, "tokenizer");
    printed(&["generate", &path, "--prompt-ids", "1", "--temperature", "-1"], 2, "temperature");
    printed(
        &["generate", &path, "--prompt-ids", "1", "--cache", "radix", "--block-size", "0"],
        2,
        "block-size",
    );
    printed(&["generate", &path, "--prompt-ids", "1", "--block-size", "16"], 2, "--cache contiguous");
    printed(&["generate", &path, "--prompt-ids", "1", "--prompt", "x"], 2, "--prompt");
    printed(
        &["generate", &path, "--prompt-ids", "1", "--rings", "on"],
        2,
        "no layer of the model has a window",
    );
    printed(
        &["generate", &path, "--prompt-ids", "1", "--rings", "on", "--cache", "radix"],
        2,
        "--cache radix",
    );
    printed(&["generate", &path, "--prompt-ids", "1", "--graph-max-batch", "8"], 2, "--graph-max-batch");
    let one = ["generate", &path, "--prompt-ids", "1", "--batch-sizes", "4"];
    printed(&one, 2, "--batch-sizes: on the cpu backend");
    let sizes = |more: [&'static str; 2]| [&one[..], &["--backend", "plain"], &more].concat();
    printed(
        &sizes(["--graph-max-batch", "3"]),
        2,
        "--graph-max-batch 3 cannot be combined with --batch-sizes",
    );
    printed(&sizes(["--max-num-batched-tokens", "3"]), 2, "--max-num-batched-tokens 3");
    printed(&["logits", &path, "--prompt-ids", "1", "--json", "--batch-sizes", "4"], 2, "--batch-sizes");
    printed(&["logits", &path, "--prompt-ids", "1", "--backend", "sim"], 2, "--backend sim");
    let far = ["generate", &path, "--prompt-ids", "1", "--max-model-len", "100000"];
    printed(&far, 2, "--max-model-len 100000 is more than the");
    printed(&["logits", &model("none"), "--prompt-ids", "1", "--json"], 1, "none");
    printed(&["logits", &path, "--json"], 2, "--prompt-ids");
    printed(&["generate", &path], 2, "--prompt TEXT or --prompt-ids IDS");
    printed(
        &["generate", &path, "--prompt-ids", "1", "--temperature", "-1"],
        2,
        "must be a number of at least 0",
    );
    printed(
        &["generate", &path, "--prompt-ids", "1", "--max-model-len", "1"],
        2,
        "--max-model-len 1 leaves no room",
    );
    printed(&["generate", "--prompt", "a", "--regex", "["], 2, "unclosed character class");
    let takes = "the model takes 40960";
    printed(
        &["bench", "pp", &path, "--tokens", "40961"],
        2,
        &format!("the prompt has 40961 tokens, {takes}"),
    );
    printed(&["bench", "tg", &path, "--depth", "40960", "--tokens", "1"], 2, takes);
    printed(&["bench", "batch", &path, "--prompt", "40000", "--tokens", "961"], 2, takes);
    printed(&["bench", "pp", &path, "--dtype", "q8_0"], 2, "--dtype");
    printed(&["bench", "tg", &path, "--depth", "-1"], 2, "'--depth <DEPTH>': -1 is not in 0..=1000000");
    printed(&["bench", "pp", &model("none")], 1, "none");
    printed(&["bench"], 2, "Usage: kvasir bench [OPTIONS] <COMMAND>");
}

#[test]
fn a_stop_text_ends_the_output_before_it() {
    let args = ["generate", "--prompt", "1, 2, 3, 4,", "--ignore-eos", "--max-tokens", "24", "--json"];
    let text = json(&args)["text"].as_str().unwrap().to_owned();
    let stop = text.chars().skip(6).take(3).collect::<String>();
    let before = text.split(&stop).next().unwrap();
    for spec in [&[][..], &["--spec", "ngram:depth=4"]] {
        let answer = json(&[&args[..], &["--stop", "never", "--stop", &stop], spec].concat());
        assert_eq!((&answer["text"], &answer["finish"]), (&before.into(), &"stop_text".into()), "{spec:?}");
        assert_eq!(answer["finish_reason"], "stop");
        let whole = json(&args);
        let ids = answer["token_ids"].as_array().unwrap();
        assert!(ids.len() < 24 && whole["token_ids"].as_array().unwrap().starts_with(ids));
    }
}

#[test]
fn logits_are_the_same_under_any_cache_and_policy() {
    let path = model("qwen3");
    let args = ["logits", &path, "--prompt-ids", "1,2,3,4,5,6,7", "--all", "--json"];
    let expected = json(&args)["logits"].clone();
    assert_eq!(expected.as_array().unwrap().len(), 7);
    let several: [&[&str]; 4] = [
        &["--cache", "radix", "--max-num-batched-tokens", "3"],
        &["--cache", "paged", "--policy", "rectangular", "--block-size", "4", "--chunk-size", "4"],
        &["--policy", "prefill-first", "--long-prefill-cap", "2"],
        &["--cache", "cells", "--overlap", "on"],
    ];
    for options in several {
        assert_eq!(json(&[&args[..], options].concat())["logits"], expected, "{options:?}");
    }
}

#[test]
fn options_without_effect_on_the_backend_are_refused_by_name() {
    let path = model("qwen2_swa");
    for (backend, option, value) in [
        ("plain", "--threads", "1"),
        ("sim", "--threads", "1"),
        ("sim", "--kv-dtype", "q8_0"),
        ("sim", "--precision", "exact"),
        ("sim", "--batch-sizes", "1,2"),
        ("plain", "--graph-max-batch", "4"),
        ("plain", "--sim-preset", "instant"),
        ("plain", "--rings", "on"),
        ("sim", "--rings", "on"),
        ("plain", "--instructions", "portable"),
        ("sim", "--instructions", "portable"),
        ("sim", "--logprobs", "1"),
        ("sim", "--regex", "a+"),
    ] {
        let args = ["generate", &path, "--prompt-ids", "5", "--max-tokens", "1", "--json"];
        let output = run(&[&args[..], &["--backend", backend, option, value]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(option), "{backend} {option}: {error}");
    }
}

#[test]
fn options_that_need_or_exclude_another_are_refused() {
    let path = model("qwen3");
    let generate = ["generate", &path, "--prompt-ids", "5", "--max-tokens", "1"];
    for (args, missing) in [
        (&["--logprobs", "1"][..], "--json"),
        (&["--order", "fair"], "--order"),
        (&["--stop", "x"], "--stop needs a model with a tokenizer"),
        (&["--stop", ""], "--stop"),
        (&["--overlap", "on", "--spec", "ngram"], "--spec ngram cannot be combined with --overlap on"),
    ] {
        let output = run(&[&generate[..], args].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(missing), "{args:?}: {error}");
    }
    let output = run(&["serve", &path, "--max-priority", "3"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("--max-priority needs --order priority"), "{error}");
}
